"""Reads the log of a running replica from another process, without a lock and without writing.

What the vote file says is committed never changes: its entries stay in the files, and only retention deletes whole
files from the front. So everything up to there can be read at any time. Later entries may be truncated and replaced at
any moment, and are not used.
"""

from __future__ import annotations

import os

from raftlog.log_numbers import LogIndex
from raftlog.segment.codec import HEADER, HEADER_BYTES, EntryRef
from raftlog.segment.disk import Disk
from raftlog.segment.errors import DirectoryUnusable, EntryGone, MetaCorrupt, StorageFailed
from raftlog.segment.meta import FILE_NAME, MetaState, newest_state, read_slots


class RunningLog:
    """The directory of a log that may be in use. Call `close` at the end.

    Attributes:
        state: the content of the vote file; see `refresh`.

    Raises:
        DirectoryUnusable: it contains no log, or is not readable.
        FormatTooNew, MetaCorrupt, StorageFailed: the vote file cannot be read.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self._disk = disk
        self._open: tuple[int, int] | None = None
        self.state: MetaState = self.refresh()

    def refresh(self) -> MetaState:
        """Read the vote file again. A slot that is being written is ignored, the other one is used."""
        path = os.path.join(self.directory, FILE_NAME)
        try:
            fd = self._disk.open(path)
        except FileNotFoundError as error:
            raise DirectoryUnusable(self.directory, "the directory contains no log") from error
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
        """Bytes of one file; zeros after its end.

        Raises:
            EntryGone: retention has deleted the file.
            StorageFailed: it is missing for another reason, or a disk error.
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
        """Whether this log has ``entry`` with the same chain: then this log equals the other one up to there."""
        if entry.pos + entry.size > self.state.durable_pos:
            return False
        kind, size, index, term, pos, _, chain, _, _ = HEADER.unpack(self.read(entry.pos, HEADER_BYTES))
        return EntryRef(index, term, kind, pos, size, chain) == entry

    def goes_on_at(self, pos: int) -> bool:
        """Whether the entry at the beginning of the file at ``pos`` is known to be committed. Raises as `read`."""
        return 0 < self._first_index(pos) <= self.state.commit_hint

    def begins_file(self, index: LogIndex, pos: int) -> bool:
        """Whether this entry is the one at the beginning of the file at ``pos``. Raises as `read`."""
        return self._first_index(pos) == index

    def _first_index(self, pos: int) -> int:
        """The first index of the file at ``pos``; 0 if it has no entry yet."""
        if self.state.durable_pos < pos + HEADER_BYTES:
            return 0
        index: int = HEADER.unpack(self.read(pos, HEADER_BYTES))[2]
        return index

    def close(self) -> None:
        """Release the file that was read last."""
        if self._open is not None:
            self._disk.close(self._open[1])
            self._open = None
