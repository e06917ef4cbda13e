"""The key-value configuration, in memory and on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mq.namesrv.kv_config import NAME_BYTES_MAX, VALUE_BYTES_MAX, KvConfig, KvInvalid
from mq.namesrv.kv_file import FILE_NAME, KvFile, KvFileDamaged
from mq.namesrv.route_table import TableFull
from mq.namesrv.running_config import ConfigForbidden, ConfigInvalid, RunningConfig
from mq.namesrv.settings import NamesrvSettings


def test_kv_values_are_put_read_and_deleted() -> None:
    config = KvConfig()
    assert config.get("ns", "k") is None
    assert config.of_namespace("ns") is None
    config.delete("ns", "k")
    for key, value in (("k", "v1"), ("k", "v2"), ("l", "")):
        config.put("ns", key, value)
    assert config.get("ns", "k") == "v2"
    assert config.of_namespace("ns") == {"k": "v2", "l": ""}
    config.delete("ns", "k")
    config.delete("ns", "l")
    assert config.of_namespace("ns") is None


def test_limits_count_present_entries_only() -> None:
    config = KvConfig(entries_max=2, bytes_max=20)
    config.put("ns", "k", "12345")
    config.put("ns", "l", "12345")
    with pytest.raises(TableFull, match="2 key-value entries"):
        config.put("ns", "m", "")
    with pytest.raises(TableFull, match="20 allowed"):
        config.put("ns", "l", "1234567890")
    config.put("ns", "l", "1")
    config.put("ns", "k", "123456789")
    config.delete("ns", "l")
    config.put("ns", "m", "12345")
    assert config.of_namespace("ns") == {"k": "123456789", "m": "12345"}


@pytest.mark.parametrize(
    ("namespace", "key", "value"),
    [
        ("", "k", "v"),
        ("ns", " ", "v"),
        ("n" * (NAME_BYTES_MAX + 1), "k", "v"),
        ("ns", "ü" * NAME_BYTES_MAX, "v"),
        ("ns", "k", "v" * (VALUE_BYTES_MAX + 1)),
    ],
)
def test_refused_changes_leave_no_state(namespace: str, key: str, value: str) -> None:
    config = KvConfig()
    with pytest.raises(KvInvalid, match=r"bytes; (allowed|maximum)"):
        config.put(namespace, key, value)
    assert config.version == 0


def filled(**values: str) -> KvConfig:
    config = KvConfig()
    for key, value in values.items():
        config.put("ns", key, value)
    return config


async def test_kv_file_equals_the_file_of_stock_name_servers(tmp_path: Path) -> None:
    config = KvConfig()
    file = KvFile(config, tmp_path / "made")
    assert file.load() is None
    config.put("ORDER_TOPIC_CONFIG", "T", "b-a:4")
    await file.save()
    saved = (tmp_path / "made" / FILE_NAME).read_text()
    assert json.loads(saved) == {"configTable": {"ORDER_TOPIC_CONFIG": {"T": "b-a:4"}}}
    again = KvConfig()
    assert KvFile(again, tmp_path / "made").load() is None
    assert again.get("ORDER_TOPIC_CONFIG", "T") == "b-a:4"


async def test_previous_state_replaces_a_damaged_or_missing_file(tmp_path: Path) -> None:
    config = filled(k="old")
    file = KvFile(config, tmp_path)
    config.put("ns", "k", "before")
    await file.save()
    config.put("ns", "k", "new")
    await file.save()
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for damage in (b"", whole[:-3], b"\x00" * len(whole)):
        path.write_bytes(damage)
        again = KvConfig()
        fault = KvFile(again, tmp_path).load()
        assert fault is not None
        assert str(path) in fault
        assert again.get("ns", "k") == "before"
    path.unlink()
    again = KvConfig()
    assert KvFile(again, tmp_path).load() is None
    assert again.get("ns", "k") == "before"


def test_two_damaged_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"{")
    (tmp_path / f"{FILE_NAME}.bak").write_bytes(b"[]")
    with pytest.raises(KvFileDamaged, match=r"kvConfig\.json: .*kvConfig\.json\.bak: "):
        KvFile(KvConfig(), tmp_path).load()
    assert (tmp_path / FILE_NAME).read_bytes() == b"{"


def test_settings_change_all_or_none() -> None:
    config = RunningConfig(NamesrvSettings(data_dir=None))
    config.update({"orderMessageEnable": "TRUE", "listenPort": "9876"})
    assert config.order_topics
    assert config.properties()["orderMessageEnable"] == "true"
    for wanted, error in (
        ({"orderMessageEnable": "false", "listenPort": "1"}, ConfigForbidden),
        ({"orderMessageEnable": "false", "kvConfigPath": ""}, ConfigForbidden),
        ({"orderMessageEnable": "false", "nothing": "1"}, ConfigInvalid),
        ({"orderMessageEnable": "perhaps"}, ConfigInvalid),
    ):
        with pytest.raises(error):
            config.update(wanted)
        assert config.order_topics
