"""What a `Disk` promises, asked of the real one and of the one in memory; and how the latter forgets."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chaos.disk import SECTOR_BYTES, MemoryDisk, PowerCut
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL, Preallocation, SegmentLog
from raftlog.segment.disk import Disk, RealDisk, write_fully


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    disk: Disk = RealDisk() if request.param == "real" else MemoryDisk()
    root = str(tmp_path) if request.param == "real" else "/root"
    disk.mkdir(root)
    return disk, root


def test_disk_reads_written_bytes(place: tuple[Disk, str]) -> None:
    disk, root = place
    fd = disk.open(f"{root}/file", create=True)
    assert disk.size(fd) == 0
    assert disk.pwritev(fd, [b"ab", memoryview(b"cd"), bytearray(b"ef"), b""], 3) == 6
    disk.fdatasync(fd)
    assert disk.pread(fd, 100, 0) == b"\0\0\0abcdef"
    assert disk.pread(fd, 2, 4) == b"bc"
    assert disk.pread(fd, 2, 9) == b""
    other = disk.open(f"{root}/file")
    assert disk.pread(other, 100, 3) == b"abcdef"
    disk.close(fd)
    disk.close(other)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.pread(fd, 1, 0)


def test_disk_allocates_and_truncates_files(place: tuple[Disk, str]) -> None:
    disk, root = place
    fd = disk.open(f"{root}/file", create=True)
    disk.allocate(fd, 1000)
    assert disk.pread(fd, 2000, 0) == bytes(1000)
    disk.allocate(fd, 500)
    assert disk.size(fd) == 1000
    disk.pwritev(fd, [b"x" * 1000], 0)
    disk.truncate(fd, 10)
    disk.truncate(fd, 20)
    assert disk.pread(fd, 100, 0) == b"x" * 10 + bytes(10)
    disk.close(fd)


def test_disk_lists_renames_and_removes_files(place: tuple[Disk, str]) -> None:
    disk, root = place
    assert disk.listdir(root) == []
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/a")
    fd = disk.open(f"{root}/a", create=True)
    disk.pwritev(fd, [b"content"], 0)
    disk.close(disk.open(f"{root}/b", create=True))
    disk.rename(f"{root}/a", f"{root}/b")
    disk.sync_directory(root)
    assert disk.listdir(root) == ["b"]
    disk.unlink(f"{root}/b")
    assert disk.listdir(root) == []
    assert disk.pread(fd, 7, 0) == b"content", "open descriptors keep the content"
    disk.close(fd)
    with pytest.raises(FileNotFoundError):
        disk.unlink(f"{root}/b")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/b", f"{root}/c")


def test_disk_makes_and_lists_directories(place: tuple[Disk, str]) -> None:
    disk, root = place
    disk.mkdir(f"{root}/x/y/z")
    disk.mkdir(f"{root}/x/y/z")
    assert disk.listdir(f"{root}/x/y/z") == []
    disk.close(disk.open(f"{root}/file", create=True))
    for path in (f"{root}/file", f"{root}/file/below"):
        with pytest.raises(FileExistsError):
            disk.mkdir(path)
    with pytest.raises(IsADirectoryError):
        disk.open(f"{root}/x")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/nowhere/file", create=True)


def test_second_descriptor_cannot_lock_file(place: tuple[Disk, str]) -> None:
    disk, root = place
    first = disk.open(f"{root}/lock", create=True)
    second = disk.open(f"{root}/lock")
    disk.lock(first)
    disk.lock(first)
    with pytest.raises(BlockingIOError):
        disk.lock(second)
    disk.close(first)
    disk.lock(second)
    disk.close(second)


def test_too_many_buffers_are_refused_and_write_fully_copes(place: tuple[Disk, str]) -> None:
    disk, root = place
    fd = disk.open(f"{root}/file", create=True)
    buffers = [b"%04d" % number for number in range(2500)]
    with pytest.raises(OSError, match="Invalid argument"):
        disk.pwritev(fd, buffers, 0)
    write_fully(disk.pwritev, fd, buffers, 7)
    assert disk.pread(fd, 20_000, 7) == b"".join(buffers)
    disk.close(fd)


def test_boot_id_is_same_on_each_call(place: tuple[Disk, str]) -> None:
    disk, _ = place
    assert disk.boot_id() == disk.boot_id() != ""


def synced_file(content: bytes) -> tuple[MemoryDisk, int]:
    disk = MemoryDisk()
    fd = disk.open("/file", create=True)
    disk.pwritev(fd, [content], 0)
    disk.fdatasync(fd)
    disk.sync_directory("/")
    return disk, fd


def test_crash_keeps_any_subset_of_unsynced_sectors() -> None:
    kept: set[tuple[bool, ...]] = set()
    for seed in range(200):
        disk, fd = synced_file(bytes(4 * SECTOR_BYTES))
        disk.pwritev(fd, [b"x" * (3 * SECTOR_BYTES)], SECTOR_BYTES // 2)
        disk.crash(random.Random(seed))
        content = disk.content("/file")
        pieces = (content[256:512], content[512:1024], content[1024:1536], content[1536:1792])
        assert all(set(piece) in ({0}, {ord("x")}) for piece in pieces), "a sector is kept whole or not at all"
        assert not any(content[:256])
        assert not any(content[1792:])
        kept.add(tuple(bool(piece[0]) for piece in pieces))
    assert len(kept) == 16


def test_crash_keeps_synced_bytes_and_closes_descriptors() -> None:
    for seed in range(20):
        disk, fd = synced_file(b"old" * 1000)
        before = disk.boot_id()
        disk.crash(random.Random(seed))
        assert disk.content("/file") == b"old" * 1000
        assert disk.boot_id() != before
        with pytest.raises(OSError, match="Bad file descriptor"):
            disk.pread(fd, 1, 0)


def test_crash_may_lose_names_that_no_directory_sync_covered() -> None:
    outcomes: set[tuple[str, ...]] = set()
    for seed in range(50):
        disk, _ = synced_file(b"x")
        disk.close(disk.open("/new", create=True))
        disk.rename("/file", "/renamed")
        disk.crash(random.Random(seed))
        outcomes.add(tuple(sorted(disk.listdir("/"))))
    assert outcomes == {("file",), ("file", "new"), ("renamed",), ("new", "renamed")}


def test_kill_keeps_everything_but_locks() -> None:
    disk, fd = synced_file(b"x")
    disk.lock(fd)
    disk.pwritev(fd, [b"unsynced"], 0)
    disk.kill()
    again = disk.open("/file")
    disk.lock(again)
    assert disk.pread(again, 8, 0) == b"unsynced"


def test_power_cut_ends_everything_until_the_crash() -> None:
    disk, fd = synced_file(b"x")
    disk.cut_power_after(1)
    disk.pwritev(fd, [b"y"], 0)
    for _ in range(2):
        with pytest.raises(PowerCut):
            disk.fdatasync(fd)
    disk.crash(random.Random(0))
    disk.fdatasync(disk.open("/file"))


def test_full_disk_writes_only_the_fitting_bytes() -> None:
    disk = MemoryDisk(capacity_bytes=10)
    fd = disk.open("/file", create=True)
    assert disk.pwritev(fd, [b"12345678"], 0) == 8
    assert disk.pwritev(fd, [b"12345678"], 8) == 2
    with pytest.raises(OSError, match="No space left"):
        disk.pwritev(fd, [b"1"], 10)
    assert disk.pwritev(fd, [b"abc"], 0) == 3, "overwriting needs no room"
    with pytest.raises(OSError, match="No space left"):
        disk.allocate(fd, 11)
    with pytest.raises(OSError, match="No space left"):
        write_fully(disk.pwritev, fd, [b"abc", b"def"], 8)


def test_faults_strike_once_and_in_time() -> None:
    disk, fd = synced_file(b"x")
    disk.fail("fdatasync", errno.EIO, after=1)
    disk.fdatasync(fd)
    with pytest.raises(OSError, match="Input/output error"):
        disk.fdatasync(fd)
    disk.fdatasync(fd)


def test_synced_write_can_be_read_back(place: tuple[Disk, str]) -> None:
    disk, root = place
    fd = disk.open(f"{root}/file", create=True)
    assert disk.write_synced(fd, [b"ab", memoryview(b"cd")], 2) == 4
    assert disk.pread(fd, 10, 0) == b"\0\0abcd"
    disk.close(fd)


def test_only_synced_writes_certainly_survive_a_crash() -> None:
    for seed in range(30):
        disk = MemoryDisk()
        disk.mkdir("/d")
        fd = disk.open("/d/file", create=True)
        disk.sync_directory("/d")
        disk.write_synced(fd, [b"kept"], 0)
        disk.crash(random.Random(seed))
        fd = disk.open("/d/file")
        assert disk.pread(fd, 4, 0) == b"kept"


def test_usage_is_free_and_total(place: tuple[Disk, str]) -> None:
    disk, root = place
    free, total = disk.usage(root)
    assert 0 < free <= total
    with pytest.raises(FileNotFoundError):
        disk.usage(root + "/missing")


def test_disk_usage_follows_file_sizes() -> None:
    disk = MemoryDisk(capacity_bytes=1000)
    fd = disk.open("/file", create=True)
    disk.pwritev(fd, [bytes(300)], 0)
    assert disk.usage("/") == (700, 1000)


def test_ranges_of_data_leave_out_nothing_that_was_written(place: tuple[Disk, str]) -> None:
    disk, root = place
    fd = disk.open(f"{root}/file", create=True)
    disk.allocate(fd, 1024 * 1024)
    written = (10, 300_000, 700_000, 1024 * 1024 - 1)
    for offset in written:
        write_fully(disk.pwritev, fd, [b"x"], offset)
    for begin, end in ((0, 1024 * 1024), (11, 700_000), (300_000, 300_001), (900_000, 2**21)):
        ranges = disk.data_ranges(fd, begin, end)
        assert all(begin <= low < high <= end for low, high in ranges)
        assert ranges == sorted(ranges)
        for offset in written:
            assert any(low <= offset < high for low, high in ranges) == (begin <= offset < end), (begin, end, offset)
    disk.close(fd)


class CountingDisk(RealDisk):
    """Counts the bytes that are read."""

    nbytes = 0

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        data = super().pread(fd, length, offset)
        self.nbytes += len(data)
        return data


def test_reserved_rest_of_a_file_is_not_read_after_a_crash(tmp_path: Path) -> None:
    disk = CountingDisk()
    given: dict[str, Any] = {"cluster_id": "c", "node_id": "n1", "segment_bytes": 64 * 1024 * 1024, "disk": disk}
    log = SegmentLog.open(str(tmp_path), preallocation=Preallocation.RESERVE, **given)
    log.append(NORMAL, LogIndex(1), Term(1), b"body" * 1000)
    log.submit(1)
    log.close(clean=False)
    disk.nbytes = 0
    log = SegmentLog.open(str(tmp_path), preallocation=Preallocation.RESERVE, **given)
    assert log.last_index == 1
    log.close(clean=False)
    assert 4000 < disk.nbytes < 8 * 1024 * 1024


@pytest.mark.parametrize("synced_write", [True, False])
def test_power_cut_after_a_failed_sync_restores_old_content(synced_write: bool) -> None:
    disk, fd = synced_file(bytes(2000))
    disk.fail("fdatasync", errno.EIO)

    def write() -> None:
        if synced_write:
            disk.write_synced(fd, [b"x" * 1000], 0)
        else:
            disk.pwritev(fd, [b"x" * 1000], 0)
            disk.fdatasync(fd)

    with pytest.raises(OSError, match="Input/output error"):
        write()
    disk.fdatasync(fd)
    disk.write_synced(fd, [b"y"], 1900)
    assert disk.content("/file")[:1000] == b"x" * 1000, "the cache keeps it"
    assert disk.durable("/file", 0, 1000) == bytes(1000), "a later sync does not write it"
    disk.kill()
    fd = disk.open("/file")
    disk.fdatasync(fd)
    assert disk.pread(fd, 1000, 0) == b"x" * 1000
    assert disk.has_lost
    survived = set()
    for seed in range(30):
        again, fd = synced_file(bytes(2000))
        again.fail("fdatasync", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            again.write_synced(fd, [b"x" * 1000], 0)
        again.write_synced(fd, [b"y"], 1900)
        again.crash(random.Random(seed))
        content = again.content("/file")
        assert content[1900:1901] == b"y"
        survived.add((content[0], content[600]))
    assert (0, 0) in survived, "nothing of it is on the disk for certain"
    assert len(survived) > 1, "part of it may have got there all the same"


def test_bytes_of_a_failed_sync_are_durable_when_written_again() -> None:
    disk, fd = synced_file(bytes(2000))
    disk.fail("fdatasync", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.write_synced(fd, [b"x" * 1000], 0)
    disk.write_synced(fd, [disk.pread(fd, 1000, 0)], 0)
    disk.crash(random.Random(1))
    assert disk.content("/file") == b"x" * 1000 + bytes(1000)


def test_eviction_drops_bytes_of_failed_syncs_and_keeps_dirty_bytes() -> None:
    outcomes = set()
    for seed in range(30):
        disk, fd = synced_file(bytes(4000))
        disk.fail("fdatasync", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            disk.write_synced(fd, [b"x" * 1024], 0)
        disk.pwritev(fd, [b"dirty"], 3000)
        disk.evict(random.Random(seed))
        assert not disk.has_lost
        before = disk.content("/file")
        outcomes.add(before[:1024].count(b"x"))
        assert before[3000:3005] == b"dirty"
        disk.fdatasync(fd)
        disk.crash(random.Random(seed))
        assert disk.content("/file") == before, "what is read after an eviction is on the disk"
    assert 0 in outcomes
    assert outcomes <= {0, 512, 1024}


def test_write_fully_continues_after_a_partial_write() -> None:
    content = bytearray(30)

    def write_some(fd: int, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
        data = b"".join(buffers)[:3]
        content[offset : offset + len(data)] = data
        return len(data)

    write_fully(write_some, 0, [b"abcd", b"", b"efgh", b"i"], 5)
    assert bytes(content).strip(b"\0") == b"abcdefghi"
    assert content.index(b"a") == 5
