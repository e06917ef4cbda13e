"""Reads entries back from the segment files, and verifies each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raftlog.log_numbers import LogIndex
from raftlog.segment.codec import BLANK_BYTES_MIN, HEADER, HEADER_BYTES, EntryRef, is_blank, verify_entry
from raftlog.segment.errors import FrameCorrupt, StorageCorrupt
from raftlog.segment.files import SegmentFiles


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Entries read from disk: ``data`` is all of them back to back, ``chain`` the one before the first."""

    chain: int
    refs: list[EntryRef]
    data: bytes


def read_behind(
    files: SegmentFiles,
    base: EntryRef | None,
    anchor: tuple[LogIndex, int],
    index: LogIndex,
    end_index: LogIndex,
    room: int,
) -> StoredRun:
    """Verified entries of one file after the entry ``index`` and before ``end_index``, at least one. For any thread.

    Args:
        base: that entry, if it is the placeholder for a base; otherwise it is searched from ``anchor`` on.

    Raises:
        EntryGone, StorageCorrupt, StorageFailed: one of them was deleted, is damaged or cannot be read.
    """
    previous = base or find_entry(files, *anchor, index)
    refs, data = read_run(files, previous, end_index, room, at_least_one=True)
    return StoredRun(previous.chain, refs, data)


def find_entry(files: SegmentFiles, anchor_index: LogIndex, anchor_pos: int, index: LogIndex) -> EntryRef:
    """Walk from an anchor to the entry ``index`` along the headers in between.

    Raises:
        StorageCorrupt, StorageFailed: one of the headers cannot be read.
    """
    return _walk(files, anchor_index, anchor_pos, lambda its_index, _: its_index == index)


def find_entry_at(
    files: SegmentFiles, anchor_index: LogIndex, anchor_pos: int, last_index: LogIndex, pos: int
) -> EntryRef:
    """Walk from an anchor to the first entry that ends after the physical offset ``pos``, or to ``last_index``.

    Raises the errors of `find_entry`.
    """
    return _walk(files, anchor_index, anchor_pos, lambda index, end: end > pos or index == last_index)


def _walk(
    files: SegmentFiles, anchor_index: LogIndex, anchor_pos: int, is_wanted: Callable[[LogIndex, int], bool]
) -> EntryRef:
    """The first entry from an anchor on whose index and end match."""
    pos = anchor_pos
    path = files.path(files.start_of(pos))
    file_end = files.start_of(pos) + files.segment_bytes
    window = files.pread(pos, min(files.limits.anchor_bytes + HEADER_BYTES, file_end - pos))
    at, at_index = 0, anchor_index
    while True:
        if at + HEADER_BYTES > len(window):
            raise StorageCorrupt(path, pos + at, f"no entry {at_index} within reach of {pos}")
        kind, size, its_index, term, its_pos, _, chain, _, body_len = HEADER.unpack_from(window, at)
        if its_index != at_index or its_pos != pos + at or size != HEADER_BYTES + body_len:
            raise StorageCorrupt(path, pos + at, f"expected entry {at_index}, found {its_index}")
        if is_wanted(its_index, its_pos + size):
            return EntryRef(its_index, term, kind, its_pos, size, chain)
        at += size
        at_index += 1


def read_run(
    files: SegmentFiles, previous: EntryRef, end_index: LogIndex, room: int, *, at_least_one: bool
) -> tuple[list[EntryRef], bytes]:
    """Verified entries of one file after ``previous`` and before ``end_index``, back to back.

    Empty if the first of them is larger than ``room``, unless at least one is required.

    Raises:
        StorageCorrupt, StorageFailed: one of them is damaged or cannot be read.
    """
    pos = previous.pos + previous.size
    file_end = files.start_of(pos) + files.segment_bytes
    start = files.pread(pos, min(HEADER_BYTES, file_end - pos))
    if is_blank(start, file_end - pos):
        pos, file_end = file_end, file_end + files.segment_bytes
        start = files.pread(pos, HEADER_BYTES)
    path = files.path(files.start_of(pos))
    size = HEADER.unpack(start)[1] if len(start) == HEADER_BYTES else 0
    limit = file_end - BLANK_BYTES_MIN
    if not HEADER_BYTES <= size <= limit - pos:
        raise StorageCorrupt(path, pos, f"entry {previous.index + 1} of {size} bytes")
    if size > room and not at_least_one:
        return [], b""
    data = files.pread(pos, max(size, min(room, limit - pos)))
    view = memoryview(data)
    refs: list[EntryRef] = []
    at, last = 0, previous
    while last.index + 1 < end_index and len(data) - at >= HEADER_BYTES:
        size = HEADER.unpack_from(view, at)[1]
        if at + size > len(data) or (refs and is_blank(view[at : at + 8], file_end - pos - at)):
            break
        try:
            last = verify_entry(view, at, last.index + 1, last.term, pos + at, last.chain)
        except FrameCorrupt as error:
            raise StorageCorrupt(path, pos + at, str(error)) from error
        refs.append(last)
        at += last.size
    return refs, data if at == len(data) else data[:at]
