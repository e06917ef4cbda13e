"""A log's writer in simulated time: the real code writes what was submitted, after a latency."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from chaos.buggify import Buggify
from chaos.disk import MemoryDisk, PowerCut
from raftlog.segment.codec import SYNC_BYTES_MAX
from raftlog.segment.errors import StorageFailed
from raftlog.segment.group_commit import GroupCommit, Store, WriteOp

Later = Callable[[float, Callable[[], None]], None]
"""``later(seconds, step)``: run ``step`` at this node after so many seconds, unless its process has ended."""


class SimWriter:
    """Runs `GroupCommit` after a latency; see `raftlog.segment.writer.LogWriter`.

    Args:
        latency: seconds that the next write takes.
        on_done, on_failed: as for `raftlog.segment.writer.Writer`, called in a turn of the node.
    """

    def __init__(
        self,
        *,
        later: Later,
        latency: Callable[[], float],
        clock: Callable[[], float],
        on_done: Callable[[int], None],
        on_failed: Callable[[Exception], None],
        buggify: Buggify,
    ) -> None:
        self.done_ticket = 0
        self._later = later
        self._latency = latency
        self._clock = clock
        self._on_done = on_done
        self._on_failed = on_failed
        self._buggify = buggify
        self._queue: deque[WriteOp] = deque()
        self._batch: list[WriteOp] = []
        self._commit: GroupCommit | None = None
        self._markers_awaited = False

    @property
    def busy(self) -> bool:
        """Whether something submitted is not durable yet."""
        return bool(self._batch or self._queue)

    def start(self, store: Store) -> None:
        """See `LogWriter.start`."""
        self._commit = GroupCommit(store, self._clock, prepare_ahead=False)

    def submit(self, op: WriteOp) -> None:
        """See `LogWriter.submit`."""
        self._queue.append(op)
        if not self._batch:
            self._begin()

    def close(self, *, clean: bool) -> None:
        """See `LogWriter.close`."""
        commit, self._commit = self._commit, None
        if commit is None:
            return
        if rest := [*self._batch, *self._queue]:
            commit.apply(rest)
        if clean:
            commit.close(clean=True)

    def stop_midway(self, disk: MemoryDisk, operations: int) -> None:
        """The process ends after so many more disk operations, with or without a power cut."""
        commit, self._commit = self._commit, None
        if commit is None or not self._batch:
            return
        disk.cut_power_after(operations)
        try:
            commit.apply(self._batch)
        except (PowerCut, StorageFailed):
            return

    def abandon(self) -> None:
        """The process has ended; what was not written is discarded."""
        self._commit = None

    def _begin(self) -> None:
        nbytes = 0
        while self._queue and nbytes < SYNC_BYTES_MAX:
            op = self._queue.popleft()
            self._batch.append(op)
            nbytes += op.nbytes
            if self._buggify("one-write-at-a-time"):
                break
        self._later(self._latency() + (1.5 if self._buggify("slow-write") else 0.0), self._finish)

    def _finish(self) -> None:
        commit = self._commit
        if commit is None:
            return
        try:
            commit.apply(self._batch)
        except StorageFailed as error:
            self._fail(error)
            return
        self.done_ticket = self._batch[-1].ticket
        self._batch = []
        if self._queue:
            self._begin()
        if not self._markers_awaited and (delay := commit.marker_delay()) is not None:
            self._markers_awaited = True
            self._later(delay + (0.5 if self._buggify("late-markers") else 0.0), self._write_markers)
        self._on_done(self.done_ticket)

    def _write_markers(self) -> None:
        self._markers_awaited = False
        if self._commit is None or self._commit.marker_delay() is None:
            return
        try:
            self._commit.write_markers()
        except StorageFailed as error:
            self._fail(error)

    def _fail(self, error: StorageFailed) -> None:
        self._commit = None
        self._on_failed(error)
