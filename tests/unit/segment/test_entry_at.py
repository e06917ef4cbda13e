"""Which entry lies at a physical offset, and the sparse index against a plain list of entries."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.log_numbers import NO_INDEX, LogIndex, Term
from raftlog.segment import SegmentLog
from raftlog.segment.codec import place
from raftlog.segment.index import ANCHOR_BYTES, SparseIndex
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


SEGMENT_BYTES = 4 * ANCHOR_BYTES
SIZES = st.lists(st.one_of(st.integers(48, 200), st.integers(48, SEGMENT_BYTES - 8)), max_size=40)


def check(index: SparseIndex, entries: list[tuple[int, int]]) -> None:
    for number, (term, pos) in enumerate(entries, 1):
        anchor_index, anchor_pos = index.anchor(LogIndex(number))
        assert anchor_index <= number
        assert entries[anchor_index - 1][1] == anchor_pos
        assert pos - anchor_pos < ANCHOR_BYTES
        assert pos // SEGMENT_BYTES == anchor_pos // SEGMENT_BYTES
        assert index.term_at(LogIndex(number)) == term
    assert index.term_at(NO_INDEX) == 0
    firsts = [first for first, _ in index.term_runs]
    assert firsts == sorted(set(firsts))


@given(SIZES, SIZES, st.integers(1, 41))
def test_every_entry_has_an_anchor_within_reach(first: list[int], second: list[int], from_index: int) -> None:
    index = SparseIndex(SEGMENT_BYTES)
    entries: list[tuple[int, int]] = []
    end_pos = 0

    def extend(sizes: list[int], term: int) -> None:
        nonlocal end_pos
        for size in sizes:
            pos = place(end_pos, size, SEGMENT_BYTES)
            end_pos = pos + size
            entries.append((term + len(entries) // 7, pos))
            index.append(LogIndex(len(entries)), Term(entries[-1][0]), pos)

    extend(first, 1)
    check(index, entries)
    if from_index <= len(entries):
        end_pos = entries[from_index - 1][1]
        del entries[from_index - 1 :]
        index.truncate(LogIndex(from_index))
    check(index, entries)
    extend(second, 100)
    check(index, entries)


def test_index_returns_anchors_after_a_position() -> None:
    index = SparseIndex(SEGMENT_BYTES)
    positions = [0, 100, ANCHOR_BYTES + 5, ANCHOR_BYTES + 90, 3 * ANCHOR_BYTES, SEGMENT_BYTES]
    for number, pos in enumerate(positions, 1):
        index.append(LogIndex(number), Term(1), pos)
    anchors = [0, ANCHOR_BYTES + 5, 3 * ANCHOR_BYTES, SEGMENT_BYTES]
    for pos in positions:
        behind = anchors[bisect_right(anchors, pos) :]
        assert index.anchors_behind(pos, SEGMENT_BYTES + 1) == behind
    assert index.anchors_behind(0, 3 * ANCHOR_BYTES) == [ANCHOR_BYTES + 5]


def test_index_returns_the_anchor_at_a_position() -> None:
    index = SparseIndex(SEGMENT_BYTES)
    for number, pos in enumerate([0, 100, ANCHOR_BYTES + 5, SEGMENT_BYTES], 1):
        index.append(LogIndex(number), Term(1), pos)
    assert index.anchor_at(0) == index.anchor_at(ANCHOR_BYTES + 4) == (1, 0, 3)
    assert index.anchor_at(ANCHOR_BYTES + 5) == (3, ANCHOR_BYTES + 5, 4)
    assert index.anchor_at(10 * SEGMENT_BYTES) == (4, SEGMENT_BYTES, None)
