"""Many short pieces of a log, in as few reads as they lie in.

Each piece lies within one entry. A read of the disk costs about as much as copying `GAP_BYTES_MAX` from the page cache,
so what lies between two pieces is read along if it is less.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from raftlog.segment.files import SegmentFiles
from raftlog.segment.tail import Tail, blank_bytes

Piece = tuple[int, int]
"""Physical offset and length."""

GAP_BYTES_MAX = 32 * 1024
RUN_BYTES_MAX = 1024 * 1024


def read_pieces(files: SegmentFiles, tail: Tail, pieces: Sequence[Piece]) -> list[bytes]:
    """The bytes of ascending pieces, each from memory if its entry is there.

    Raises:
        EntryGone, StorageCorrupt, StorageFailed: the disk does not give them.
    """
    tail_pos = tail.pos
    if tail_pos is None or pieces[-1][0] < tail_pos:
        return _read_files(files, pieces)
    if pieces[0][0] >= tail_pos:
        return tail.read_pieces(pieces)
    on_disk = bisect_left(pieces, (tail_pos, 0))
    return _read_files(files, pieces[:on_disk]) + tail.read_pieces(pieces[on_disk:])


def read_across(files: SegmentFiles, tail: Tail, disk_end: int, pos: int, end: int) -> bytes:
    """The bytes ``pos..end``, the first of which lie before the tail's entries and the last within.

    What lies between ``disk_end``, where the last entry before the tail ends, and the tail is a blank, maybe one that
    is not written yet. Raises as `read_pieces` does.
    """
    tail_pos = tail.pos
    assert tail_pos is not None, f"no entry is in memory, {pos}..{end} is read"
    head = files.pread(pos, min(end, disk_end) - pos) if pos < disk_end else b""
    gap = blank_bytes(disk_end, tail_pos)[max(0, pos - disk_end) : max(0, end - disk_end)]
    return head + gap + tail.read(tail_pos, end)


def _read_files(files: SegmentFiles, pieces: Sequence[Piece]) -> list[bytes]:
    read: list[bytes] = []
    first = 0
    while first < len(pieces):
        start, length = pieces[first]
        end = start + length
        run_end = min(start + RUN_BYTES_MAX, files.start_of(start) + files.segment_bytes)
        following = first + 1
        for pos, length in pieces[following:]:
            if pos - end > GAP_BYTES_MAX or pos + length > run_end:
                break
            end = pos + length
            following += 1
        data = files.pread(start, end - start)
        read += [data[pos - start : pos - start + length] for pos, length in pieces[first:following]]
        first = following
    return read
