"""The newest entries of a log, in memory: unsynced ones, and older ones while there is room."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from raftlog.log_numbers import LogIndex
from raftlog.segment.codec import HEADER_BYTES, TailEntry, blank


class Tail:
    """A run of entries that ends with the log's last one.

    Attributes:
        entries: ascending, without a gap.
        first: index of the first of them; without any, of the next one.
        nbytes: sum of their sizes; above ``nbytes_max``, call `evict`.
    """

    __slots__ = ("_positions", "entries", "first", "nbytes", "nbytes_max")

    def __init__(self, first: LogIndex, nbytes_max: int) -> None:
        self.entries: list[TailEntry] = []
        self.first = first
        self.nbytes = 0
        self.nbytes_max = nbytes_max
        self._positions: list[int] = []

    @property
    def pos(self) -> int | None:
        """Position of the first of them in the log."""
        return self._positions[0] if self._positions else None

    def push(self, entry: TailEntry) -> None:
        """Add the next entry."""
        self.entries.append(entry)
        self._positions.append(entry.pos)
        self.nbytes += entry.size

    def entry(self, index: LogIndex) -> TailEntry | None:
        """The entry ``index`` if it is in memory."""
        at = index - self.first
        return self.entries[at] if 0 <= at < len(self.entries) else None

    def entry_at(self, pos: int) -> TailEntry | None:
        """The entry in memory that begins at or before ``pos``, if there is one: ``pos`` may be after its end."""
        at = bisect_right(self._positions, pos) - 1
        return self.entries[at] if at >= 0 else None

    def truncate(self, from_index: LogIndex) -> None:
        """Drop the entries from ``from_index`` on, which the log has, too."""
        while self.entries and self.entries[-1].index >= from_index:
            self.nbytes -= self.entries.pop().size
        assert self.nbytes >= 0, f"{len(self.entries)} entries of {self.nbytes} bytes are left before {from_index}"
        del self._positions[len(self.entries) :]
        if not self.entries:
            self.first = from_index

    def evict(self, durable_index: LogIndex) -> None:
        """Drop old entries up to ``durable_index``, an eighth at a time, so that the cost per entry stays small."""
        goal = self.nbytes_max - self.nbytes_max // 8
        count = 0
        for entry in self.entries:
            if self.nbytes <= goal or entry.index > durable_index:
                break
            self.nbytes -= entry.size
            count += 1
        assert self.nbytes >= 0, f"{self.nbytes} bytes of entries after {count} of them went"
        del self.entries[:count]
        del self._positions[:count]
        self.first += count

    def read(self, pos: int, end: int) -> bytes:
        """The bytes ``pos..end`` of the log, which are within these entries, including blanks between them."""
        entries = self.entries
        at = bisect_right(self._positions, pos) - 1
        assert at >= 0, f"read of {pos}..{end}, entries in memory begin at {self.pos}"
        entry = entries[at]
        if entry.pos + HEADER_BYTES <= pos and end <= entry.pos + entry.size:
            begin = pos - entry.pos - HEADER_BYTES
            return entry.body[begin : begin + end - pos]
        first_pos = next_pos = entry.pos
        parts: list[bytes] = []
        while next_pos < end:
            entry = entries[at]
            parts += (blank_bytes(next_pos, entry.pos), entry.header, entry.body)
            next_pos = entry.pos + entry.size
            at += 1
        return b"".join(parts)[pos - first_pos : end - first_pos]

    def read_pieces(self, pieces: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of these ascending pieces (offset, length), each within the body of one of these entries."""
        read: list[bytes] = []
        low = high = 0
        body = b""
        for pos, length in pieces:
            if pos >= high:
                entry = self.entries[bisect_right(self._positions, pos) - 1]
                low, high, body = entry.pos + HEADER_BYTES, entry.pos + entry.size, entry.body
            assert low <= pos <= high - length, f"{length} bytes at {pos} are not within the entry {low}..{high}"
            read.append(body[pos - low : pos - low + length])
        return read

    def check(self) -> None:
        """Assert that the sum is right; slow, for tests."""
        nbytes = sum(entry.size for entry in self.entries)
        assert self.nbytes == nbytes, f"{nbytes} bytes of entries in memory count as {self.nbytes}"
        assert self._positions == [entry.pos for entry in self.entries], f"{len(self._positions)} positions are wrong"


def blank_bytes(pos: int, end: int) -> bytes:
    """The blank from ``pos`` to the end of the file at ``end``, as on disk; empty if there is no room."""
    return blank(end - pos).ljust(end - pos, b"\0") if pos < end else b""
