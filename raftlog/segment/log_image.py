"""Writes the directory of a new log from runs of verified entries, as fast as the disk takes them.

The vote file comes last. Without it, the files are not a log, and a directory with them cannot be opened: so whatever
goes wrong before, no part of a log can be mistaken for a whole one.

A second thread syncs what was written, in steps: so the disk works all the time, and no sync is long.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from raftlog.segment.closed_file_index import ClosedFileIndex, encode_sidecar
from raftlog.segment.codec import CONFIG, EntryRef
from raftlog.segment.disk import Disk, write_file
from raftlog.segment.entry_runs import EntryRun
from raftlog.segment.errors import StorageFailed
from raftlog.segment.files import Preallocation, SegmentFiles
from raftlog.segment.index import SparseIndex
from raftlog.segment.meta import FILE_NAME, Base, MetaFile, MetaState
from raftlog.segment.snapshot_install import SNAPSHOT_NAME

SYNC_EVERY_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a file that are written at most between two syncs of it."""
UNSYNCED_STEPS_MAX: Final = 2
"""The number of these steps that may be written and not synced."""


class LogImage:
    """The files of a new log. Call `close` at the end.

    Every method may raise `StorageFailed`; the directory is useless then.

    Attributes:
        last: the last entry, or the placeholder for the base.
    """

    def __init__(self, disk: Disk, directory: str, base: Base, segment_bytes: int) -> None:
        """Begin in an empty or missing directory."""
        self.last: EntryRef = base.ref
        self._disk = disk
        self._directory = directory
        self._base = base
        self._segment_bytes = segment_bytes
        try:
            disk.mkdir(directory)
            self._files = SegmentFiles(disk, directory, segment_bytes, Preallocation.RESERVE)
        except OSError as error:
            raise StorageFailed(directory, error.errno or 0, "restoring") from error
        self._index = SparseIndex(segment_bytes)
        self._before = self.last
        """The last entry before the file that is written now."""
        self._start = base.pos
        self._unsynced_bytes = 0
        self._syncer = ThreadPoolExecutor(1, "log-image-sync")
        self._syncs: deque[Future[None]] = deque()

    def add(self, run: EntryRun) -> None:
        """Append verified entries, which continue the last one; the first run of a file begins at its start."""
        start = run.pos - run.pos % self._segment_bytes
        if start != self._start:
            self._close_file(start)
        if not run.data:
            return
        self._files.write(run.pos, [run.data])
        self._unsynced_bytes += len(run.data)
        for entry in run.entries:
            self._index.append(entry.index, entry.term, entry.pos)
            if entry.kind == CONFIG:
                self._index.add_config(entry.index, run.body(entry))
        if run.entries:
            self.last = run.entries[-1]
        if self._unsynced_bytes >= SYNC_EVERY_BYTES:
            self._begin_sync(UNSYNCED_STEPS_MAX)

    def add_snapshot(self, data: bytes) -> None:
        """Store the application's state at the beginning of the log."""
        path = os.path.join(self._directory, SNAPSHOT_NAME)
        try:
            write_file(self._disk, path, data)
        except OSError as error:
            raise StorageFailed(path, error.errno or 0, "write") from error

    def finish(self, state: MetaState) -> None:
        """Make everything durable, and turn it into a log that can be opened. ``state`` is for its last entry."""
        end = self.last.pos + self.last.size
        assert state.durable_pos <= end, f"durable up to {state.durable_pos}, the last entry ends at {end}"
        self._begin_sync(0)
        path = os.path.join(self._directory, FILE_NAME)
        try:
            self._disk.sync_directory(self._directory)
            meta = MetaFile(self._disk, path)
            try:
                # Both slots, so that damage to one of them loses nothing.
                meta.write(state)
                meta.write(state)
            finally:
                meta.close()
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise StorageFailed(path, error.errno or 0, "write") from error

    def close(self) -> None:
        """Wait for the other thread, and close all files."""
        self._syncer.shutdown(cancel_futures=True)
        self._files.close()

    def _close_file(self, start: int) -> None:
        assert start == self._start + self._segment_bytes, f"a file at {start} behind the one at {self._start}"
        assert self.last is not self._before, f"no entry in the file at {self._start}"
        self._begin_sync(UNSYNCED_STEPS_MAX)
        part = self._index.part(self._before.index + 1, self.last.index + 1)
        sidecar = encode_sidecar(ClosedFileIndex(self._before.chain, self.last, part))
        self._syncs.append(self._syncer.submit(self._files.write_sidecar, self._start, sidecar))
        self._before = self.last
        self._start = start

    def _begin_sync(self, unfinished_max: int) -> None:
        """Sync the current file on the other thread, and wait until at most this number of syncs is unfinished."""
        if self._unsynced_bytes:
            self._syncs.append(self._syncer.submit(self._files.sync, self._start))
            self._unsynced_bytes = 0
        while len(self._syncs) > unfinished_max:
            self._syncs.popleft().result()
