"""The writer of a log in simulated time: the real code writes submitted entries, after a latency.

This is the code of a writer's thread (`raftlog.segment.writer.QueueTurns`) and of its queue, in Cython or in Python,
with the loop in which the queue waits and writes. Instead of the kernel, the queue calls a simulated disk and a
simulated clock. The queue wakes the writer, as it wakes a thread: a writer that is not woken continues only when the
time of its wait is over. Entries that the queue reports must be on the disk at that moment.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from random import Random

from chaos.buggify import Buggify
from chaos.disk import MemoryDisk, PowerCut
from chaos.violation import Violation
from chaos.writer_calls import SteppedCalls
from raftlog.compiled.loaded import IS_COMPILED, CompiledAppendQueue
from raftlog.segment.append_queue import PythonAppendQueue
from raftlog.segment.errors import StorageFailed
from raftlog.segment.group_commit import Store, WriteOp
from raftlog.segment.writer import QueueTurns

_TIMER_SECONDS_MIN = 0.001
"""The shortest wait: a thread never continues before its time, although the sum of two floats may be."""

Later = Callable[[float, Callable[[], None]], None]
"""``later(seconds, step)``: run ``step`` at this node after ``seconds``, unless its process has ended."""


class SimWriter:
    """A writer that a simulation steps; see `raftlog.segment.writer.LogWriter`.

    Args:
        disk: where the files are.
        latency: seconds that the next write takes.
        on_done: called in a turn of the node when the queue has signalled that a ticket is durable.
        on_send: called with the frame of `send_after`; returns the number of its bytes that the network took.
        on_failed: called in a turn of the node, once, with the error; nothing is written after it.
        faults: draws which writes are short or interrupted.
        sync_bytes_max: bytes that are taken together, as of the log.
    """

    def __init__(
        self,
        *,
        disk: MemoryDisk,
        later: Later,
        latency: Callable[[], float],
        clock: Callable[[], float],
        on_done: Callable[[], None],
        on_send: Callable[[bytes], int],
        on_failed: Callable[[Exception], None],
        buggify: Buggify,
        faults: Random,
        sync_bytes_max: int,
    ) -> None:
        self._checked_ticket = 0
        self._frame_ticket = 0
        self._is_signalled = False
        self._disk = disk
        self._later = later
        self._latency = latency
        self._clock = clock
        self._on_done = on_done
        self._on_send = on_send
        self._on_failed = on_failed
        self._buggify = buggify
        self._queue: deque[WriteOp] = deque()
        self._batch: list[WriteOp] = []
        calls = SteppedCalls(
            disk,
            self._on_report,
            faults,
            clock=clock,
            on_wait=self._on_wait,
            on_wake=self._on_wake,
            on_send=self._send_frame,
        )
        self._sync_bytes_max = sync_bytes_max
        self._writes = (CompiledAppendQueue if IS_COMPILED else PythonAppendQueue)(-1, sync_bytes_max, calls)
        self._turns: QueueTurns | None = None
        self._store: Store | None = None
        self._is_waiting = False
        self._is_timer_set = False

    @property
    def done_ticket(self) -> int:
        return self._writes.done_ticket

    @property
    def busy(self) -> bool:
        """Whether a submitted write is not durable yet."""
        return bool(self._batch or self._queue)

    def start(self, store: Store) -> None:
        self._store = store
        self._turns = QueueTurns(self._writes, store, self._clock, lambda seconds: None, prepare_ahead=False)
        self._run(self._turns)  # it waits from now on

    def submit(self, op: WriteOp) -> None:
        self._queue.append(op)
        if not self._batch:
            self._begin()

    def signal_from(self, ticket: int) -> int:
        return self._writes.signal_from(ticket)

    def send_after(self, ticket: int, fd: int, frame: bytes) -> bool:
        self._frame_ticket = ticket
        return self._writes.send_after(ticket, fd, frame)

    def take_back(self) -> int:
        return self._writes.take_back()

    def close(self, *, clean: bool) -> None:
        turns, self._turns = self._turns, None
        if turns is None:
            return
        self._batch += self._queue
        for op in (*self._queue, None):
            self._writes.submit(op)
        while turns.wait():
            pass
        if clean:
            turns.commit.close(clean=True)

    def stop_midway(self, disk: MemoryDisk, operations: int) -> None:
        """End the process after ``operations`` more disk operations, with or without a power cut."""
        turns, self._turns = self._turns, None
        if turns is None or not self._batch:
            return
        disk.cut_power_after(operations)
        try:
            self._run(turns)
        except (PowerCut, StorageFailed):
            return

    def abandon(self) -> None:
        """Discard unwritten entries, since the process has ended."""
        self._turns = None
        self._writes.stop()

    def _begin(self) -> None:
        nbytes = 0
        while self._queue and nbytes < self._sync_bytes_max:
            op = self._queue.popleft()
            self._batch.append(op)
            nbytes += op.nbytes
            if self._buggify("one-write-at-a-time"):
                break
        for op in list(self._batch):
            self._writes.submit(op)

    def _on_wake(self) -> None:
        if self._turns is not None:
            self._later(self._latency() + (1.5 if self._buggify("slow-write") else 0.0), self._finish)

    def _finish(self) -> None:
        turns = self._turns
        if turns is None:
            return
        try:
            self._run(turns)
        except StorageFailed as error:
            self._check_up_to(self.done_ticket)
            self._wake_node()
            self._fail(error)
            return
        self._check_up_to(self.done_ticket)
        if self._queue and not self._batch:
            self._begin()
        self._wake_node()

    def _wake_node(self) -> None:
        """Wake the node if the queue has signalled."""
        if self._is_signalled:
            self._is_signalled = False
            self._on_done()

    def _run(self, turns: QueueTurns) -> None:
        """Let the writer continue until it waits. Raises `StorageFailed`."""
        self._is_waiting = False
        while not self._is_waiting:
            assert turns.wait(), "nobody has closed the writer"

    def _on_wait(self, seconds: float | None) -> None:
        """Let the writer wait, for at most ``seconds`` if not None."""
        if seconds == 0.0:
            return
        self._is_waiting = True
        if seconds is not None and not self._is_timer_set:
            self._is_timer_set = True
            late = 0.5 if self._buggify("late-markers") else 0.0
            self._later(max(seconds, _TIMER_SECONDS_MIN) + late, self._on_timer)

    def _on_timer(self) -> None:
        """End a wait whose time is over, unless the writer was woken by queued entries and is writing."""
        self._is_timer_set = False
        turns = self._turns
        if turns is None or self._batch:
            return
        try:
            self._run(turns)
        except StorageFailed as error:
            self._fail(error)

    def _on_report(self, ticket: int) -> None:
        """Check that everything up to ``ticket`` is durable when the queue reports it."""
        if ticket < self._checked_ticket or ticket != self.done_ticket:
            raise Violation(f"the log writer reports ticket {ticket}, but {self.done_ticket} is done")
        self._check_up_to(ticket)
        self._is_signalled = True

    def _send_frame(self, frame: bytes) -> int:
        """Send a frame that may leave only after a ticket is durable. Return the bytes that the network took."""
        self._check_up_to(self.done_ticket)
        if self._frame_ticket > self._checked_ticket:
            raise Violation(f"a frame of ticket {self._frame_ticket} was sent when {self._checked_ticket} was durable")
        if self._turns is None or self._buggify("socket-full"):
            raise BlockingIOError(errno.EAGAIN, "the peer does not read")
        return self._on_send(frame)

    def _check_up_to(self, ticket: int) -> None:
        """Check on the disk that everything up to ``ticket`` is durable."""
        assert self._store is not None
        if ticket == self._checked_ticket:
            return
        if ticket < self._checked_ticket or ticket not in {op.ticket for op in self._batch}:
            raise Violation(f"the log writer says that ticket {ticket} is done, but {self._checked_ticket} was before")
        count = next(number for number, op in enumerate(self._batch) if op.ticket == ticket) + 1
        ops, self._batch = self._batch[:count], self._batch[count:]
        files, disk = self._store.files, self._disk
        end = None  # entries that were cut off meanwhile do not exist
        for op in reversed(ops):
            for entry in op.entries:
                if entry.pos < files.base_pos or (end is not None and entry.pos >= end):
                    continue
                start = files.start_of(entry.pos)
                data = disk.durable(files.path(start), entry.pos - start, entry.size)
                if data != entry.header + entry.body:
                    raise Violation(
                        f"durability: ticket {ticket} is reported, but entry {entry.index} is not on the disk"
                    )
            if op.cut is not None:
                end = op.cut.pos if end is None else min(end, op.cut.pos)
        self._checked_ticket = ticket

    def _fail(self, error: StorageFailed) -> None:
        self._turns = None
        self._writes.stop()
        self._on_failed(error)
