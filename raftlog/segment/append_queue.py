"""The queue of a log writer: groups queued operations into few writes and syncs, and carries them out.

An operation is *plain* if it only appends entries: no cut, vote, notes, base or sidecars, without a gap, in one file,
and not more than may be written before a sync. The queue carries out append operations by itself, many with one synced
write; all others are taken from it in order, for `raftlog.segment.group_commit.GroupCommit`.

`PythonAppendQueue` is the reference of the compiled `raftlog.compiled.CompiledAppendQueue`: both make the same calls of
the system in the same order.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

from raftlog.log_numbers import NO_INDEX, LogIndex
from raftlog.segment.codec import TailEntry
from raftlog.segment.disk import IOVECS_MAX, Buffer, write_fully
from raftlog.segment.group_commit import WriteOp

_DURATIONS_MAX = 4096

_QueuedOp = tuple[WriteOp | None, bool]
"""An operation, and whether it is plain, apart from its place in the log and in the queue."""


class SystemCalls(Protocol):
    """The calls of the system that a queue makes. A simulation passes its own, and so does a model of threads."""

    def monotonic(self) -> float:
        """Works like `time.monotonic`. Called on the writer's thread."""

    def locking(self) -> None:
        """Called before the writer's thread locks the queue to look for work: the last moment for other threads."""

    def wait(self, seconds: float | None) -> bool:
        """Wait on the writer's thread until `wake`, for at most ``seconds``; returns False if they are over.

        Called without the lock of the queue. It may return early, as the queue looks whether there is an operation. A
        simulation, which has no thread to keep waiting, always says that the seconds are over, and calls `run` again
        after `wake`, or when they really are.
        """

    def wake(self) -> None:
        """Wake the writer for a queued operation; called unless it is known to look for one.

        Called on the thread that queues.
        """

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int) -> int:
        """Works like `os.pwritev`. Raises `OSError`."""

    def report(self, ticket: int) -> None:
        """Called on the writer's thread when everything up to ``ticket`` is durable."""

    def send(self, fd: int, data: bytes) -> int:
        """Works like `socket.socket.send`, without waiting, for the socket with this descriptor. Called on the writer's
        thread; it must not call the queue. Raises `OSError`.
        """


class AppendQueue(Protocol):
    """The queue of one writer, compiled or not.

    Everything up to ``done_ticket`` is durable; any thread may read it. The others are as of the last `run`:
    where the log ends, the highest commit hint, and the error of the write that ended it (0: none failed).
    """

    @property
    def done_ticket(self) -> int: ...
    @property
    def end_pos(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    @property
    def chain(self) -> int: ...
    @property
    def commit_hint(self) -> int: ...
    @property
    def failure(self) -> int: ...

    def submit(self, op: WriteOp | None) -> None:
        """Queue an operation, or None to close the writer. Does nothing after `stop`. Never waits for the disk."""

    def stop(self) -> None:
        """Drop all queued operations, and all that are submitted from now on."""

    def take(self, bytes_min: int) -> tuple[list[WriteOp], bool]:
        """Remove operations in order, until they have ``bytes_min`` bytes, all are removed, or one of them closes the
        writer. Returns them, without that one, and whether the writer stays open.
        """

    def report(self, ticket: int) -> None:
        """Publish ``ticket`` as durable: called after a write, with the last ticket in it."""

    def signal_from(self, ticket: int) -> int:
        """Signal reports only from ``ticket`` on; the others are only published. Returns the ticket that is done."""

    def send_after(self, ticket: int, fd: int, frame: bytes) -> bool:
        """Send ``frame`` on the writer's thread, as soon as everything up to ``ticket`` is durable. A report of exactly
        this ticket is not signalled then, unless the frame was not sent whole. ``fd`` must stay open until `take_back`
        returns, which must be called before the next frame.

        Returns False, and sends nothing, if that is durable already.
        """

    def take_back(self) -> int:
        """Stop sending the frame of `send_after`. Returns the number of its bytes that were sent before."""

    def run(
        self,
        fd: int,
        file_pos: int,
        limit_pos: int,
        end_pos: int,
        commit_hint: int,
        is_due: bool,
        due_seconds: float,
    ) -> bool:
        """Wait for operations, and carry out plain ones. Raises errors of `SystemCalls` other than `OSError`.

        Args:
            fd, file_pos: the file to write to, and the position of its first byte. It must stay open meanwhile.
            limit_pos: how far the file may be written; ``end_pos`` to write nothing.
            end_pos, commit_hint: of the log.
            is_due: whether to return after ``due_seconds``, although nothing is queued. It counts as true as soon as
                anything has changed.

        Returns whether an operation is next that is not plain. Otherwise the time is up, or a write failed.
        """

    def durations(self) -> list[float]:
        """The seconds that each write since the last call took."""


class ThreadCalls:
    """The calls of a writer that has a thread of its own."""

    def __init__(self) -> None:
        # A token for each call of `wake`. One that comes late only makes the next `wait` return early.
        self._tokens: SimpleQueue[None] = SimpleQueue()

    def monotonic(self) -> float:
        """Works like `time.monotonic`."""
        return time.monotonic()

    def locking(self) -> None:
        """Do nothing: other threads need no permission."""

    def wait(self, seconds: float | None) -> bool:
        """Wait for a token of `wake`, for at most ``seconds``; returns False if they are over."""
        try:
            self._tokens.get(timeout=seconds)
        except Empty:
            return False
        return True

    def wake(self) -> None:
        """Add a token, for which `wait` waits."""
        self._tokens.put(None)


class KernelCalls(ThreadCalls):
    """The system itself; reports are added to an eventfd."""

    def __init__(self, done_fd: int) -> None:
        super().__init__()
        self._done_fd = done_fd

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int) -> int:
        """Works like `os.pwritev`."""
        return os.pwritev(fd, buffers, offset, flags)

    def report(self, ticket: int) -> None:
        """Wake the event loop by adding one to the eventfd."""
        os.eventfd_write(self._done_fd, 1)

    def send(self, fd: int, data: bytes) -> int:
        """Works like `os.write`."""
        return os.write(fd, data)


class PythonAppendQueue:
    """An `AppendQueue` in Python.

    Args:
        done_fd: an eventfd that gets one more with each report of durable operations.
        sync_bytes_max: maximum bytes that are written before they are synced.
        calls: stands for the system; None: the system itself.
    """

    def __init__(self, done_fd: int, sync_bytes_max: int, calls: SystemCalls | None = None) -> None:
        self.done_ticket = 0
        self.end_pos = 0
        self.last_index = NO_INDEX
        self.chain = 0
        self.commit_hint = NO_INDEX
        self.failure = 0
        self.began_at = self.written_at = 0.0  # of the last write; for traces
        self._calls = KernelCalls(done_fd) if calls is None else calls
        self._sync_bytes_max = sync_bytes_max
        self._lock = threading.Lock()  # of the next three
        self._queue: deque[_QueuedOp] = deque()
        self._is_waiting = False  # the next operation must wake the writer
        self._is_stopped = False
        self._durations: list[float] = []
        self._report_lock = threading.Lock()  # of the next three
        self._signal_from = 0
        self._frame: tuple[int, int, bytes] | None = None  # ticket, descriptor
        self._frame_sent = 0

    def submit(self, op: WriteOp | None) -> None:
        """Queue an operation, or None to close the writer, as `AppendQueue.submit`."""
        entry = op, op is not None and self._is_plain(op)
        with self._lock:
            if self._is_stopped:
                return
            self._queue.append(entry)
            is_waited_for, self._is_waiting = self._is_waiting, False
        # Without the lock, which the woken thread needs at once.
        if is_waited_for:
            self._calls.wake()

    def stop(self) -> None:
        """Drop all queued and later operations, as `AppendQueue.stop`."""
        with self._lock:
            self._is_stopped = True
            self._queue.clear()

    def take(self, bytes_min: int) -> tuple[list[WriteOp], bool]:
        """Remove operations of ``bytes_min`` bytes or more in order, as `AppendQueue.take`."""
        batch: list[WriteOp] = []
        nbytes = 0
        with self._lock:
            while self._queue and nbytes < bytes_min:
                op, _ = self._queue.popleft()
                if op is None:
                    return batch, False
                nbytes += op.nbytes
                batch.append(op)
        return batch, True

    def report(self, ticket: int) -> None:
        """Publish the durable ticket, send its frame, and signal it if it is wanted, as `AppendQueue.report`."""
        with self._report_lock:
            assert ticket > self.done_ticket, f"ticket {ticket} after {self.done_ticket}"
            self.done_ticket = ticket
            is_signalled = ticket >= self._signal_from
            if self._frame is not None and self._frame[0] <= ticket:
                is_signalled = self._send_frame(ticket, is_signalled=is_signalled)
        if is_signalled:
            self._calls.report(ticket)

    def _send_frame(self, ticket: int, *, is_signalled: bool) -> bool:
        """Send the frame that waits for a ticket, now durable; returns whether the report is still signalled."""
        assert self._frame is not None
        (frame_ticket, fd, frame), self._frame = self._frame, None
        try:
            self._frame_sent = self._calls.send(fd, frame)
        except OSError:
            self._frame_sent = 0
        if self._frame_sent < len(frame):
            return True
        return is_signalled and frame_ticket != ticket

    def signal_from(self, ticket: int) -> int:
        """Signal reports only from ``ticket`` on, as `AppendQueue.signal_from`."""
        with self._report_lock:
            self._signal_from = ticket
            return self.done_ticket

    def send_after(self, ticket: int, fd: int, frame: bytes) -> bool:
        """Keep ``frame`` until ``ticket`` is durable, then send it, as `AppendQueue.send_after`."""
        with self._report_lock:
            assert self._frame is None, "a frame waits already"
            assert not self._frame_sent, "nobody has asked whether the last frame was sent"
            if self.done_ticket >= ticket:
                return False
            self._frame = ticket, fd, frame
            return True

    def take_back(self) -> int:
        """Drop the unsent frame; returns how many bytes were sent, as `AppendQueue.take_back`."""
        with self._report_lock:
            self._frame = None
            nbytes, self._frame_sent = self._frame_sent, 0
            return nbytes

    def run(
        self,
        fd: int,
        file_pos: int,
        limit_pos: int,
        end_pos: int,
        commit_hint: int,
        is_due: bool,
        due_seconds: float,
    ) -> bool:
        """Wait for operations, and carry out plain ones, as `AppendQueue.run`."""
        calls = self._calls
        due = calls.monotonic() + due_seconds
        # What is told if nothing comes in time.
        self.failure, self.end_pos, self.commit_hint = 0, end_pos, LogIndex(commit_hint)
        while True:
            calls.locking()
            with self._lock:
                if not self._wait(due if is_due else None):
                    return False
                ops = self._cut_plain(limit_pos)
            if not ops:
                return True
            is_changed = self._carry_out(fd, file_pos, ops)
            is_due = is_due or is_changed
            is_late = is_due and calls.monotonic() >= due
            if self.failure or is_late or len(self._durations) == _DURATIONS_MAX:
                return False

    def _carry_out(self, fd: int, file_pos: int, ops: Sequence[WriteOp]) -> bool:
        """Write append operations and report them, or set ``failure``; returns whether they change anything."""
        calls, before = self._calls, (self.end_pos, self.commit_hint)
        entries = [entry for op in ops for entry in op.entries]
        self.began_at = calls.monotonic()
        try:
            if entries:
                buffers = [buffer for entry in entries for buffer in (entry.header, entry.body)]
                write_fully(self._write, fd, buffers, self.end_pos - file_pos)
        except OSError as error:
            self.failure = error.errno or errno.EIO
            return False
        self.written_at = calls.monotonic()
        self._durations.append(self.written_at - self.began_at)
        if entries:
            self._note(entries[-1])
        self.commit_hint = max(self.commit_hint, *[op.commit_hint or NO_INDEX for op in ops])
        self.report(ops[-1].ticket)
        return before != (self.end_pos, self.commit_hint)

    def durations(self) -> list[float]:
        """The seconds that each write since the last call took, as `AppendQueue.durations`."""
        seconds, self._durations = self._durations, []
        return seconds

    def _write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        while True:
            try:
                return self._calls.write(fd, buffers, offset, os.RWF_DSYNC)
            except InterruptedError:
                continue

    def _note(self, last: TailEntry) -> None:
        self.end_pos = last.pos + last.size
        self.last_index = last.index
        self.chain = last.chain

    def _wait(self, due: float | None) -> bool:
        """Wait for an operation, with the lock; returns False when the time is up."""
        calls = self._calls
        while not self._queue:
            # It stays so when the time is up, until there is an operation: a needless call of `wake` does no harm.
            self._is_waiting = True
            self._lock.release()
            try:
                is_over = not calls.wait(None if due is None else max(0.0, due - calls.monotonic()))
            finally:
                self._lock.acquire()
            if is_over and not self._queue:
                return False
        self._is_waiting = False
        return True

    def _cut_plain(self, limit_pos: int) -> list[WriteOp]:
        """Cut off the first operations that one write can do, with the lock."""
        ops: list[WriteOp] = []
        pos, buffers = self.end_pos, 0
        while self._queue:
            op, is_plain = self._queue[0]
            if op is None or not is_plain:
                break
            if op.entries:
                end = op.entries[-1].pos + op.entries[-1].size
                buffers += 2 * len(op.entries)
                is_too_much = end - self.end_pos > self._sync_bytes_max or buffers > IOVECS_MAX
                if op.entries[0].pos != pos or end > limit_pos or is_too_much:
                    break
                pos = end
            ops.append(op)
            self._queue.popleft()
        return ops

    def _is_plain(self, op: WriteOp) -> bool:
        if op.cut is not None or op.hard_state is not None or op.notes is not None or op.base is not None or op.closed:
            return False
        if op.nbytes > self._sync_bytes_max or 2 * len(op.entries) > IOVECS_MAX:
            return False
        pos = first = op.entries[0].pos if op.entries else 0
        for entry in op.entries:
            if type(entry.header) is not bytes or type(entry.body) is not bytes or entry.pos != pos:
                return False
            pos += entry.size
        return not op.entries or pos - first == op.nbytes
