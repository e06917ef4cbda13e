"""The queue of a log writer: which operations it writes by itself, how it groups them, and what it calls of the system.

An operation is *plain* if it only appends entries: no cut, vote, notes, base or sidecars, without a gap, in one file,
and not more than may be written before a sync. The queue carries out plain operations by itself, many with one synced
write; all others are taken from it in order, for `raftlog.segment.group_commit.GroupCommit`.

`PythonPlainWrites` is the reference of the compiled `raftlog.compiled.PlainWrites`: both make the same calls of the
system in the same order.
"""

from __future__ import annotations

import enum
import errno
import os
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

_Queued = tuple[WriteOp | None, bool]
"""An operation, and whether it is plain, apart from its place in the log and in the queue."""


class Turn(enum.IntEnum):
    """What a turn of a writer has done."""

    IDLE = 0
    """Nothing is queued."""
    WRITTEN = 1
    """Plain operations are durable and reported."""
    NOT_PLAIN = 2
    """Nothing: an operation is next that is not plain."""
    FAILED = 3
    """A write failed; see `PlainQueue.failure`."""


class SystemCalls(Protocol):
    """The calls of the system that a queue makes. A simulation passes its own."""

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int) -> int:
        """As `os.pwritev`. Raises `OSError`."""

    def wake(self) -> None:
        """An operation was queued, and the writer waits for one. Called on the thread that queues."""

    def report(self, ticket: int) -> None:
        """Everything up to ``ticket`` is durable. Called on the writer's thread."""


class PlainQueue(Protocol):
    """The queue of one writer, compiled or not.

    Everything up to ``done_ticket`` is durable; any thread may read it. The others are as of the last `run` or `turn`:
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
        """Drop what is queued, and everything that is submitted from now on."""

    def take(self, bytes_min: int) -> tuple[list[WriteOp], bool]:
        """Remove operations in order, until they have ``bytes_min`` bytes, all are removed, or one of them closes the
        writer. Returns them, without that one, and whether the writer stays open.
        """

    def report(self, ticket: int) -> None:
        """Everything up to ``ticket`` is durable."""

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
        """Wait for operations, and carry out plain ones.

        Args:
            fd, file_pos: the file to write to, and the position of its first byte. It must stay open meanwhile.
            limit_pos: how far the file may be written; ``end_pos`` to write nothing.
            end_pos, commit_hint: of the log.
            is_due: whether to return after ``due_seconds``, although nothing is queued. It counts as true as soon as
                anything has changed.

        Returns whether an operation is next that is not plain. Otherwise the time is up, or a write failed.
        """

    def turn(self, fd: int, file_pos: int, limit_pos: int, end_pos: int, commit_hint: int) -> int:
        """One turn of `run`, without waiting; returns a `Turn`. After ``IDLE``, the next operation wakes the writer."""

    def durations(self) -> list[float]:
        """How long each write since the last call took, in seconds."""


class KernelCalls:
    """The system itself; reports are added to an eventfd."""

    def __init__(self, done_fd: int) -> None:
        self._done_fd = done_fd

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int) -> int:
        """See `SystemCalls.write`."""
        return os.pwritev(fd, buffers, offset, flags)

    def wake(self) -> None:
        """The queue itself wakes its thread."""

    def report(self, ticket: int) -> None:
        """See `SystemCalls.report`."""
        os.eventfd_write(self._done_fd, 1)


class PythonPlainWrites:
    """A `PlainQueue` in Python.

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
        self._calls = KernelCalls(done_fd) if calls is None else calls
        self._sync_bytes_max = sync_bytes_max
        self._submitted: SimpleQueue[_Queued] = SimpleQueue()
        self._head: deque[_Queued] = deque()  # of the queue; the writer's thread owns it
        self._is_waiting = False
        self._is_stopped = False
        self._durations: list[float] = []

    def submit(self, op: WriteOp | None) -> None:
        """See `PlainQueue.submit`."""
        if self._is_stopped:
            return
        self._submitted.put((op, op is not None and self._is_plain(op)))
        if self._is_waiting:
            self._is_waiting = False
            self._calls.wake()

    def stop(self) -> None:
        """See `PlainQueue.stop`."""
        self._is_stopped = True
        self._refill()
        self._head.clear()

    def take(self, bytes_min: int) -> tuple[list[WriteOp], bool]:
        """See `PlainQueue.take`."""
        self._refill()
        taken: list[WriteOp] = []
        nbytes = 0
        while self._head and nbytes < bytes_min:
            op, _ = self._head.popleft()
            if op is None:
                return taken, False
            nbytes += op.nbytes
            taken.append(op)
        return taken, True

    def report(self, ticket: int) -> None:
        """See `PlainQueue.report`."""
        self.done_ticket = ticket
        self._calls.report(ticket)

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
        """See `PlainQueue.run`."""
        due = time.monotonic() + due_seconds
        # What is told if nothing comes in time.
        self.failure, self.end_pos, self.commit_hint = 0, end_pos, LogIndex(commit_hint)
        while self._wait(max(0.0, due - time.monotonic()) if is_due else None):
            done = self.turn(fd, file_pos, limit_pos, end_pos, commit_hint)
            if done == Turn.NOT_PLAIN:
                return True
            is_due = is_due or (self.end_pos, self.commit_hint) != (end_pos, commit_hint)
            is_late = is_due and time.monotonic() >= due
            if done == Turn.FAILED or is_late or len(self._durations) == _DURATIONS_MAX:
                return False
            end_pos, commit_hint = self.end_pos, self.commit_hint
        return False

    def turn(self, fd: int, file_pos: int, limit_pos: int, end_pos: int, commit_hint: int) -> int:
        """See `PlainQueue.turn`."""
        self.failure = 0
        self.end_pos = end_pos
        self.commit_hint = LogIndex(commit_hint)
        self._refill()
        self._is_waiting = not self._head
        if self._is_waiting:
            return Turn.IDLE
        ops = self._cut_plain(limit_pos)
        if not ops:
            return Turn.NOT_PLAIN
        entries = [entry for op in ops for entry in op.entries]
        began = time.monotonic()
        try:
            if entries:
                buffers = [buffer for entry in entries for buffer in (entry.header, entry.body)]
                write_fully(self._write, fd, buffers, end_pos - file_pos)
        except OSError as error:
            self.failure = error.errno or errno.EIO
            return Turn.FAILED
        self._durations.append(time.monotonic() - began)
        if entries:
            self._note(entries[-1])
        self.commit_hint = max(self.commit_hint, *[op.commit_hint or NO_INDEX for op in ops])
        self.report(ops[-1].ticket)
        return Turn.WRITTEN

    def durations(self) -> list[float]:
        """See `PlainQueue.durations`."""
        taken, self._durations = self._durations, []
        return taken

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

    def _wait(self, seconds: float | None) -> bool:
        """Wait for an operation; returns False when the time is up."""
        if not self._head:
            try:
                self._head.append(self._submitted.get(timeout=seconds))
            except Empty:
                return False
        return True

    def _refill(self) -> None:
        while not self._submitted.empty():
            self._head.append(self._submitted.get())

    def _cut_plain(self, limit_pos: int) -> list[WriteOp]:
        """Cut off the first operations that one write can do."""
        ops: list[WriteOp] = []
        pos, buffers = self.end_pos, 0
        while self._head:
            op, is_plain = self._head[0]
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
            self._head.popleft()
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
