"""What is known about a log without reading it: terms, configurations, and where an entry lies to within 64 KiB.

All of it can be rebuilt from the entries, so none of it is ever synced.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

ANCHOR_BYTES: Final = 64 * 1024
"""Distance of anchors: one read of this length finds any entry."""


class LogIndex:
    """Sparse index, term runs and configurations of the entries present.

    An *anchor* is the index and position of one entry. The first entry of each file is one, and so is the first entry
    that begins at least `ANCHOR_BYTES` behind the anchor before it.
    """

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._indexes = array("Q")
        self._positions = array("Q")
        self._next_anchor_pos = 0
        self.term_runs: list[tuple[int, int]] = []
        self.configs: list[tuple[int, bytes]] = []

    def note(self, index: int, term: int, pos: int) -> None:
        """Take the next entry."""
        if pos >= self._next_anchor_pos:
            self._indexes.append(index)
            self._positions.append(pos)
            self._set_next_anchor(pos)
        if not self.term_runs or self.term_runs[-1][1] != term:
            self.term_runs.append((index, term))

    def note_config(self, index: int, body: bytes) -> None:
        """Remember that the entry at ``index``, just taken, is a configuration."""
        self.configs.append((index, body))

    def truncate(self, from_index: int) -> None:
        """Forget the entries from ``from_index`` on."""
        keep = bisect_left(self._indexes, from_index)
        del self._indexes[keep:]
        del self._positions[keep:]
        self._next_anchor_pos = 0
        if keep:
            self._set_next_anchor(self._positions[-1])
        while self.term_runs and self.term_runs[-1][0] >= from_index:
            self.term_runs.pop()
        while self.configs and self.configs[-1][0] >= from_index:
            self.configs.pop()

    def drop_prefix(self, first_index: int) -> None:
        """Forget the entries before ``first_index``, which begins a file."""
        keep = bisect_left(self._indexes, first_index)
        del self._indexes[:keep]
        del self._positions[:keep]
        runs = self.term_runs
        keep = bisect_right(runs, first_index, key=lambda run: run[0]) - 1
        if keep >= 0:
            runs[: keep + 1] = [(first_index, runs[keep][1])]
        self.configs = [config for config in self.configs if config[0] >= first_index]

    def first_at(self, pos: int) -> int | None:
        """Index of the entry that begins the file at ``pos``; None when there is none."""
        at = bisect_left(self._positions, pos)
        return self._indexes[at] if at < len(self._positions) and self._positions[at] == pos else None

    def anchor(self, index: int) -> tuple[int, int]:
        """Index and position of the last anchor at or before ``index``."""
        at = bisect_right(self._indexes, index) - 1
        assert at >= 0, f"no anchor at or before index {index}"
        return self._indexes[at], self._positions[at]

    def anchors_behind(self, pos: int, end: int) -> list[int]:
        """Positions of the anchors that lie behind ``pos`` and before ``end``, ascending."""
        return list(self._positions[bisect_right(self._positions, pos) : bisect_left(self._positions, end)])

    def term_at(self, index: int) -> int:
        """Term of a present entry; 0 for an index before the first one."""
        at = bisect_right(self.term_runs, index, key=lambda run: run[0]) - 1
        return self.term_runs[at][1] if at >= 0 else 0

    def _set_next_anchor(self, pos: int) -> None:
        self._next_anchor_pos = min(pos + ANCHOR_BYTES, pos - pos % self._segment_bytes + self._segment_bytes)
