"""The log of a replica as another process reads it while the replica runs, without a lock and without writing.

What the vote file says is committed never changes: its entries lie in the files as they will for ever, and only
retention takes whole files away from the front. So everything up to there can be read at any time. Behind it entries
may be cut off and replaced at any moment, and are of no use here.
"""

from __future__ import annotations

import os

from raftlog.segment.codec import HEADER, HEADER_BYTES, EntryRef
from raftlog.segment.disk import Disk
from raftlog.segment.errors import DirectoryUnusable, EntryGone, MetaCorrupt, StorageFailed
from raftlog.segment.meta import FILE_NAME, MetaState, newest_state, read_slots


class RunningLog:
    """The directory of a log that may be in use. `close` it at the end.

    Attributes:
        state: what the vote file said last; see `refresh`.

    Raises:
        DirectoryUnusable: there is no log in it, or it may not be read.
        FormatTooNew, MetaCorrupt, StorageFailed: the vote file cannot be read.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self._disk = disk
        self._open: tuple[int, int] | None = None
        self.state: MetaState = self.refresh()

    def refresh(self) -> MetaState:
        """Read the vote file again. A slot that is being written just now does not count, the other one does."""
        path = os.path.join(self.directory, FILE_NAME)
        try:
            fd = self._disk.open(path)
        except FileNotFoundError as error:
            raise DirectoryUnusable(self.directory, "there is no log in it") from error
        except OSError as error:
            raise DirectoryUnusable(self.directory, error.strerror or str(error)) from error
        try:
            state = newest_state(b"".join(read_slots(self._disk, fd)), path)
        except OSError as error:
            raise StorageFailed(path, error.errno or 0, "read") from error
        finally:
            self._disk.close(fd)
        if state is None:
            raise MetaCorrupt(path)
        self.state = state
        return state

    def read(self, pos: int, length: int) -> bytes:
        """Bytes of one file; behind its end they are zero.

        Raises:
            EntryGone: the file is not there, because retention took it.
            StorageFailed: it is missing all the same, or the disk cannot read it.
        """
        start = pos - pos % self.state.segment_bytes
        path = os.path.join(self.directory, f"{start:020d}")
        try:
            if self._open is None or self._open[0] != start:
                self.close()
                self._open = (start, self._disk.open(path))
            return self._disk.pread(self._open[1], length, pos - start).ljust(length, b"\0")
        except FileNotFoundError as error:
            first = self.refresh().starts_at.pos
            if start < first:
                raise EntryGone(self.directory, "position", pos, first) from error
            raise StorageFailed(path, error.errno or 0, "read") from error
        except OSError as error:
            raise StorageFailed(path, error.errno or 0, "read") from error

    def holds(self, entry: EntryRef) -> bool:
        """Whether this log has that entry, with the same chain: then the two logs are equal up to there."""
        if entry.pos + entry.size > self.state.durable_pos:
            return False
        kind, size, index, term, pos, _, chain, _, _ = HEADER.unpack(self.read(entry.pos, HEADER_BYTES))
        return EntryRef(index, term, kind, pos, size, chain) == entry

    def close(self) -> None:
        """Release the file that was read last."""
        if self._open is not None:
            self._disk.close(self._open[1])
            self._open = None
