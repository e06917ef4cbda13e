"""`raftmq backup` on directories of replicas that are open."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mq.cli import backup as command
from mq.cli.app import app
from mq.cli.errors import EXIT_FAILED, EXIT_REFUSED, CommandFailed
from raftlog import RealDisk
from raftlog.segment import StorageFailed
from raftlog.segment.backup import BackupTarget
from raftlog.segment.backup_store import DirectoryStore
from raftlog.segment.copy_rate import CATCH_UP_SECONDS
from tests.support.replica_directories import grow, opened

NOBODY = "127.0.0.1:1"
"""No name server listens there."""


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    grow(tmp_path / "n1", 100)
    log = opened(tmp_path / "n1")
    yield tmp_path / "n1"
    log.close()


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["backup", *map(str, args)])


def taken(directory: Path, data_dir: Path, *more: str) -> Result:
    return run(directory, "--data-dir", data_dir, "--namesrv", NOBODY, *more)


def refusal(result: Result) -> CommandFailed:
    assert isinstance(result.exception, CommandFailed), result.output
    return result.exception


def test_backup_of_a_log_in_use_is_taken_and_intact(data_dir: Path, tmp_path: Path) -> None:
    result = taken(tmp_path / "backup", data_dir)
    assert result.exit_code == 0, result.output
    assert f"there is no backup in {tmp_path / 'backup'}: starting a new one" in result.stderr
    assert f"{tmp_path / 'backup'}: started a new backup: 100 new entries" in result.stdout
    assert "entries 1 to 100" in run("verify", tmp_path / "backup").output


class Clock:
    """Time that passes only by sleeping, and when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def test_copy_keeps_its_rate_after_a_pause() -> None:
    """After a second in which the disk hung or the process was stopped, it must not copy twice as fast."""
    clock = Clock()
    pace = command.Pace(1000.0, clock=clock.read, sleep=clock.sleep)
    for _ in range(20):
        pace.on_copy(100)
    assert clock.slept == pytest.approx(2.0)
    clock.now += 60.0
    for _ in range(20):
        pace.on_copy(100)
    assert clock.slept == pytest.approx(4.0 - CATCH_UP_SECONDS)
    assert pace.nbytes == 4000


def test_backup_yields_the_processors_to_brokers() -> None:
    """In a process of its own, since a priority does not come back."""
    text = "import os; from mq.cli.backup import yield_processors as y; y(); y(); print(os.nice(0))"
    done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    assert int(done.stdout) >= command.NICE


def test_second_backup_run_reports_copied_bytes(tmp_path: Path) -> None:
    grow(tmp_path / "n1", 100)
    taken(tmp_path / "backup", tmp_path / "n1")
    grow(tmp_path / "n1", 110)
    found = json.loads(taken(tmp_path / "backup", tmp_path / "n1", "--json").stdout)
    assert (found["new_entries"], found["last_index"]) == (10, 110)
    assert found["copied_bytes"] < 10 * 200
    assert not found["is_new"]
    assert "continued the backup: 0 new entries" in taken(tmp_path / "backup", tmp_path / "n1").stdout


def test_unreachable_name_servers_do_not_prevent_a_copy(data_dir: Path, tmp_path: Path) -> None:
    result = taken(tmp_path / "backup", data_dir)
    assert "does not say whether n1 is the leader" in result.stderr


def test_leader_copies_nothing_without_the_leader_option(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_leads", lambda source, namesrv: True)
    failed = refusal(taken(tmp_path / "backup", data_dir))
    assert failed.exit_code == command.EXIT_LEADS
    assert "n1 leads its group, nothing was copied" in str(failed)
    assert not (tmp_path / "backup").exists()
    assert taken(tmp_path / "backup", data_dir, "--leader").exit_code == 0


def test_damaged_backup_ends_with_code_1(data_dir: Path, tmp_path: Path) -> None:
    taken(tmp_path / "backup", data_dir)
    with open(tmp_path / "backup" / "log" / f"{4096:020d}", "r+b") as file:
        file.seek(300)
        file.write(b"\xff")
    failed = refusal(run("verify", tmp_path / "backup"))
    assert failed.exit_code == EXIT_FAILED
    assert "damaged" in str(failed)


def test_directory_without_a_backup_is_reported(tmp_path: Path) -> None:
    failed = refusal(run("verify", tmp_path))
    assert failed.exit_code == EXIT_REFUSED
    assert "the location contains no backup" in str(failed)


def test_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    assert "the directory contains no log" in str(refusal(taken(tmp_path / "backup", tmp_path / "nothing")))


def test_lack_of_space_is_reported_before_copying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(tmp_path / "n1", 100)
    taken(tmp_path / "backup", tmp_path / "n1")
    grow(tmp_path / "n1", 200)
    monkeypatch.setattr(BackupTarget, "free_bytes", lambda self: 1000)
    failed = refusal(taken(tmp_path / "backup", tmp_path / "n1"))
    assert "only 1000" in str(failed)
    assert "is unchanged: entries 1 to 100" in str(failed)
    assert run("verify", tmp_path / "backup").exit_code == 0


def test_full_target_keeps_the_earlier_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(tmp_path / "n1", 100)
    taken(tmp_path / "backup", tmp_path / "n1")
    grow(tmp_path / "n1", 200)

    def full(self: RealDisk, fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RealDisk, "fdatasync", full)
    failed = refusal(taken(tmp_path / "backup", tmp_path / "n1"))
    monkeypatch.undo()
    assert failed.exit_code == EXIT_FAILED
    assert isinstance(failed.__cause__, StorageFailed)
    assert "No space left on device" in str(failed)
    assert "is unchanged: entries 1 to 100" in str(failed)
    assert "entries 1 to 100" in run("verify", tmp_path / "backup").output


def test_report_does_not_call_a_vanished_target_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(tmp_path / "n1", 100)
    taken(tmp_path / "backup", tmp_path / "n1")
    grow(tmp_path / "n1", 200)
    append = DirectoryStore.append

    def removed(self: DirectoryStore, name: str, offset: int, pieces: Iterable[bytes]) -> None:
        shutil.rmtree(tmp_path / "backup")
        append(self, name, offset, pieces)

    monkeypatch.setattr(DirectoryStore, "append", removed)
    failed = refusal(taken(tmp_path / "backup", tmp_path / "n1"))
    assert failed.exit_code == EXIT_FAILED
    assert "No such file or directory" in str(failed)
    assert f"The backup that was in {tmp_path / 'backup'} is no longer there: is the target mounted?" in str(failed)
