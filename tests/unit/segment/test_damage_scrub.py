"""Reading a log through while it is in use, and which bytes of a damaged one are named."""

from __future__ import annotations

import errno

import pytest

from chaos.disk import MemoryDisk
from raftlog.log_numbers import LogIndex
from raftlog.segment import LogDamaged
from raftlog.segment.codec import HEADER, HEADER_BYTES
from raftlog.segment.errors import StorageCorrupt, StorageFailed
from raftlog.segment.scrub import SLICE_BYTES, Scrub, ScrubResult
from tests.unit.segment.log_home import LogHome


def round_of(scrub: Scrub, committed: int) -> ScrubResult:
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


def test_scrub_reports_unreadable_data_but_not_failing_calls_as_damage(home: LogHome) -> None:
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
    with pytest.raises(StorageCorrupt, match="the segment file ends after 1000 bytes"):
        round_of(scrub, 3)


def test_empty_log_has_nothing_to_verify(home: LogHome) -> None:
    scrub = Scrub(home.open())
    assert round_of(scrub, 0) == ScrubResult(0, 0, 0)


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


BODY = b"b" * 52
SIZE = HEADER_BYTES + len(BODY)


@pytest.fixture
def full(home: LogHome) -> LogHome:
    """130 entries of 100 bytes in four files, 40 each in the first three, closed in order."""
    log = home.open()
    home.put(log, *[BODY] * 130, term=3)
    home.submit(log, commit_hint=130)
    log.close(clean=True)
    return home


def flip(home: LogHome, index: int, offset: int) -> None:
    pos = position(index) + offset
    home.disk.flip_bit(home.segment(pos - pos % 4096), pos % 4096)


def position(index: int) -> int:
    return (index - 1) // 40 * 4096 + (index - 1) % 40 * SIZE


def found(home: LogHome) -> list[tuple[int, int, int | None]]:
    """Each range as start, end, and index of the entry behind it."""
    home.distrust()
    with pytest.raises(LogDamaged) as caught:
        home.open()
    return [
        (damage.pos, damage.end, None if damage.behind is None else damage.behind.index)
        for damage in caught.value.ranges
    ]


@pytest.mark.parametrize("offset", [0, 5, 12, 20, 30, 35, 38, 41, 47, 48, 99])
def test_one_flipped_bit_condemns_one_entry(full: LogHome, offset: int) -> None:
    """Whatever field it hits: the entry behind shows where the damage ends."""
    flip(full, 7, offset)
    assert found(full) == [(position(7), position(8), 8)]


def test_several_places_are_several_ranges(full: LogHome) -> None:
    for index in (3, 4, 41, 100):
        flip(full, index, 60)
    # Where a file begins with a bad entry, the range begins at the last good one's end, before the blank.
    assert found(full) == [(200, 400, 5), (4000, 4196, 42), (position(100), position(101), 101)]


def test_verify_finds_a_damaged_blank(full: LogHome) -> None:
    full.disk.flip_bit(full.segment(), 4003)
    assert found(full) == [(4000, 4096, 41)]


def test_missing_file_between_two_others(full: LogHome) -> None:
    full.disk.unlink(full.segment(4096))
    assert found(full) == [(4000, 8192, 81)]


def test_damage_up_to_the_end_has_no_next_good_entry(full: LogHome) -> None:
    end = position(130) + SIZE
    flip(full, 130, 60)
    assert found(full) == [(position(130), end, None)]
    full.disk.unlink(full.segment(3 * 4096))
    assert found(full) == [(8192 + 4000, end, None)]


def test_entry_outside_the_checksum_chain_is_damaged(full: LogHome) -> None:
    """Entry 8 is whole, but the chain in its header is not the one that entry 9 continues."""
    flip(full, 7, 60)
    flip(full, 8, 37)
    assert found(full) == [(position(7), position(9), 9)]


def test_torn_end_behind_a_damaged_range_is_not_damage(home: LogHome) -> None:
    log = home.open()
    home.put(log, *[BODY] * 10)
    log.close(clean=True)
    flip(home, 3, 60)
    header = HEADER.pack(1, 200, 11, 1, 1000, 1, 0, 0, 152)
    home.disk.overwrite(home.segment(), 1000, header + b"torn")
    assert found(home) == [(200, 300, 4)]


def test_unknown_files_are_not_changed(home: LogHome) -> None:
    for name in ("README", "00000000000000000123", "000000000000000099999999999999"):
        home.disk.mkdir("/data/log")
        home.disk.open(f"/data/log/{name}", create=True)
    log = home.open()
    home.put(log, *[BODY] * 100)
    log.truncate(LogIndex(2))
    home.submit(log)
    assert {"README", "00000000000000000123"} <= set(home.disk.listdir("/data/log"))
