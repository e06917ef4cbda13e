"""The index of a log: terms, configurations, and positions of entries to within 64 KiB.

All of it can be rebuilt from the entries, so it is never synced.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import MutableSequence
from typing import Final, cast

import msgspec

from raftlog.log_numbers import NO_TERM, LogIndex, Term

ANCHOR_BYTES: Final = 64 * 1024
"""Distance of anchors: one read of this length finds any entry."""


class IndexPart(msgspec.Struct, frozen=True):
    """The index of one file: anchors, term runs (the first begins at the first entry), configurations."""

    first_index: LogIndex
    indexes: list[LogIndex]
    positions: list[int]
    term_runs: list[tuple[LogIndex, Term]]
    configs: list[tuple[LogIndex, bytes]]


class SegmentInfo(msgspec.Struct, frozen=True):
    """One file of a log: the bytes ``start`` to ``end`` and the entries ``first_index`` to ``last_index``.

    A ``closed`` one never changes unless the log is cut below its end, and ends where the next one begins. The
    active one ends where the log does, and may be empty.
    """

    start: int
    end: int
    first_index: LogIndex
    last_index: LogIndex
    closed: bool


class AnchorSpan(msgspec.Struct, frozen=True):
    """Entries between two anchors of the same file: see `SparseIndex.span_at`.

    ``index``, ``pos``, ``term`` and ``is_config`` describe the first entry. ``end_index`` and ``end_pos`` describe the
    entry after the last one: None if unknown, and ``end_pos`` also if that begins the next file.
    """

    index: LogIndex
    pos: int
    term: Term
    is_config: bool
    end_index: LogIndex | None
    end_pos: int | None


class SparseIndex:
    """Anchors, term runs and configurations of the existing entries.

    For the log's thread, except for `span_at`.

    An *anchor* is the index and position of one entry. The first entry of each file is one, and so is the first entry
    that begins at least ``anchor_bytes`` after the previous anchor.
    """

    def __init__(self, segment_bytes: int, anchor_bytes: int = ANCHOR_BYTES) -> None:
        self._anchor_bytes = anchor_bytes
        self.segment_bytes = segment_bytes
        self._indexes = cast("MutableSequence[LogIndex]", array("Q"))
        self._positions = array("Q")
        self._next_anchor_pos = 0
        self._lock = threading.Lock()
        """Held while anchors or term runs change in more than one step, and by readers on other threads."""
        self.term_runs: list[tuple[LogIndex, Term]] = []
        self.configs: list[tuple[LogIndex, bytes]] = []

    def append(self, index: LogIndex, term: Term, pos: int) -> None:
        """Add the next entry."""
        if not self.term_runs or (before := self.term_runs[-1][1]) != term:
            assert not self.term_runs or before < term, f"entry {index} of term {term} behind {before}"
            self.term_runs.append((index, term))
        if pos >= self._next_anchor_pos:
            last = self._positions[-1] if self._positions else -1
            assert last < pos, f"anchor of entry {index} at {pos} behind {last}"
            with self._lock:
                self._indexes.append(index)
                self._positions.append(pos)
            self._set_next_anchor(pos)

    def add_config(self, index: LogIndex, body: bytes) -> None:
        """Add the entry at ``index``, which was just appended, as a configuration."""
        self.configs.append((index, body))

    def truncate(self, from_index: LogIndex) -> None:
        """Remove the entries from ``from_index`` on."""
        keep = bisect_left(self._indexes, from_index)
        with self._lock:
            del self._indexes[keep:]
            del self._positions[keep:]
            while self.term_runs and self.term_runs[-1][0] >= from_index:
                self.term_runs.pop()
        self._next_anchor_pos = 0
        if keep:
            self._set_next_anchor(self._positions[-1])
        while self.configs and self.configs[-1][0] >= from_index:
            self.configs.pop()

    def drop_prefix(self, first_index: LogIndex) -> None:
        """Remove the entries before ``first_index``, which begins a file."""
        with self._lock:
            keep = bisect_left(self._indexes, first_index)
            begins = self._indexes[keep] if keep < len(self._indexes) else None
            assert begins == first_index, f"no anchor at {first_index}, the next one is {begins}"
            del self._indexes[:keep]
            del self._positions[:keep]
            runs = self.term_runs
            keep = bisect_right(runs, first_index, key=_first_index) - 1
            if keep >= 0:
                runs[: keep + 1] = [(first_index, runs[keep][1])]
        self.configs = [config for config in self.configs if config[0] >= first_index]

    def first_at(self, pos: int) -> LogIndex | None:
        """Index of the entry that begins the file at ``pos``; None if there is none."""
        at = bisect_left(self._positions, pos)
        return self._indexes[at] if at < len(self._positions) and self._positions[at] == pos else None

    def files(self, first_index: LogIndex, last_index: LogIndex, base_pos: int, end_pos: int) -> list[SegmentInfo]:
        """The files of a log with these entries, ascending; the last one is the active one."""
        segment_bytes = self.segment_bytes
        assert base_pos % segment_bytes == 0, f"no file of {segment_bytes} bytes begins at {base_pos}"
        assert base_pos <= end_pos, f"a log from {base_pos} to {end_pos}"
        active = end_pos - end_pos % segment_bytes
        segments: list[SegmentInfo] = []
        for start in range(base_pos, active, segment_bytes):
            behind = self.first_at(start + segment_bytes) or last_index + 1
            segments.append(SegmentInfo(start, start + segment_bytes, first_index, behind - 1, True))
            first_index = behind
        return [*segments, SegmentInfo(active, end_pos, first_index, last_index, False)]

    def part(self, first_index: LogIndex, end_index: LogIndex) -> IndexPart:
        """The index of the entries ``first_index`` up to ``end_index`` (exclusive), at least one."""
        begin, end = bisect_left(self._indexes, first_index), bisect_left(self._indexes, end_index)
        runs = self.term_runs
        run = bisect_right(runs, first_index, key=_first_index) - 1
        assert begin < end, f"no anchor in the entries {first_index} to {end_index - 1}"
        assert run >= 0, f"no term of entry {first_index}"
        return IndexPart(
            first_index,
            list(self._indexes[begin:end]),
            self._positions[begin:end].tolist(),
            [(first_index, runs[run][1]), *runs[run + 1 : bisect_left(runs, end_index, key=_first_index)]],
            [config for config in self.configs if first_index <= config[0] < end_index],
        )

    def extend(self, part: IndexPart) -> None:
        """Add the index of the next file."""
        last = self._positions[-1] if self._positions else -1
        assert last < part.positions[0], f"a file with entries from {part.positions[0]} on behind {last}"
        self._indexes.extend(part.indexes)
        self._positions.extend(part.positions)
        self._set_next_anchor(self._positions[-1])
        same_term = bool(self.term_runs) and self.term_runs[-1][1] == part.term_runs[0][1]
        self.term_runs += part.term_runs[same_term:]
        self.configs += part.configs

    def anchor(self, index: LogIndex) -> tuple[LogIndex, int]:
        """Index and position of the last anchor at or before ``index``."""
        at = bisect_right(self._indexes, index) - 1
        assert at >= 0, f"no anchor at or before index {index}"
        return self._indexes[at], self._positions[at]

    def anchor_at(self, pos: int) -> tuple[LogIndex, int, LogIndex | None]:
        """Index and position of the last anchor at or before the physical offset ``pos``, and index of the next one."""
        at = bisect_right(self._positions, pos) - 1
        assert at >= 0, f"no anchor at or before position {pos}"
        return self._indexes[at], self._positions[at], self._indexes[at + 1] if at + 1 < len(self._indexes) else None

    def span_at(self, pos: int, end: int) -> AnchorSpan | None:
        """Return the span from the last anchor at or before the physical offset ``pos`` up to the first one at or after
        ``end``, or to the next file if that comes first; None if there is no anchor before ``pos``. For any thread.
        """
        with self._lock:
            at = bisect_right(self._positions, pos) - 1
            if at < 0:
                return None
            index, begin = self._indexes[at], self._positions[at]
            file_end = begin - begin % self.segment_bytes + self.segment_bytes
            behind = bisect_left(self._positions, min(max(end, begin + 1), file_end), at + 1)
            known = behind < len(self._positions)
            end_index = self._indexes[behind] if known else None
            end_pos = self._positions[behind] if known and self._positions[behind] < file_end else None
            configs = self.configs
            config = bisect_left(configs, index, key=_index_of)
            is_config = config < len(configs) and configs[config][0] == index
            return AnchorSpan(index, begin, self.term_at(index), is_config, end_index, end_pos)

    def anchors_before(self, pos: int) -> list[int]:
        """Positions of the anchors before ``pos``, the last one first."""
        return self._positions[: bisect_left(self._positions, pos)].tolist()[::-1]

    def anchors_behind(self, pos: int, end: int) -> list[int]:
        """Positions of the anchors after ``pos`` and before ``end``, ascending."""
        return list(self._positions[bisect_right(self._positions, pos) : bisect_left(self._positions, end)])

    def term_at(self, index: LogIndex) -> Term:
        """Term of an existing entry; 0 for an index before the first one."""
        at = bisect_right(self.term_runs, index, key=_first_index) - 1
        return self.term_runs[at][1] if at >= 0 else NO_TERM

    def _set_next_anchor(self, pos: int) -> None:
        self._next_anchor_pos = min(pos + self._anchor_bytes, pos - pos % self.segment_bytes + self.segment_bytes)


def _index_of(config: tuple[LogIndex, bytes]) -> LogIndex:
    return config[0]


def _first_index(run: tuple[LogIndex, Term]) -> LogIndex:
    return run[0]
