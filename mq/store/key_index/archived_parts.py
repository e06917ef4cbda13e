"""Reads parts of the log that only the archive has, and copies a part to index it.

For threads that may wait for the store. Only verified blocks are read (`mq.store.archive.cold_blocks`).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from raftlog.segment.codec import HEADER

Fetch = Callable[[int, int], Sequence[tuple[int, bytes]]]
"""Fetches blocks as `mq.store.archive.cold_blocks.ColdBlocks.fetch` does."""

COPY_BYTES: Final = 4 * 1024 * 1024
"""Read in one step while a part is copied."""
_BLOCKS_KEPT: Final = 4


class ArchivedRecords:
    """Reads archived bytes by position during one search, and keeps the last few blocks.

    Attributes:
        nbytes: how many bytes of the archive were read.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._blocks: list[tuple[int, bytes]] = []
        self.nbytes = 0

    def read(self, pos: int, nbytes: int) -> bytes:
        """Bytes of one block. Raises SegmentError: they are not in the archive, or the store does not answer."""
        for begin, data in self._blocks:
            if begin <= pos and pos + nbytes <= begin + len(data):
                return data[pos - begin : pos - begin + nbytes]
        blocks = self._fetch(pos, pos + nbytes)
        self.nbytes += sum(len(data) for _, data in blocks)
        self._blocks = [*self._blocks, *blocks][-_BLOCKS_KEPT:]
        begin, data = blocks[bisect_right(blocks, pos, key=lambda block: block[0]) - 1]
        return data[pos - begin : pos - begin + nbytes]


def copy_part(fetch: Fetch, part: int, behind: int, path: str) -> tuple[int, int]:
    """Write the entries of a file of the log that begin from ``part`` on and before ``behind`` to ``path``.

    Returns where the first one begins, and the last one ends: both ``part`` if there are none. Raises SegmentError,
    OSError; then the file does not exist.
    """
    assert part < behind, f"the part from {part} to {behind}"
    first, end, seen = -1, part, part
    try:
        with open(path, "wb") as file:
            for at in range(part, behind, COPY_BYTES):
                for begin, data in fetch(at, min(at + COPY_BYTES, behind)):
                    if begin + len(data) <= seen:
                        continue  # the last step had it
                    seen = begin + len(data)
                    before, after = _entries(begin, data, part, behind)
                    if before < after:
                        first = begin + before if first < 0 else first
                        end = begin + after
                        file.write(data[before:after])
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(path)
        raise
    return (first, end) if first >= 0 else (part, part)


def _entries(begin: int, data: bytes, part: int, behind: int) -> tuple[int, int]:
    """Return the begin and the end of the entries in a block that begin in a part."""
    at, first = 0, -1
    while at < len(data) and begin + at < behind:
        if begin + at >= part and first < 0:
            first = at
        at += HEADER.unpack_from(data, at)[1]
    return (first, at) if first >= 0 else (at, at)
