"""A log writer that rarely needs the interpreter's lock, if `raftlog.compiled.plain_writes` is there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from raftlog.compiled.sources import require_current, require_wanted
from raftlog.log_numbers import LogIndex
from raftlog.segment.codec import SYNC_BYTES_MAX
from raftlog.segment.errors import StorageFailed
from raftlog.segment.files import SegmentFiles
from raftlog.segment.group_commit import GroupCommit, Store, WriteOp
from raftlog.segment.writer import OnFailed, Writer

try:
    require_wanted()
    from raftlog.compiled import plain_writes

    require_current(Path(plain_writes.__file__).parent, plain_writes.COMPILED_FROM)
    IS_COMPILED = True
except (ImportError, OSError):
    IS_COMPILED = False


class CompiledWriter:
    """As `Writer`, but its thread carries out plain operations without the interpreter's lock; see `PlainWrites`.

    It passes everything else to `GroupCommit`, in order. Its files must be on a `RealDisk`.

    Args:
        done_fd: an eventfd that gets one more when `done_ticket` has risen. It must stay open until `close` returns.
        on_failed, observe: as for `Writer`; ``observe`` is called up to `MARKER_SECONDS` later.
    """

    def __init__(
        self, done_fd: int, on_failed: OnFailed, observe: Callable[[float], None] = lambda seconds: None
    ) -> None:
        assert IS_COMPILED, "python -m mq.compiled"
        self._writes = plain_writes.PlainWrites(done_fd, SYNC_BYTES_MAX)
        self._on_failed = on_failed
        self._observe = observe
        self._thread: threading.Thread | None = None
        self._clean = False

    @property
    def done_ticket(self) -> int:
        """See `LogWriter`."""
        return self._writes.done_ticket

    def start(self, store: Store) -> None:
        """See `LogWriter.start`."""
        assert self._thread is None, "the writer was started before"
        self._thread = threading.Thread(target=self._run, args=(store,), name="log-writer", daemon=True)
        self._thread.start()

    def submit(self, op: WriteOp) -> None:
        """See `LogWriter.submit`."""
        self._writes.submit(op)

    def close(self, *, clean: bool) -> None:
        """Finish queued operations, write the last markers, and end the thread. Waits for the disk."""
        if self._thread is not None:
            self._clean = clean
            self._writes.submit(None)
            self._thread.join()
            self._thread = None

    def _run(self, store: Store) -> None:
        try:
            commit = GroupCommit(store, time.monotonic, prepare_ahead=True)
            while self._turn(commit, store.files):
                pass
            if self._clean:
                commit.close(clean=True)
        except Exception as error:
            # Any error, including our own bugs: the replica must learn that nothing is written any more.
            self._writes.stop()
            self._on_failed(error)

    def _turn(self, commit: GroupCommit, files: SegmentFiles) -> bool:
        is_open = True
        if self._write_plain(commit, files):
            batch, is_open = self._writes.take(SYNC_BYTES_MAX)
            if batch:
                began = time.monotonic()
                commit.apply(batch)
                seconds = time.monotonic() - began
                self._writes.report(batch[-1].ticket)
                self._observe(seconds)
        if commit.marker_delay() == 0.0:
            # After the report, so that nothing waits for it.
            commit.write_markers()
        return is_open

    def _write_plain(self, commit: GroupCommit, files: SegmentFiles) -> bool:
        """Wait, and write plain operations; returns whether another one is next. Raises `StorageFailed`."""
        writes = self._writes
        start = files.start_of(commit.end_pos)
        limit = commit.plain_limit()
        is_due = commit.marker_delay() is not None
        with files.opened(start) if limit > commit.end_pos else nullcontext(-1) as fd:
            found = writes.run(fd, start, limit, commit.end_pos, commit.commit_hint, is_due, commit.marker_seconds())
        for seconds in writes.durations():
            self._observe(seconds)
        if writes.failure:
            raise StorageFailed(files.path(start), writes.failure, "write")
        commit.note_written(writes.end_pos, LogIndex(writes.last_index), writes.chain, LogIndex(writes.commit_hint))
        return found


def threaded_writer(
    done_fd: int, on_failed: OnFailed, observe: Callable[[float], None] = lambda seconds: None
) -> Writer | CompiledWriter:
    """A writer for a log on a `RealDisk`, compiled if that is possible. The arguments are those of `CompiledWriter`."""
    if IS_COMPILED:
        return CompiledWriter(done_fd, on_failed, observe)
    return Writer(lambda ticket: os.eventfd_write(done_fd, 1), on_failed, observe=observe)
