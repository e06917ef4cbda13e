"""Reading a log through while it is in use."""

from __future__ import annotations

import errno

import pytest

from chaos.disk import MemoryDisk
from raftlog.log_numbers import LogIndex
from raftlog.segment.errors import StorageCorrupt, StorageFailed
from raftlog.segment.scrub import SLICE_BYTES, Scrub, Verified
from tests.unit.segment.log_home import LogHome


def round_of(scrub: Scrub, committed: int) -> Verified:
    scrub.begin(LogIndex(committed))
    while not (result := scrub.step()).finished:
        assert 0 < result.nbytes < SLICE_BYTES + 200_048
    return result


@pytest.mark.parametrize("size", [10, 1000, 4040, 200_000])
def test_healthy_log_is_read_to_its_committed_end(size: int) -> None:
    home = LogHome(segment_bytes=4096 if size < 10_000 else 1 << 20)
    log = home.open()
    home.put(log, *[b"x" * size] * 20)
    scrub = Scrub(log)
    last = log.locate(LogIndex(15))
    result = round_of(scrub, 15)
    assert result.pos == last.pos + last.size
    assert round_of(scrub, 99).pos == log.end_pos
    assert scrub.verified_bytes == last.pos + last.size + log.end_pos
    assert scrub.rounds == 2
    home.put(log, b"more")
    assert round_of(scrub, 21).pos == log.end_pos
    home.close_all()


def test_scrub_reports_the_position_of_damage(home: LogHome) -> None:
    log = home.open()
    home.put(log, *[b"x" * 52] * 100)
    home.disk.flip_bit(home.segment(4096), 560)
    scrub = Scrub(log)
    round_of(scrub, 40)
    with pytest.raises(StorageCorrupt, match="checksum of the body differs") as caught:
        round_of(scrub, 100)
    assert caught.value.physical_offset == 4596


def test_scrub_counts_lost_data_but_not_failing_disks_as_damage(home: LogHome) -> None:
    log = home.open()
    home.put(log, *[b"x" * 4000] * 3)
    home.close_all()
    log = home.open()
    scrub = Scrub(log)
    scrub.begin(LogIndex(3))
    home.disk.fail("pread", errno.EMFILE)
    with pytest.raises(StorageFailed):
        scrub.step()
    home.disk.fail("pread", errno.EIO)
    with pytest.raises(StorageCorrupt, match="the disk cannot read it"):
        scrub.step()
    home.disk.truncate(home.disk.open(home.segment(4096)), 1000)
    with pytest.raises(StorageCorrupt, match="segment is 1000 bytes long"):
        round_of(scrub, 3)


def test_empty_log_has_nothing_to_verify(home: LogHome) -> None:
    scrub = Scrub(home.open())
    assert round_of(scrub, 0) == Verified(0, 0, 0)


class CachingDisk(MemoryDisk):
    """A disk below a page cache that still has what was written, whatever happened to the disk since."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, bytes] = {}
        self.forgets = True

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        for path, content in self.cache.items():
            if self._open[fd] is self._files.get(path):
                return content[offset : offset + length]
        return super().pread(fd, length, offset)

    def pread_disk(self, fd: int, length: int, offset: int) -> tuple[bytes, bool]:
        return (super().pread(fd, length, offset), True) if self.forgets else (self.pread(fd, length, offset), False)


def test_scrub_finds_damage_hidden_by_the_page_cache() -> None:
    disk = CachingDisk()
    home = LogHome(disk=disk)
    log = home.open()
    home.put(log, *[b"x" * 52] * 100)
    disk.cache[home.segment(4096)] = disk.content(home.segment(4096))
    disk.flip_bit(home.segment(4096), 560)
    with pytest.raises(StorageCorrupt, match="checksum of the body differs"):
        round_of(Scrub(log), 100)
    home.close_all()


def test_scrub_counts_bytes_from_disk_separately() -> None:
    disk = CachingDisk()
    home = LogHome(disk=disk)
    log = home.open()
    home.put(log, *[b"x" * 52] * 100)
    scrub = Scrub(log)
    round_of(scrub, 100)
    assert scrub.disk_bytes == scrub.verified_bytes == log.end_pos
    disk.forgets = False
    round_of(scrub, 100)
    assert scrub.verified_bytes == 2 * log.end_pos
    assert scrub.disk_bytes == log.end_pos
    home.close_all()
