"""Where the settings of a name server come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.namesrv.settings import NamesrvSettings


def test_settings_from_file_environment_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "namesrv.toml"
    config.write_text('listen_host = "127.0.0.1"\nlisten_port = 1000\nscan_seconds = 7\n')
    monkeypatch.setenv("RAFTMQ_NAMESRV_LISTEN_PORT", "2000")
    settings = NamesrvSettings.load(config, scan_seconds=3, listen_host=None)
    assert (settings.listen_host, settings.listen_port, settings.scan_seconds) == ("127.0.0.1", 2000, 3)
    assert NamesrvSettings.load().listen_port == 2000
    config.write_text("no_such_setting = 1\n")
    with pytest.raises(ValueError, match="no_such_setting"):
        NamesrvSettings.load(config)
    with pytest.raises(FileNotFoundError):
        NamesrvSettings.load(tmp_path / "missing.toml")
