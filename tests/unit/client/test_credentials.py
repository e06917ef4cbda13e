"""Where the keys of a client come from, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.client import Credentials, CredentialsInvalid, RemotingSettings


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_credentials_come_from_the_environment_or_a_named_file(tmp_path: Path) -> None:
    assert Credentials.from_environment({}) is None
    keys = Credentials("RocketMQ", "12345678")
    assert Credentials.from_environment({"RAFTMQ_ACCESS_KEY": "RocketMQ", "RAFTMQ_SECRET_KEY": "12345678"}) == keys
    path = written(tmp_path / "keys.toml", 'access_key = "RocketMQ"\nsecret_key = "12345678"\n')
    assert Credentials.from_environment({"RAFTMQ_CREDENTIALS": str(path)}) == keys
    with pytest.raises(CredentialsInvalid, match="must be set together"):
        Credentials.from_environment({"RAFTMQ_ACCESS_KEY": "RocketMQ"})


def test_remoting_settings_take_credentials_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RemotingSettings().credentials is None
    monkeypatch.setenv("RAFTMQ_ACCESS_KEY", "RocketMQ")
    monkeypatch.setenv("RAFTMQ_SECRET_KEY", "12345678")
    assert RemotingSettings().credentials == Credentials("RocketMQ", "12345678")
    assert RemotingSettings(credentials=None).credentials is None


def test_secret_is_not_shown() -> None:
    assert "12345678" not in repr(RemotingSettings(credentials=Credentials("RocketMQ", "12345678")))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_file_readable_by_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "keys.toml", 'access_key = "RocketMQ"\nsecret_key = "12345678"\n', mode)
    with pytest.raises(CredentialsInvalid, match="can be read by others"):
        Credentials.from_file(path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("access_key = ", "is not TOML"),
        ('access_key = "RocketMQ"', "has no secret_key"),
        ('access_key = "short"\nsecret_key = "12345678"', "access key has 5 characters"),
    ],
)
def test_invalid_credentials_file_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(CredentialsInvalid, match=fault):
        Credentials.from_file(written(tmp_path / "keys.toml", text))
