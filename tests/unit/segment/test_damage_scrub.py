"""Reading a log through while it is in use."""

from __future__ import annotations

import pytest

from raftlog.segment.errors import StorageCorrupt, StorageFailed
from raftlog.segment.scrub import SLICE_BYTES, Scrub, Verified
from tests.unit.segment.log_home import LogHome


def round_of(scrub: Scrub, committed: int) -> Verified:
    scrub.begin(committed)
    while not (result := scrub.step()).finished:
        assert 0 < result.nbytes <= max(SLICE_BYTES, 200_048)
    return result


@pytest.mark.parametrize("size", [10, 1000, 4040, 200_000])
def test_a_healthy_log_is_read_to_its_committed_end(size: int) -> None:
    home = LogHome(segment_bytes=4096 if size < 10_000 else 1 << 20)
    log = home.open()
    home.put(log, *[b"x" * size] * 20)
    scrub = Scrub(log)
    last = log.locate(15)
    result = round_of(scrub, 15)
    assert result.pos == last.pos + last.size
    assert round_of(scrub, 99).pos == log.end_pos
    assert scrub.verified_bytes == last.pos + last.size + log.end_pos
    assert scrub.rounds == 2
    home.put(log, b"more")
    assert round_of(scrub, 21).pos == log.end_pos
    home.close_all()


def test_damage_is_found_and_told_with_its_place(home: LogHome) -> None:
    log = home.open()
    home.put(log, *[b"x" * 52] * 100)
    home.disk.flip_bit(home.segment(4096), 560)
    scrub = Scrub(log)
    round_of(scrub, 40)
    with pytest.raises(StorageCorrupt, match="checksum of the body differs") as caught:
        round_of(scrub, 100)
    assert caught.value.physical_offset == 4596


def test_missing_file_is_damage_and_a_failing_disk_is_not(home: LogHome) -> None:
    log = home.open()
    home.put(log, *[b"x" * 4000] * 3)
    home.close_all()
    log = home.open()
    scrub = Scrub(log)
    scrub.begin(3)
    home.disk.fail("pread", 5)
    with pytest.raises(StorageFailed):
        scrub.step()
    home.disk.truncate(home.disk.open(home.segment(4096)), 1000)
    with pytest.raises(StorageCorrupt, match="segment is 1000 bytes long"):
        round_of(scrub, 3)


def test_an_empty_log_has_nothing_to_verify(home: LogHome) -> None:
    scrub = Scrub(home.open())
    assert round_of(scrub, 0) == Verified(0, 0, 0)
