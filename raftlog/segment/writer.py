"""Runs writers of a log: in a separate thread of a process, or in the caller in a simulation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from raftlog.compiled.loaded import IS_COMPILED, CompiledAppendQueue
from raftlog.log_numbers import LogIndex
from raftlog.segment.append_queue import AppendQueue, PythonAppendQueue
from raftlog.segment.errors import StorageFailed
from raftlog.segment.group_commit import GroupCommit, Store, WriteOp
from raftlog.segment.limits import DEFAULT

OnDone = Callable[[int], None]
OnFailure = Callable[[Exception], None]


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

    def signal_from(self, ticket: int) -> int:
        """Signal reports only from ``ticket`` on, as `AppendQueue.signal_from`. Returns the ticket that is done."""

    def send_after(self, ticket: int, fd: int, frame: bytes) -> bool:
        """Send ``frame`` when ``ticket`` is durable, as `AppendQueue.send_after`; False also if it is never sent."""

    def take_back(self) -> int:
        """Drop the unsent frame; returns how many bytes were sent, as `AppendQueue.take_back`."""

    def close(self, *, clean: bool) -> None:
        """Finish queued operations and release the writer; ``clean`` as for `SegmentLog.close`."""


class InlineWriter:
    """Executes each operation before `submit` returns: for tests and for simulated time.

    Args:
        on_done: called from within `submit` with the newest durable ticket.
        on_failed: as for `Writer`, but called from within `submit`.
        clock: seconds, for the age of the markers; a simulation passes its own.
    """

    def __init__(
        self,
        on_done: OnDone = lambda ticket: None,
        on_failed: OnFailure | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.done_ticket = 0
        self._on_done = on_done
        self._on_failed = on_failed
        self._clock = clock
        self._commit: GroupCommit | None = None

    def start(self, store: Store) -> None:
        """Set the files of a log that was just opened; called once."""
        assert self._commit is None, "the writer was started before"
        self._commit = GroupCommit(store, self._clock, prepare_ahead=False)

    def submit(self, op: WriteOp) -> None:
        """Execute one operation.

        Raises:
            StorageFailed: a disk error, without an ``on_failed`` for it.
        """
        commit = self._commit
        if commit is None:
            return
        assert op.ticket > self.done_ticket, f"ticket {op.ticket} after {self.done_ticket}"
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

    def signal_from(self, ticket: int) -> int:
        """Return the ticket that is done; all reports are signalled."""
        return self.done_ticket

    def send_after(self, ticket: int, fd: int, frame: bytes) -> bool:
        """Send nothing: all submitted operations are durable."""
        return False

    def take_back(self) -> int:
        """Return 0: no frame is ever sent."""
        return 0

    def close(self, *, clean: bool) -> None:
        """Release the writer; with ``clean``, leave the mark of a clean end."""
        commit, self._commit = self._commit, None
        if commit is not None and clean:
            commit.close(clean=True)


class QueueTurns:
    """The work of a writer's thread: append operations are carried out by its queue, all others by `GroupCommit`.

    Args:
        observe: called with the seconds that each write took, including its sync.
        prepare_ahead: as for `GroupCommit`.
    """

    def __init__(
        self,
        queue: AppendQueue,
        store: Store,
        clock: Callable[[], float],
        observe: Callable[[float], None],
        *,
        prepare_ahead: bool,
    ) -> None:
        self.commit = GroupCommit(store, clock, prepare_ahead=prepare_ahead)
        self._files = store.files
        self._queue = queue
        self._clock = clock
        self._observe = observe

    def wait(self) -> bool:
        """Wait for operations and carry them out; returns whether the writer stays open. Raises `StorageFailed`."""
        commit, queue = self.commit, self._queue
        is_due = commit.marker_delay() is not None
        is_open = True
        with self._open_file() as (fd, start, limit):
            seconds = commit.marker_seconds()
            has_work = queue.run(fd, start, limit, commit.end_pos, commit.commit_hint, is_due, seconds)
        self._record_written(start)
        if has_work:
            is_open = self._carry_out_others()
        if commit.marker_delay() == 0.0:
            # After the report, so that nothing waits for it.
            commit.write_markers()
        return is_open

    @contextmanager
    def _open_file(self) -> Iterator[tuple[int, int, int]]:
        """The file that append operations may be written to, where it starts, and up to where they may be written."""
        commit, files = self.commit, self._files
        start, limit = files.start_of(commit.end_pos), commit.append_limit()
        if limit <= commit.end_pos:
            yield -1, start, limit
            return
        file_end = start + files.segment_bytes
        assert limit <= file_end, f"writes up to {limit} in the file that ends at {file_end}"
        with files.use_file(start) as fd:
            yield fd, start, limit

    def _record_written(self, start: int) -> None:
        queue = self._queue
        for seconds in queue.durations():
            self._observe(seconds)
        if queue.failure:
            raise StorageFailed(self._files.path(start), queue.failure, "write")
        self.commit.record_written(queue.end_pos, LogIndex(queue.last_index), queue.chain, LogIndex(queue.commit_hint))

    def _carry_out_others(self) -> bool:
        batch, is_open = self._queue.take(self._files.limits.sync_bytes_max)
        if batch:
            ticket = self._queue.done_ticket
            assert batch[0].ticket > ticket, f"ticket {batch[0].ticket} after {ticket}"
            began = self._clock()
            self.commit.apply(batch)
            seconds = self._clock() - began
            self._queue.report(batch[-1].ticket)
            self._observe(seconds)
        return is_open


class Writer:
    """One thread that writes and syncs a log (group commit).

    It takes everything that is queued, up to `LogLimits.sync_bytes_max`, writes it, syncs once, and reports its newest
    ticket. There is no artificial delay: while one sync runs, the next batch accumulates.

    Args:
        queue: its queue, which also reports; a compiled one needs the interpreter's lock only now and then.
        on_failed: called ON THE WRITER'S THREAD, once, with the error, a `StorageFailed` if it was the disk. The thread
            has stopped then, for good: after a failed sync the kernel may have dropped the pages, so that a second
            try would succeed without the data.
        observe: called on that thread with the seconds that each write took, including its sync, up to
            `MARKER_SECONDS` later.
        clock: seconds; a model of threads passes its own.

    Attributes:
        submit, signal_from, send_after, take_back: the queue's methods; see `LogWriter`.
    """

    def __init__(
        self,
        queue: AppendQueue,
        on_failed: OnFailure,
        observe: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._on_failed = on_failed
        self._observe = observe
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._clean = False
        self.submit: Callable[[WriteOp], None] = queue.submit
        self.signal_from = queue.signal_from
        self.send_after = queue.send_after
        self.take_back = queue.take_back

    @property
    def done_ticket(self) -> int:
        """Return the ticket up to which everything is durable."""
        return self._queue.done_ticket

    def start(self, store: Store) -> None:
        """Set the files of a log that was just opened, and start the thread; called once."""
        assert self._thread is None, "the writer was started before"
        self._thread = threading.Thread(target=self._run, args=(store,), name="log-writer", daemon=True)
        self._thread.start()

    def close(self, *, clean: bool) -> None:
        """Finish queued operations, write the last markers, and end the thread. Waits for the disk."""
        if self._thread is not None:
            self._clean = clean
            self._queue.submit(None)
            self._thread.join()
            self._thread = None

    def _run(self, store: Store) -> None:
        try:
            turns = QueueTurns(self._queue, store, self._clock, self._observe, prepare_ahead=True)
            while turns.wait():
                pass
            if self._clean:
                turns.commit.close(clean=True)
        except Exception as error:
            # Any error, including our own bugs: the replica must learn that nothing is written from now on.
            self._queue.stop()
            self._on_failed(error)


def threaded_writer(
    done_fd: int,
    on_failed: OnFailure,
    observe: Callable[[float], None] = lambda seconds: None,
    *,
    sync_bytes_max: int = DEFAULT.sync_bytes_max,
) -> Writer:
    """A writer for a log on a `RealDisk`, with a compiled queue if there is one.

    Args:
        done_fd: an eventfd that gets one more when `Writer.done_ticket` has risen. It must stay open until `close`
            returns.
        on_failed, observe: as for `Writer`.
        sync_bytes_max: as in the limits of the log.
    """
    queue = CompiledAppendQueue(done_fd, sync_bytes_max) if IS_COMPILED else PythonAppendQueue(done_fd, sync_bytes_max)
    return Writer(queue, on_failed, observe)
