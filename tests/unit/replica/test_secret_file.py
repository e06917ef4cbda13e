"""The file with the group's secret: who may read it, what it holds, and how it is replaced."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import structlog

from raftlog import NodeId, NodeSettings
from raftlog.net.secret_file import (
    SecretFile,
    SecretMissing,
    SecretUnusable,
    create_secret,
    new_secret,
    read_secrets,
    write_secrets,
)
from raftlog.node import open_secret


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_secret_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "secret"
    before = os.umask(0)
    try:
        assert create_secret(str(path))
    finally:
        os.umask(before)
    assert mode_of(path) == 0o600
    (secret,) = read_secrets(str(path))
    assert len(secret) == 32
    assert not create_secret(str(path))
    assert read_secrets(str(path)) == (secret,)
    assert [each.name for each in path.parent.iterdir()] == ["secret"]


def test_existing_secret_is_kept_even_in_an_unwritable_directory(tmp_path: Path) -> None:
    # Containers get it mounted read-only, into a directory where no other file can be made beside it.
    path = tmp_path / "secret"
    create_secret(str(path))
    (tmp_path / f"secret.{os.getpid()}.tmp").mkdir()  # in the way of any file that would be written
    assert not create_secret(str(path))


def test_file_is_replaced_in_one_step_and_noticed(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    create_secret(str(path))
    file = SecretFile(str(path))
    assert not file.poll()
    old, new = file.current[0], new_secret()
    write_secrets(str(path), (new, old))
    assert file.poll()
    assert file.current == (new, old)
    assert mode_of(path) == 0o600
    path.unlink()
    with pytest.raises(SecretMissing):
        file.poll()
    assert not file.poll(), "told once"
    assert file.current == (new, old)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds 0 secrets"),
        ("# nothing\n\n", "holds 0 secrets"),
        ("ab" * 31, "line 1 is not a secret"),
        ("zz" * 32, "line 1 is not a secret"),
        ("\n" + "ab" * 33, "line 2 is not a secret"),
        ("\n".join(f"{n:02x}" * 32 for n in range(3)), "holds 3 secrets"),
        ("\u00e4" * 64, "line 1 is not a secret"),
    ],
)
def test_invalid_secret_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "secret"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(SecretUnusable, match=words):
        read_secrets(str(path))


@pytest.mark.parametrize(
    ("mode", "good"), [(0o600, True), (0o640, True), (0o644, False), (0o660, False), (0o604, False)]
)
def test_file_accessible_to_others_is_refused(tmp_path: Path, mode: int, good: bool) -> None:
    path = tmp_path / "secret"
    create_secret(str(path))
    path.chmod(mode)
    if good:
        assert len(read_secrets(str(path))) == 1
    else:
        with pytest.raises(SecretUnusable, match="chmod 600"):
            read_secrets(str(path))


def test_missing_secret_file_differs_from_an_unusable_one(tmp_path: Path) -> None:
    with pytest.raises(SecretMissing):
        read_secrets(str(tmp_path / "secret"))
    with pytest.raises(SecretUnusable, match="directory"):
        read_secrets(str(tmp_path))


def settings_of(directory: Path, name: str, members: tuple[str, ...]) -> NodeSettings:
    return NodeSettings(
        cluster_id="c",
        group="g",
        node_id=NodeId(name),
        directory=str(directory / name / "log"),
        listen=("127.0.0.1", 1),
        secret_file=str(directory / name / "group.secret"),
        members={NodeId(member): "127.0.0.1:1" for member in members},
    )


def test_only_the_first_member_makes_the_secret(tmp_path: Path) -> None:
    log = structlog.get_logger("test")
    for name, members, source in (("n1", ("n0", "n1"), "n0"), ("n3", (), "a replica of the group")):
        settings = settings_of(tmp_path, name, members)
        with pytest.raises(SecretMissing, match=f"{settings.secret_file}: .* copy this file from {source}"):
            open_secret(settings, log)
        assert not (tmp_path / name).exists(), "it was touched"
    first = open_secret(settings_of(tmp_path, "n0", ("n0", "n1")), log)
    write_secrets(str(tmp_path / "n1" / "group.secret"), first.current)
    assert open_secret(settings_of(tmp_path, "n1", ("n0", "n1")), log).current == first.current
    assert open_secret(settings_of(tmp_path, "n0", ("n0", "n1")), log).current == first.current, "it was made anew"
