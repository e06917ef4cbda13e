"""Reading a log through while it is in use."""

from __future__ import annotations

import pytest

from raftlog.segment.errors import StorageFailed
from raftlog.segment.recovery import decode_damaged, encode_damaged
from raftlog.segment.scrub import SLICE_BYTES, Scrub, ScrubResult
from tests.unit.segment.log_home import LogHome


def round_of(scrub: Scrub, committed: int) -> ScrubResult:
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
    assert (result.pos, result.damage) == (last.pos + last.size, None)
    assert round_of(scrub, 99).pos == log.end_pos
    assert scrub.verified_bytes == last.pos + last.size + log.end_pos
    assert (scrub.rounds, scrub.damage_found) == (2, 0)
    home.put(log, b"more")
    assert round_of(scrub, 21).pos == log.end_pos
    home.close_all()


def test_damage_is_found_and_told_with_its_place(home: LogHome) -> None:
    log = home.open()
    home.put(log, *[b"x" * 52] * 100)
    home.disk.flip_bit(home.segment(4096), 560)
    scrub = Scrub(log)
    assert not round_of(scrub, 40).damage
    result = round_of(scrub, 100)
    assert result.damage == (4596, 8192)
    assert "checksum of the body differs" in result.reason
    assert scrub.damage_found == 1
    assert decode_damaged(encode_damaged([result.damage])) == [(4596, 8192)]


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
    assert round_of(scrub, 3).damage == (4096, 8192)


def test_an_empty_log_has_nothing_to_verify(home: LogHome) -> None:
    scrub = Scrub(home.open())
    assert round_of(scrub, 0) == ScrubResult(0, 0, 0)


@pytest.mark.parametrize("note", [b"", b"\xff", b"\x01", b"\x81\x01"])
def test_unreadable_note_of_damage(note: bytes) -> None:
    with pytest.raises(ValueError, match="unreadable note"):
        decode_damaged(note)
