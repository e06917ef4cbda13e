"""Writers of a log: a separate thread in a process, the caller itself in a simulation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

from raftlog.segment.codec import SYNC_BYTES_MAX
from raftlog.segment.errors import StorageFailed
from raftlog.segment.group_commit import GroupCommit, Store, WriteOp

OnDone = Callable[[int], None]
OnFailed = Callable[[Exception], None]


class LogWriter(Protocol):
    """Processes operations in order and makes them durable.

    Everything up to ``done_ticket`` is durable; it may change on another thread.
    """

    @property
    def done_ticket(self) -> int: ...

    def start(self, store: Store) -> None:
        """Set the files of a log that was just opened; called once."""

    def submit(self, op: WriteOp) -> None:
        """Queue one operation. Never waits for the disk; does nothing after a failure."""

    def close(self, *, clean: bool) -> None:
        """Finish queued operations and release the writer; ``clean`` as for `SegmentLog.close`."""


class InlineWriter:
    """Executes each operation before `submit` returns: for tests and for simulated time.

    Args:
        on_done, on_failed: as for `Writer`, but called from within `submit`.
        clock: seconds, for the age of the markers; a simulation passes its own.
    """

    def __init__(
        self,
        on_done: OnDone = lambda ticket: None,
        on_failed: OnFailed | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.done_ticket = 0
        self._on_done = on_done
        self._on_failed = on_failed
        self._clock = clock
        self._commit: GroupCommit | None = None

    def start(self, store: Store) -> None:
        """See `LogWriter.start`."""
        self._commit = GroupCommit(store, self._clock, prepare_ahead=False)

    def submit(self, op: WriteOp) -> None:
        """Execute one operation.

        Raises:
            StorageFailed: a disk error, without an ``on_failed`` for it.
        """
        commit = self._commit
        if commit is None:
            return
        try:
            commit.apply([op])
            if commit.marker_delay() == 0.0:
                commit.write_markers()
        except StorageFailed as error:
            self._commit = None
            if self._on_failed is None:
                raise
            self._on_failed(error)
            return
        self.done_ticket = op.ticket
        self._on_done(op.ticket)

    def close(self, *, clean: bool) -> None:
        """See `LogWriter.close`."""
        commit, self._commit = self._commit, None
        if commit is not None and clean:
            commit.close(clean=True)


class Writer:
    """One thread that writes and syncs a log (group commit).

    It takes everything that is queued, up to 1 MiB, writes it, syncs once, and reports its newest ticket. There is no
    artificial delay: while one sync runs, the next batch accumulates.

    Args:
        on_done: called ON THE WRITER'S THREAD with the newest durable ticket.
        on_failed: called on that thread, once, with the error, a `StorageFailed` if it was the disk. The thread
            has stopped then, for good: after a failed sync the kernel may have dropped the pages, so that a second
            try would succeed without the data.
        observe: called on that thread with the seconds that each write took, including its sync.
    """

    def __init__(
        self,
        on_done: OnDone,
        on_failed: OnFailed,
        clock: Callable[[], float] = time.monotonic,
        observe: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.done_ticket = 0
        self._on_done = on_done
        self._on_failed = on_failed
        self._clock = clock
        self._observe = observe
        self._queue: SimpleQueue[WriteOp | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._clean = False

    def start(self, store: Store) -> None:
        """See `LogWriter.start`."""
        assert self._thread is None, "the writer was started before"
        self._thread = threading.Thread(target=self._run, args=(store,), name="log-writer", daemon=True)
        self._thread.start()

    def submit(self, op: WriteOp) -> None:
        """See `LogWriter.submit`."""
        self._queue.put(op)

    def close(self, *, clean: bool) -> None:
        """Finish queued operations, write the last markers, and end the thread. Waits for the disk."""
        if self._thread is not None:
            self._clean = clean
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self, store: Store) -> None:
        try:
            commit = GroupCommit(store, self._clock, prepare_ahead=True)
            while self._turn(commit):
                pass
            if self._clean:
                commit.close(clean=True)
        except Exception as error:
            # Any error, including our own bugs: the replica must learn that nothing is written any more.
            self._on_failed(error)

    def _turn(self, commit: GroupCommit) -> bool:
        queue = self._queue
        try:
            op = queue.get(timeout=commit.marker_delay())
        except Empty:
            commit.write_markers()
            return True
        batch: list[WriteOp] = []
        nbytes = 0
        while op is not None:
            batch.append(op)
            nbytes += op.nbytes
            if nbytes >= SYNC_BYTES_MAX or queue.empty():
                break
            op = queue.get()
        if batch:
            began = self._clock()
            commit.apply(batch)
            seconds = self._clock() - began
            self.done_ticket = batch[-1].ticket
            self._on_done(self.done_ticket)
            self._observe(seconds)
            if commit.marker_delay() == 0.0:
                # After the report, so that nothing waits for it.
                commit.write_markers()
        return op is not None
