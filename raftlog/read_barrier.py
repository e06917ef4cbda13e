"""Delays reads until this replica has applied everything that was committed when they arrived.

All reads of one turn of the event loop share one request to the consensus core, and so one round trip.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from raftlog.log_numbers import LogIndex

OnRead = Callable[[bool], None]

READ_SECONDS_MAX: Final = 3.0
"""Timeout of a read."""


class _ReadBatch:
    """Reads that arrived during one turn; ``index`` is the one to be applied, once it is known."""

    __slots__ = ("callbacks", "ctx", "deadline", "index")

    def __init__(self, ctx: int, deadline: float, callbacks: list[OnRead]) -> None:
        self.ctx = ctx
        self.deadline = deadline
        self.callbacks = callbacks
        self.index: LogIndex | None = None


class ReadBarriers:
    """The open reads of a replica, oldest first. The methods call each callback once.

    Attributes:
        new_reads: the reads that `ask` is to start.
        open: the started reads.
    """

    def __init__(self) -> None:
        self.new_reads: list[OnRead] = []
        self.open: deque[_ReadBatch] = deque()
        self._last_ctx = 0

    def add(self, on_read: OnRead) -> None:
        """Add a read; it becomes part of the next `ask`."""
        self.new_reads.append(on_read)

    def ask(self, now: float) -> int:
        """Start a batch with all new reads; returns its number for the core."""
        self._last_ctx += 1
        self.open.append(_ReadBatch(self._last_ctx, now + READ_SECONDS_MAX, self.new_reads))
        self.new_reads = []
        return self._last_ctx

    def complete(self, ctx: int, index: LogIndex | None) -> None:
        """Record the core's answer: the index to apply, or None if the read could not be confirmed."""
        for batch in self.open:
            if batch.ctx == ctx:
                batch.index = index
                if index is None:
                    self.open.remove(batch)
                    _answer(batch, False)
                return

    def on_apply(self, index: LogIndex) -> None:
        """Answer the reads that wait for entries up to ``index``, which are applied now."""
        ready = [batch for batch in self.open if batch.index is not None and batch.index <= index]
        for batch in ready:
            self.open.remove(batch)
            _answer(batch, True)

    def expire(self, now: float) -> None:
        """Fail reads that have waited too long."""
        while self.open and self.open[0].deadline <= now:
            _answer(self.open.popleft(), False)

    @property
    def deadline(self) -> float:
        """Return the time at which `expire` must be called; infinite without open reads."""
        return self.open[0].deadline if self.open else float("inf")


def _answer(batch: _ReadBatch, certain: bool) -> None:
    for callback in batch.callbacks:
        callback(certain)
