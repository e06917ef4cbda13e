"""The newest entries of a log, in memory: those not synced yet, and as many older ones as there is room for."""

from __future__ import annotations

from bisect import bisect_right

from raftlog.segment.codec import HEADER_BYTES, TailEntry, blank


class Tail:
    """A run of entries that ends with the log's last one.

    Attributes:
        entries: ascending, without a gap.
        first: index of the first of them; if there are none, of the next one to come.
        nbytes: sum of their sizes.
    """

    __slots__ = ("_nbytes_max", "entries", "first", "nbytes")

    def __init__(self, first: int, nbytes_max: int) -> None:
        self.entries: list[TailEntry] = []
        self.first = first
        self.nbytes = 0
        self._nbytes_max = nbytes_max

    @property
    def is_full(self) -> bool:
        """Whether it is time to `evict`."""
        return self.nbytes > self._nbytes_max

    def push(self, entry: TailEntry) -> None:
        """Take the entry that follows."""
        self.entries.append(entry)
        self.nbytes += entry.size

    def entry(self, index: int) -> TailEntry | None:
        """The entry ``index`` if it is in memory."""
        at = index - self.first
        return self.entries[at] if 0 <= at < len(self.entries) else None

    def entry_at(self, pos: int) -> TailEntry | None:
        """The entry in memory that begins at or before ``pos``, if there is one: ``pos`` may lie behind it."""
        at = bisect_right(self.entries, pos, key=_position) - 1
        return self.entries[at] if at >= 0 else None

    def truncate(self, from_index: int) -> None:
        """Drop the entries from ``from_index`` on, which the log has, too."""
        while self.entries and self.entries[-1].index >= from_index:
            self.nbytes -= self.entries.pop().size
        if not self.entries:
            self.first = from_index

    def evict(self, durable_index: int) -> None:
        """Let old entries up to ``durable_index`` go, an eighth at a time, so that the cost per entry stays small."""
        goal = self._nbytes_max - self._nbytes_max // 8
        count = 0
        for entry in self.entries:
            if self.nbytes <= goal or entry.index > durable_index:
                break
            self.nbytes -= entry.size
            count += 1
        del self.entries[:count]
        self.first += count

    def read(self, pos: int, end: int) -> bytes:
        """The bytes ``pos..end`` of the log, which lie within these entries, blanks between them included."""
        entries = self.entries
        at = bisect_right(entries, pos, key=_position) - 1
        entry = entries[at]
        if entry.pos + HEADER_BYTES <= pos and end <= entry.pos + entry.size:
            begin = pos - entry.pos - HEADER_BYTES
            return entry.body[begin : begin + end - pos]
        first_pos = expected = entry.pos
        parts: list[bytes] = []
        while expected < end:
            entry = entries[at]
            parts += (blank_bytes(expected, entry.pos), entry.header, entry.body)
            expected = entry.pos + entry.size
            at += 1
        return b"".join(parts)[pos - first_pos : end - first_pos]

    def check(self) -> None:
        """Assert that the sum is one; slow, for tests."""
        nbytes = sum(entry.size for entry in self.entries)
        assert self.nbytes == nbytes, f"{nbytes} bytes of entries in memory count as {self.nbytes}"


def blank_bytes(pos: int, end: int) -> bytes:
    """The blank from ``pos`` to the end of the file at ``end``, as it lies there; nothing if there is no room."""
    return blank(end - pos).ljust(end - pos, b"\0") if pos < end else b""


def _position(entry: TailEntry) -> int:
    return entry.pos
