"""Which entry lies at a physical offset: in memory, in files, in the blanks between, and above a base."""

from __future__ import annotations

import pytest

from raftlog.log_numbers import LogIndex
from raftlog.segment import SegmentLog
from tests.unit.segment.log_home import LogHome


def owners(log: SegmentLog) -> list[int]:
    """For each byte from 0 to behind the log's end the index of the entry there; 0 for none."""
    return [0 if (ref := log.entry_at(pos)) is None else ref.index for pos in range(log.end_pos + 20)]


@pytest.mark.parametrize("tail_bytes_max", [0, 1000, 1_000_000])
def test_every_byte_belongs_to_its_entry(tail_bytes_max: int) -> None:
    home = LogHome(segment_bytes=1024)
    log = home.open(tail_bytes_max=tail_bytes_max)
    for number in range(30):
        home.put(log, bytes(37 * number % 500))
    expected = [0] * (log.end_pos + 20)
    for index in range(1, log.last_index + 1):
        ref = log.locate(LogIndex(index))
        assert log.entry_at(ref.pos) == ref
        expected[ref.pos : ref.pos + ref.size] = [index] * ref.size
    assert 0 in expected[: log.end_pos], "there is a blank"
    assert owners(log) == expected
    log.close()
    reopened = home.open(tail_bytes_max=tail_bytes_max)
    assert owners(reopened) == expected
    reopened.drop_prefix(2048, b"", reopened.last_index)
    home.submit(reopened)
    assert owners(reopened) == [0] * 2048 + expected[2048:]
    home.close_all()


def test_impossible_offsets_hold_no_entry() -> None:
    home = LogHome()
    log = home.open()
    assert log.entry_at(0) is None
    home.put(log, b"body")
    assert log.entry_at(-1) is None
    assert log.entry_at(2**80) is None
    home.close_all()
