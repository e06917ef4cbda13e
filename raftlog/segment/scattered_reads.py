"""Reads many short pieces of a log with as few disk reads as possible.

Each piece is within one entry. A disk read costs about as much as copying `LogLimits.gap_bytes_max` from the page
cache, so smaller gaps between two pieces are read as well. A reader of one of several interleaved sequences (a queue of
a topic, for example) often reads the next one soon after, whose pieces were all read already: such runs are cached.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from raftlog.segment.errors import StorageCorrupt
from raftlog.segment.limits import LogLimits
from raftlog.segment.recent_entries import Tail, blank_bytes
from raftlog.segment.verified_reads import VerifiedReads

Piece = tuple[int, int]
"""Physical offset and length."""

Buffer = bytes | memoryview
"""A view keeps everything that was read with it in memory: copy it before waiting."""

KEPT_MAX = 4
"""Number of cached ranges, at most 4 MiB."""


class _CachedRange(NamedTuple):
    begin: int
    end: int
    data: bytes


class PieceReader:
    """Reads pieces of one log, on the thread that owns it.

    Cached ranges may be read without access to the files: they are bytes of existing entries, and the owner calls
    `forget` when some are removed.
    """

    __slots__ = ("_cached_ranges", "_gap_max", "_kept_min", "_reads", "_run_max", "_segment_bytes", "_tail")

    def __init__(self, reads: VerifiedReads, segment_bytes: int, tail: Tail, limits: LogLimits) -> None:
        self._gap_max, self._run_max = limits.gap_bytes_max, limits.pieces_bytes_max
        self._kept_min = limits.pieces_kept_min
        self._reads = reads
        self._segment_bytes = segment_bytes
        self._tail = tail
        self._cached_ranges: list[_CachedRange] = []

    def forget(self) -> None:
        """Drop the cache: the log was truncated."""
        self._cached_ranges.clear()

    def read(self, pieces: Sequence[Piece]) -> Sequence[Buffer]:
        """The bytes of ascending pieces, each from memory if its entry is there.

        Raises:
            EntryGone, StorageCorrupt, StorageFailed: the disk cannot read them.
        """
        tail_pos = self._tail.pos
        if tail_pos is None or pieces[-1][0] < tail_pos:
            return self._read_files(pieces)
        if pieces[0][0] >= tail_pos:
            return self._tail.read_pieces(pieces)
        on_disk = bisect_left(pieces, (tail_pos, 0))
        return [*self._read_files(pieces[:on_disk]), *self._tail.read_pieces(pieces[on_disk:])]

    def _read_files(self, pieces: Sequence[Piece]) -> list[memoryview]:
        read: list[memoryview] = []
        first = 0
        while first < len(pieces):
            begin, data, next_piece = self._find(pieces, first) or self._load(pieces, first)
            view = memoryview(data)
            read += [view[pos - begin : pos - begin + length] for pos, length in pieces[first:next_piece]]
            first = next_piece
        return read

    def _find(self, pieces: Sequence[Piece], first: int) -> tuple[int, bytes, int] | None:
        """A cached range, where it begins, and the number of the first piece that it does not contain."""
        start, length = pieces[first]
        for begin, end, data in self._cached_ranges:
            if begin <= start and start + length <= end:
                next_piece = bisect_left(pieces, (end, 0), first)
                pos, length = pieces[next_piece - 1]
                return begin, data, next_piece if pos + length <= end else next_piece - 1
        return None

    def _load(self, pieces: Sequence[Piece], first: int) -> tuple[int, bytes, int]:
        """Works like `_find`, from the files."""
        start, nbytes = pieces[first]
        end = first_end = start + nbytes
        segment_bytes = self._segment_bytes
        run_end = min(start + self._run_max, start - start % segment_bytes + segment_bytes)
        next_piece, gap_max = first + 1, self._gap_max
        for pos, length in pieces[next_piece:]:
            if pos - end > gap_max or pos + length > run_end:
                break
            end = pos + length
            nbytes += length
            next_piece += 1
        try:
            data = self._reads.read(start, end, trusts_page_cache=True)
        except StorageCorrupt:
            if end == first_end:
                raise
            # A damaged entry may be between two pieces.
            return start, self._reads.read(start, first_end, trusts_page_cache=True), first + 1
        if end - start >= max(2 * nbytes, self._kept_min):
            self._cached_ranges.append(_CachedRange(start, end, data))
            del self._cached_ranges[:-KEPT_MAX]
        return start, data, next_piece


def read_across(read: Callable[[int, int], bytes], tail: Tail, disk_end: int, pos: int, end: int) -> bytes:
    """The bytes ``pos..end``, which begin before the tail's entries and end within them.

    Between ``disk_end``, where the last entry before the tail ends, and the tail is a blank, maybe not written yet.
    ``read(pos, end)`` reads from disk. Raises its errors.
    """
    tail_pos = tail.pos
    assert tail_pos is not None, f"no entry is in memory, {pos}..{end} is read"
    head = read(pos, min(end, disk_end)) if pos < disk_end else b""
    gap = blank_bytes(disk_end, tail_pos)[max(0, pos - disk_end) : max(0, end - disk_end)]
    return head + gap + tail.read(tail_pos, end)
