"""A backup of a log: extended run by run from a log in use, intact after whatever ends a run in the middle."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from chaos.disk import MemoryDisk, PowerCut
from raftlog.log_numbers import LogIndex
from raftlog.segment import EntryGone, FormatTooNew, RealDisk, StorageCorrupt, StorageFailed
from raftlog.segment.backup import Backup, BackupTarget
from raftlog.segment.backup_layouts import Snapshot
from raftlog.segment.backup_manifest import BackupManifest, decode_backup_manifest, encode_backup_manifest
from raftlog.segment.backup_store import BackupDamaged, BackupRefused, DirectoryStore
from raftlog.segment.running_log import RunningLog
from tests.unit.segment.committed_logs import body, filled, opened
from tests.unit.segment.log_home import DIRECTORY, LogHome

TARGET = "/backup"


class Operator:
    """Takes backups of a log with so many entries onto a disk of its own."""

    def __init__(self, entries: int, capacity_bytes: int | None = None) -> None:
        self.home = LogHome()
        self.log = filled(self.home, entries)
        self.disk = MemoryDisk(capacity_bytes=capacity_bytes)
        self.copied = 0

    def run(self, *, snapshot: Snapshot | None = None, now_ms: int = 1000) -> BackupManifest:
        source = RunningLog(self.home.disk, DIRECTORY)
        target = BackupTarget(DirectoryStore(self.disk, TARGET))
        self.copied = 0
        try:
            return target.extend(source, conf=b"conf", snapshot=snapshot, now_ms=now_ms, on_copy=self._count)
        finally:
            source.close()
            target.close()

    def grow(self, entries: int) -> None:
        """Let the log have so many entries, all committed."""
        self.home.put(self.log, *(body(index) for index in range(self.log.last_index + 1, entries + 1)))
        self.home.submit(self.log, commit_hint=entries)

    def bodies(self) -> list[bytes]:
        """Bodies of all entries of the backup, verified."""
        backup = Backup(DirectoryStore(self.disk, TARGET))
        try:
            return [run.body(entry) for run in backup.runs() for entry in run.entries]
        finally:
            backup.close()

    def _count(self, nbytes: int) -> None:
        self.copied += nbytes


def test_backup_of_a_running_log_has_committed_entries_only() -> None:
    operator = Operator(200)
    operator.home.put(operator.log, b"not committed")
    manifest = operator.run()
    assert manifest.last.index == 200
    assert manifest.conf == b"conf"
    assert operator.bodies() == [body(index) for index in range(1, 201)]
    assert operator.log.last_index == 201


def test_backup_files_equal_the_log_files() -> None:
    operator = Operator(200)
    operator.run()
    segments = operator.log.segments()
    assert len(segments) > 5
    for segment in segments:
        name = f"{segment.start:020d}"
        copy = operator.disk.content(f"{TARGET}/log/{name}")
        assert operator.home.disk.content(f"{DIRECTORY}/{name}")[: len(copy)] == copy


def test_second_backup_run_copies_only_new_entries() -> None:
    operator = Operator(200)
    operator.run()
    first = operator.copied
    before = {name: operator.disk.content(f"{TARGET}/log/{name}") for name in operator.disk.listdir(f"{TARGET}/log")}
    operator.grow(210)
    assert operator.run(now_ms=2000).last.index == 210
    assert operator.copied < first / 10
    assert operator.bodies() == [body(index) for index in range(1, 211)]
    for name, content in before.items():
        assert operator.disk.content(f"{TARGET}/log/{name}").startswith(content)


def test_backup_run_without_new_entries_updates_only_its_time() -> None:
    operator = Operator(20)
    first = operator.run()
    assert operator.run(now_ms=2000) == replace(first, taken_at_ms=2000)
    assert operator.copied == 0
    assert len(operator.bodies()) == 20


def test_any_replica_can_continue_a_backup() -> None:
    operator, other = Operator(100), Operator(100)
    operator.run()
    other.grow(101)
    operator.home = other.home
    assert operator.run().last.index == 101


def test_full_target_leaves_the_backup_unchanged() -> None:
    operator = Operator(100, capacity_bytes=20_000)
    operator.run()
    operator.grow(300)
    with pytest.raises(StorageFailed, match="No space left"):
        operator.run()
    assert operator.bodies() == [body(index) for index in range(1, 101)]


@pytest.mark.parametrize("first", [True, False])
def test_next_backup_run_frees_space_of_an_aborted_run(first: bool) -> None:
    operator = Operator(100)
    if not first:
        operator.run()
    used = operator.disk.used_bytes
    operator.grow(300)
    operator.disk.capacity_bytes = 40_000
    with pytest.raises(StorageFailed, match="No space left"):
        operator.run()
    assert operator.disk.used_bytes > used + 10_000
    operator.disk.capacity_bytes = None
    BackupTarget(DirectoryStore(operator.disk, TARGET)).close()
    assert operator.disk.used_bytes == used
    operator.run()
    assert operator.bodies() == [body(index) for index in range(1, 301)]


@pytest.mark.parametrize("entries", [20, 100])
def test_target_that_disappears_midway_leaves_no_backup(tmp_path: Path, entries: int) -> None:
    home = LogHome()
    filled(home, entries)
    source, target = (
        RunningLog(home.disk, DIRECTORY),
        BackupTarget(DirectoryStore(RealDisk(), str(tmp_path / "backup"))),
    )
    with pytest.raises(StorageFailed, match="No such file"):
        target.extend(source, conf=b"", snapshot=None, now_ms=1, on_copy=lambda nbytes: shutil.rmtree(target.name))
    source.close()
    target.close()
    assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("start", [0, 4096, 8192])
def test_missing_files_of_a_backup_are_detected_by_the_next_run(start: int) -> None:
    operator = Operator(60)
    operator.run()
    operator.disk.unlink(f"{TARGET}/log/{start:020d}")
    operator.grow(61)
    with pytest.raises((BackupDamaged, StorageFailed), match=f"{start:020d}.*(missing|No such file)"):
        operator.run()


def test_truncated_unfinished_backup_file_is_detected_by_the_next_run() -> None:
    operator = Operator(60)
    operator.run()
    fd = operator.disk.open(f"{TARGET}/log/{8192:020d}")
    operator.disk.truncate(fd, 100)
    operator.disk.close(fd)
    operator.grow(61)
    with pytest.raises(BackupDamaged, match="it has 100 bytes, but"):
        operator.run()


@pytest.mark.parametrize("operations", range(1, 60, 3))
def test_power_cut_midway_leaves_the_backup_unchanged_or_finished(operations: int) -> None:
    operator = Operator(60)
    operator.run()
    operator.grow(200)
    operator.disk.cut_power_after(operations)
    try:
        operator.run()
    except PowerCut:
        pass
    operator.disk.crash(Random(operations))
    operator.disk.cancel_power_cut()
    assert len(operator.bodies()) in (60, 200)
    assert operator.run().last.index == 200
    assert operator.bodies() == [body(index) for index in range(1, 201)]


def test_restarted_log_does_not_continue_a_backup() -> None:
    operator, other, foreign = Operator(100), LogHome(), LogHome()
    operator.run()
    log = opened(other)
    other.put(log, *(b"another" for _ in range(150)))
    other.submit(log, commit_hint=150)
    foreign.put(opened(foreign, cluster_id="foreign"), body(1))
    for home, reason in (
        (other, "another entry 100"),
        (Operator(50).home, "that replica is behind"),
        (foreign, "it belongs to log"),
    ):
        operator.home = home
        with pytest.raises(BackupRefused, match=reason):
            operator.run()


def test_log_without_its_beginning_needs_a_snapshot() -> None:
    operator = Operator(200)
    segments = operator.log.segments()
    operator.log.drop_prefix(segments[2].start, b"conf")
    operator.home.submit(operator.log)
    with pytest.raises(BackupRefused, match="there is no checkpoint"):
        operator.run()
    manifest = operator.run(snapshot=Snapshot(LogIndex(150), b"state"))
    assert (manifest.base.index + 1, manifest.snapshot_index) == (segments[2].first_index, 150)
    backup = Backup(DirectoryStore(operator.disk, TARGET))
    assert backup.snapshot() == b"state"
    backup.close()
    assert operator.bodies()[0] == body(segments[2].first_index)
    operator.disk.flip_bit(f"{TARGET}/snapshot", 2)
    with pytest.raises(BackupDamaged, match="snapshot"):
        Backup(DirectoryStore(operator.disk, TARGET)).snapshot()


def test_gap_between_backup_and_log_needs_a_new_backup() -> None:
    operator = Operator(20)
    operator.run()
    operator.grow(200)
    operator.log.drop_prefix(operator.log.segments()[4].start, b"conf")
    operator.home.submit(operator.log)
    with pytest.raises(BackupRefused, match="begin a new backup"):
        operator.run()
    assert len(operator.bodies()) == 20


def test_retention_that_overtakes_a_backup_is_reported() -> None:
    home = LogHome()
    log = filled(home, 200)
    source, target = RunningLog(home.disk, DIRECTORY), BackupTarget(DirectoryStore(MemoryDisk(), TARGET))
    log.drop_prefix(log.segments()[4].start, b"conf")
    home.submit(log)
    with pytest.raises(EntryGone):
        target.extend(source, conf=b"", snapshot=None, now_ms=1)
    target.close()


def test_damage_to_the_log_ends_the_run() -> None:
    operator = Operator(100)
    operator.home.disk.flip_bit(f"{DIRECTORY}/{0:020d}", 200)
    with pytest.raises(StorageCorrupt):
        operator.run()
    operator.log.close()


@pytest.mark.parametrize("name", ["log/00000000000000000000", "log/00000000000000004096"])
def test_backup_detects_every_flipped_bit(name: str) -> None:
    operator = Operator(60)
    operator.run()
    path = f"{TARGET}/{name}"
    for offset in range(0, len(operator.disk.content(path)), 97):
        operator.disk.flip_bit(path, offset)
        with pytest.raises(BackupDamaged):
            operator.bodies()
        operator.disk.flip_bit(path, offset)
    assert len(operator.bodies()) == 60


def test_missing_file_of_a_backup_is_reported() -> None:
    operator = Operator(100)
    operator.run()
    operator.disk.unlink(f"{TARGET}/log/{4096:020d}")
    with pytest.raises(BackupDamaged, match=r"0{16}4096: damaged: it is missing"):
        operator.bodies()


def test_damaged_or_newer_manifest_is_refused() -> None:
    manifest = Operator(10).run()
    data = encode_backup_manifest(manifest)
    assert decode_backup_manifest(data) == manifest
    with pytest.raises(ValueError, match="checksum"):
        decode_backup_manifest(data.replace(b'"segment_bytes":4096', b'"segment_bytes":4097'))
    for damaged in (b"", b"{}", data[:-20], b"\xff" + data):
        with pytest.raises(ValueError):
            decode_backup_manifest(damaged)
    with pytest.raises(
        FormatTooNew, match="format version 3, and this version of the software understands none above 2"
    ):
        decode_backup_manifest(encode_backup_manifest(replace(manifest, format=3)))


def test_impossible_manifest_is_refused() -> None:
    manifest = Operator(10).run()
    for wrong in (replace(manifest, segment_bytes=0), replace(manifest, last=replace(manifest.last, pos=2**63))):
        with pytest.raises(ValueError, match="invalid backup"):
            decode_backup_manifest(encode_backup_manifest(wrong))


def test_directory_with_something_else_is_refused() -> None:
    operator = Operator(10)
    operator.disk.mkdir(TARGET)
    operator.disk.close(operator.disk.open(os.path.join(TARGET, "thesis.tex"), create=True))
    with pytest.raises(BackupRefused, match=r"thesis\.tex"):
        operator.run()


def test_two_runs_at_once_are_refused() -> None:
    operator = Operator(10)
    target = BackupTarget(DirectoryStore(operator.disk, TARGET))
    with pytest.raises(BackupRefused, match="another process"):
        operator.run()
    target.close()
    operator.run()
