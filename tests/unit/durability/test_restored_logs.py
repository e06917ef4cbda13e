"""Backups and restored logs: what the commands report as done is on the disk to the last byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaos.watched_files import UnsyncedRest, WatchedFiles, watch_files
from mq.cli import backup as backup_command
from mq.cli.app import app
from raftlog import NodeId, RealDisk, SegmentError
from raftlog.backup_restore import restore
from raftlog.segment.backup import Backup
from raftlog.segment.backup_store import DirectoryStore
from raftlog.segment.disk import ReadOnlyDisk
from tests.support.replica_directories import grow, opened

PEERS = "n0@127.0.0.1:1,n1@127.0.0.1:2"
ADDRESSES = {NodeId("n0"): "127.0.0.1:1", NodeId("n1"): "127.0.0.1:2"}
ENTRIES = 60


@pytest.fixture(autouse=True)
def keep_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs in the process of the tests, which must not lose its priority."""
    monkeypatch.setattr(backup_command, "yield_processors", lambda: None)


def command(*arguments: str | Path) -> None:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, f"{done.output}{done.exception}"


def take(target: Path, data_dir: Path) -> None:
    command("backup", target, "--data-dir", data_dir, "--namesrv", "127.0.0.1:1")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    grow(tmp_path / "n1", ENTRIES)
    return tmp_path / "n1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def lost(files: WatchedFiles) -> list[str]:
    """What a power cut would change, but for the files that are only locked."""
    return [each for each in files.undurable() if "/LOCK: " not in each]


def entries_of_backup(directory: Path) -> int:
    backup = Backup(DirectoryStore(ReadOnlyDisk(), str(directory)))
    try:
        return sum(len(run.entries) for run in backup.runs())
    finally:
        backup.close()


def test_reported_backup_survives_a_power_cut(root: Path, data_dir: Path, tmp_path: Path) -> None:
    target = root / "a" / "b" / "backup"
    with watch_files(root) as files:
        for last in (ENTRIES, ENTRIES + 30):
            grow(data_dir, last)
            log = opened(data_dir)
            take(target, data_dir)
            log.close()
            assert lost(files) == []
            for left in UnsyncedRest:
                files.leave(tmp_path / f"{last}-{left.value}", left)
                assert entries_of_backup(tmp_path / f"{last}-{left.value}" / "a" / "b" / "backup") == last


def test_power_cut_at_any_step_leaves_the_earlier_backup(root: Path, data_dir: Path, tmp_path: Path) -> None:
    take(root / "backup", data_dir)
    grow(data_dir, ENTRIES + 30)
    steps = 0
    with watch_files(root) as files:

        def cut(what: str) -> None:
            nonlocal steps
            steps += 1
            for left in UnsyncedRest:
                files.leave(tmp_path / "cut", left)
                assert entries_of_backup(tmp_path / "cut" / "backup") in (ENTRIES, ENTRIES + 30), f"before {what}"
                shutil.rmtree(tmp_path / "cut")

        files.at_each_step = cut
        take(root / "backup", data_dir)
    assert steps >= 5


def test_reported_restore_survives_a_power_cut(root: Path, data_dir: Path, tmp_path: Path) -> None:
    take(tmp_path / "backup", data_dir)
    targets = [root / "new" / "a" / "n0", root / "n1"]
    with watch_files(root) as files:
        pairs = [f"n{number}={target}" for number, target in enumerate(targets)]
        command("restore", tmp_path / "backup", *pairs, "--peers", PEERS)
        assert lost(files) == []


def test_restored_log_is_durable_to_its_last_file(root: Path, data_dir: Path, tmp_path: Path) -> None:
    """At the moment in which it counts as a log, all of it is on the disk, whatever the caller does then."""
    take(tmp_path / "backup", data_dir)
    with watch_files(root) as files:

        def cut(what: str) -> None:
            for left in UnsyncedRest:
                files.leave(tmp_path / "cut", left)
                found = entries_if_log(tmp_path / "cut" / "log")
                # No log yet, or a whole one; the entry with the new members comes last.
                assert found in (None, ENTRIES, ENTRIES + 1), f"cut before {what}, {left.value} left: {found} entries"
                shutil.rmtree(tmp_path / "cut")

        files.at_each_step = cut
        backup = Backup(DirectoryStore(ReadOnlyDisk(), str(tmp_path / "backup")))
        restore(backup, RealDisk(), str(root / "log"), node_id=NodeId("n0"), addresses=ADDRESSES)
        backup.close()
        files.at_each_step = None
        files.leave(tmp_path / "cut", UnsyncedRest.NOTHING)
        assert entries_if_log(tmp_path / "cut" / "log") == ENTRIES + 1


def entries_if_log(directory: Path) -> int | None:
    """The entries of the log in a directory; None if a replica would not take it for one."""
    from raftlog.segment import SegmentLog
    from raftlog.segment.meta import FILE_NAME, MetaFile

    if not (directory / FILE_NAME).exists() or not (directory / FILE_NAME).read_bytes():
        return None
    meta = MetaFile(RealDisk(), str(directory / FILE_NAME))
    state = meta.state
    meta.close()
    if state is None:
        return None
    try:
        log = SegmentLog.open(
            str(directory),
            cluster_id=state.cluster_id,
            node_id=state.node_id,
            segment_bytes=state.segment_bytes,
            disk=RealDisk(),
        )
    except SegmentError as error:
        pytest.fail(f"it counts as a log and cannot be opened: {error}")
    try:
        return int(log.last_index)
    finally:
        log.close()
