"""Settings that were renamed: their former names work, whoever gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from mq.broker.settings import BrokerSettings
from mq.namesrv.settings import NamesrvSettings
from mq.settings import ProcessSettings

MIB = 1024 * 1024


@pytest.mark.parametrize("settings", [BrokerSettings, NamesrvSettings])
def test_old_name_belongs_to_an_existing_setting(settings: type[ProcessSettings]) -> None:
    assert set(settings.former_names.values()) <= settings.model_fields.keys()
    assert not settings.former_names.keys() & settings.model_fields.keys()


def test_file_and_flag_may_use_old_names(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(f"held_pulls_max = 7\npending_bytes_max = {MIB}\n")
    settings = BrokerSettings.load(config, admin_from="10.0.0.0/8")
    assert (settings.long_polls_max, settings.uncommitted_bytes_max) == (7, MIB)
    assert settings.admin_networks == "10.0.0.0/8"
    assert sorted(settings.former_names_used) == ["admin_from", "held_pulls_max", "pending_bytes_max"]


def test_old_names_in_the_environment_override_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "namesrv.toml"
    config.write_text("strangers_max = 5\n")
    monkeypatch.setenv("RAFTMQ_NAMESRV_STRANGERS_MAX", "6")
    assert NamesrvSettings.load(config).unidentified_connections_max == 6
    assert NamesrvSettings.load(None, strangers_max=7).unidentified_connections_max == 7


def test_flag_overrides_the_old_name_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAFTMQ_BROKER_HELD_PULLS_MAX", "6")
    assert BrokerSettings(long_polls_max=7).long_polls_max == 7
    started = BrokerSettings()
    assert (started.long_polls_max, started.former_names_used) == (6, ("held_pulls_max",))
    # As a change of a running broker does.
    changed = BrokerSettings.model_validate(started.model_dump(exclude_unset=True) | {"retention_hours": 3})
    assert (changed.long_polls_max, changed.retention_hours) == (6, 3)
    monkeypatch.setenv("RAFTMQ_BROKER_LONG_POLLS_MAX", "8")
    with pytest.raises(ValidationError, match="are both set"):
        BrokerSettings()


def test_old_and_new_name_of_a_setting_conflict() -> None:
    with pytest.raises(ValidationError, match=r"join and its new name joins_group are both set: remove join"):
        BrokerSettings(join=True, joins_group=True)  # type: ignore[call-arg]


def test_invalid_value_is_refused_under_the_present_name() -> None:
    with pytest.raises(ValidationError, match="long_polls_max"):
        BrokerSettings(held_pulls_max=0)  # type: ignore[call-arg]


def test_present_names_leave_nothing_to_report() -> None:
    assert BrokerSettings(long_polls_max=3).former_names_used == ()
