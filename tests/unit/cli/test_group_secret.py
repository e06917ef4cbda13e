"""`raftmq group secret`: it is shown, handed to a joining node, and exchanged for another one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mq.cli.app import app
from mq.cli.errors import CommandFailed
from raftlog.net.secret_file import FILE_NAME, create_secret, read_secrets


def run(*args: str | Path, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["group", "secret", *map(str, args)], input=stdin)


def refusal(result: Result) -> str:
    assert isinstance(result.exception, CommandFailed), result.output
    return str(result.exception)


@pytest.fixture
def n0(tmp_path: Path) -> Path:
    create_secret(str(tmp_path / "n0" / FILE_NAME))
    return tmp_path / "n0"


def secrets_of(directory: Path) -> tuple[bytes, ...]:
    return read_secrets(str(directory / FILE_NAME))


def test_joining_node_accepts_the_shown_secret(tmp_path: Path, n0: Path) -> None:
    shown = run("show", "--data-dir", n0)
    assert shown.output == secrets_of(n0)[0].hex() + "\n"
    joining = tmp_path / "n3"
    assert run("set", "--data-dir", joining, stdin=shown.output).exit_code == 0
    assert secrets_of(joining) == secrets_of(n0)
    assert stat.S_IMODE((joining / FILE_NAME).stat().st_mode) == 0o600
    assert run("show", "--file", joining / FILE_NAME).output == shown.output


def test_secret_is_replaced_in_two_steps(tmp_path: Path, n0: Path) -> None:
    n1 = tmp_path / "n1"
    run("set", "--data-dir", n1, stdin=run("show", "--data-dir", n0).output)
    (old,) = secrets_of(n0)
    assert run("add", "--data-dir", n0).exit_code == 0
    new, second = secrets_of(n0)
    assert second == old
    assert "already has 2 secrets" in refusal(run("add", "--data-dir", n0))
    assert run("set", "--data-dir", n1, stdin=run("show", "--data-dir", n0).output).exit_code == 0
    assert secrets_of(n1) == (new, old)
    for directory in (n0, n1):
        assert run("drop-old", "--data-dir", directory).exit_code == 0
        assert secrets_of(directory) == (new,)
    assert "only one secret" in refusal(run("drop-old", "--data-dir", n0))


def test_replica_is_not_cut_off_by_mistake(tmp_path: Path, n0: Path) -> None:
    before = secrets_of(n0)
    assert "cut the replica off from its group" in refusal(run("set", "--data-dir", n0, stdin="ab" * 32))
    for garbage in ("", "hello", "ab" * 31, "\xff" * 64):
        assert "standard input" in refusal(run("set", "--data-dir", n0, stdin=garbage))
    assert secrets_of(n0) == before


def test_show_refuses_unreadable_secrets_with_the_remedy(tmp_path: Path, n0: Path) -> None:
    assert "no such file" in refusal(run("show", "--data-dir", tmp_path / "nowhere"))
    (n0 / FILE_NAME).chmod(0o644)
    assert "chmod 600" in refusal(run("show", "--data-dir", n0))
    assert "either --data-dir or --file" in refusal(run("show"))
    assert "either --data-dir or --file" in refusal(run("show", "--data-dir", n0, "--file", n0 / FILE_NAME))
