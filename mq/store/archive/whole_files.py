"""Reads complete log files from an archive, for a replica that gets the log of its group.

The archive has what entries fill; the blank behind the last entry of a file is equal in all logs. Nothing is returned
that does not lead to an entry of this log which the group knows (`ColdBlocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mq.store.archive.cold_blocks import ColdBlocks, KnownLog, RangeStore
from mq.store.archive.disk_cache import NoCache
from raftlog.segment.backup_store import BackupDamaged
from raftlog.segment.codec import blank
from raftlog.segment.meta import Base

Fetch = Callable[[int, int], Sequence[tuple[int, bytes]]]
"""Fetches blocks as `ColdBlocks.fetch` does."""


class JoiningReader:
    """Reads files from the first missing byte on. For one thread at a time.

    Args:
        fetch: as `ColdBlocks.fetch`.
        name: of the archive, for messages.
        close: is called after the last read.
    """

    def __init__(self, fetch: Fetch, segment_bytes: int, name: str, close: Callable[[], None] = lambda: None) -> None:
        self._fetch = fetch
        self._close = close
        self._segment_bytes = segment_bytes
        self._name = name
        self._last: tuple[int, bytes] = (0, b"")
        """The last block that was read: the next request often begins in it."""

    def close(self) -> None:
        """Close the store; no read may follow."""
        self._close()

    def read(self, pos: int, nbytes: int) -> bytes:
        """Read bytes of one file, from the physical offset ``pos`` on.

        Raises SegmentError: the archive does not have them, or the store does not answer.
        """
        size = self._segment_bytes
        file_end = pos - pos % size + size
        assert 0 < nbytes <= file_end - pos, f"{nbytes} bytes at {pos} of files of {size} bytes"
        stop = pos + nbytes
        blocks = []
        begin, last = self._last
        at = pos
        if begin <= pos < begin + len(last):
            blocks.append((begin, last))
            at = begin + len(last)
        if at < stop:
            blocks += self._fetch(at, stop)
        if not blocks:
            raise BackupDamaged(self._name, f"it has no entry at {pos}")
        self._last = blocks[-1]
        end = blocks[-1][0] + len(blocks[-1][1])
        if end < stop:
            blocks.append((end, blank(file_end - end)))
        content = bytearray(nbytes)
        for begin, data in blocks:
            first, after = max(begin, pos), min(begin + len(data), stop)
            if first < after:
                content[first - pos : after - pos] = data[first - begin : after - begin]
        return bytes(content)


def open_joining(
    archived_end: Base,
    *,
    open_store: Callable[[], RangeStore],
    identity: str,
    segment_bytes: int,
    name: str,
    blocks_max: int,
    clock: Callable[[], float],
) -> JoiningReader:
    """The archive at ``name`` for a replica that knows only from its leader that the log is archived up to
    ``archived_end``. Sends nothing yet.
    """

    def end() -> Base:
        return archived_end

    blocks = ColdBlocks(
        open_store, KnownLog(identity, segment_bytes, end, end), NoCache(), blocks_max=blocks_max, clock=clock
    )
    return JoiningReader(blocks.fetch, segment_bytes, name, blocks.close)
