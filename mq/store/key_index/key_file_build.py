"""Builds the content of a key file from a part of the log, verifying every entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from mq.store.key_index.file import Read, Scope, encode_key_file
from mq.store.key_index.key_table import PADDING, key_rows, record_starts
from raftlog.log_numbers import NO_INDEX, NO_TERM, LogIndex
from raftlog.segment.codec import HEADER, HEADER_BYTES, NORMAL, EntryRef, verify_entry
from raftlog.segment.errors import FrameCorrupt

_WINDOW_BYTES: Final = 1024 * 1024
"""Read and indexed in one step: enough for numpy, and it fits the CPU cache."""


class _EntryWindow(NamedTuple):
    """Contiguous entries at ``pos``: their bytes with padding, the beginnings of records, and the last entry."""

    pos: int
    data: bytes
    starts: list[int]
    last: EntryRef


def build_key_file(read: Read, begin: int, end: int) -> bytes:
    """Return the content of a file for the contiguous entries from ``begin`` to ``end``, at most 4 GiB.

    ``read`` may return unverified bytes: every entry is verified here.

    Raises:
        FrameCorrupt: an entry is damaged, or the bytes are not entries.
        EntriesDamaged: an intact entry does not contain records.
        Exception: from ``read``.
    """
    assert end - begin < 1 << 32, f"{end - begin} bytes are more than one file can be about"
    first_ms, last_ms = 2**63 - 1, -(2**63)
    last_pos, last_index, last_chain = 0, NO_INDEX, 0
    rows = [np.empty(0, np.uint64)]
    for window in _windows(read, begin, end):
        last_pos, last_index, last_chain = window.last.pos, window.last.index, window.last.chain
        if window.starts:
            window_rows, store_ms = key_rows(window.data, np.array(window.starts), window.pos - begin)
            if window_rows.size:
                rows.append(window_rows)
                first_ms, last_ms = min(first_ms, int(store_ms.min())), max(last_ms, int(store_ms.max()))
    scope = Scope(begin, end, last_pos, last_index, last_chain, first_ms, last_ms)
    every = np.sort(np.concatenate(rows))  # np.unique hashes first, which takes ten times as long
    is_first = np.append(True, every[1:] != every[:-1])[: every.size]
    return encode_key_file(scope, every[is_first].astype(">u8").tobytes())


def _windows(read: Read, begin: int, end: int) -> Iterator[_EntryWindow]:
    """The entries in ascending order. Raises FrameCorrupt, EntriesDamaged.

    The entry before the first one is unknown, so for the first one only body, size and position are verified.
    """
    pos, nbytes = begin, _WINDOW_BYTES
    index: LogIndex | None = None
    chain: int | None = None
    term = NO_TERM
    while pos < end:
        data = read(pos, min(nbytes, end - pos))
        view = memoryview(data)
        is_last = pos + len(data) == end or len(data) < nbytes
        at = 0
        starts: list[int] = []
        entry: EntryRef | None = None
        while at < len(data):
            rest = len(data) - at
            if not is_last and (rest < HEADER_BYTES or HEADER.unpack_from(data, at)[1] > rest):
                break
            entry = verify_entry(view, at, index, term, pos + at, chain)
            if entry.kind == NORMAL:
                starts += record_starts(data, at + HEADER_BYTES, at + entry.size)
            index, term, chain = entry.index + 1, entry.term, entry.chain
            at += entry.size
        if entry is not None:
            yield _EntryWindow(pos, b"".join((view[:at], PADDING)), starts, entry)
        if is_last and pos + at < end:
            raise FrameCorrupt(pos + at, "the file is too short", end, pos + at)
        pos, nbytes = pos + at, _WINDOW_BYTES if at else nbytes * 4
