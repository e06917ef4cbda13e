"""Acts on durable writes of a replica's log, and tells the log's writer which writes to report at once.

The writer's thread publishes which write is durable. It also wakes the event loop, but only for writes with a waiting
caller; the others are noted in the next turn. An acknowledgement is sent by the writer's thread itself, where possible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from raftlog.consensus.messages import AppendResp
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import NodeId
from raftlog.net import frames
from raftlog.segment.log import SegmentLog

NO_SIGNALS: Final = 2**62
"""A ticket that no write has."""


class SenderOfWriter(Protocol):
    """The part of a transport by which the log's writer sends; see `raftlog.net.transport.Transport`."""

    def send_after(self, ticket: int, peer: NodeId, frame: bytes) -> bool: ...
    def has_left(self) -> bool: ...


class FinishedWrites:
    """Tells a core which writes of its log are durable, and calls the functions that wait for one.

    Attributes:
        waits_for_next: what `call_after_next` was given since the last write was submitted.
    """

    def __init__(
        self,
        core: RaftCore,
        log: SegmentLog,
        transport: SenderOfWriter,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._core = core
        self._log = log
        self._writer = log.writer
        self._transport = transport
        self._clock = clock
        self._wake = wake
        self._last_ticket = 0
        self._is_signalled = True
        # The acknowledgement that the writer sends, with the ticket of its write.
        self._acknowledgement: tuple[int, AppendResp] | None = None
        self.waits_for_next: list[Callable[[], None]] = []
        self._callbacks: deque[tuple[int, list[Callable[[], None]]]] = deque()

    def has_in_flight(self) -> bool:
        """Whether work in flight will soon end in an event on this replica."""
        is_silent = self._acknowledgement is not None and self._acknowledgement[0] == self._log.last_ticket
        return self._core.in_flight and not is_silent

    def call_after_next(self, then: Callable[[], None]) -> None:
        """Call ``then`` once the next submitted write is durable."""
        self.waits_for_next.append(then)

    def on_submit(self, ticket: int) -> None:
        """Record a submitted write, and the calls that wait for it."""
        self._callbacks.append((ticket, self.waits_for_next))
        self.waits_for_next = []

    def acknowledge(self, ticket: int, message: AppendResp) -> None:
        """Have the writer send an acknowledgement, unless another one waits or a caller waits for that write."""
        if self._acknowledgement is not None or self._callbacks:
            return
        if self._transport.send_after(ticket, message.dst, frames.encode_appended(message)):
            self._acknowledgement = ticket, message

    def poll(self) -> None:
        """Check which writes are durable. Called in each turn, since the writer does not signal all of them."""
        ticket = self._writer.done_ticket
        if ticket > self._last_ticket:
            self.on_durable(ticket)

    def on_durable(self, ticket: int) -> None:
        """Tell the core and the waiting calls that everything up to ``ticket`` is durable."""
        self._last_ticket = ticket
        now = self._clock()
        if self._acknowledgement is not None and self._acknowledgement[0] <= ticket:
            message = self._acknowledgement[1]
            self._acknowledgement = None
            if self._transport.has_left():
                self._core.on_acknowledgement(message, now)
        self._core.storage_done(ticket, now)
        while self._callbacks and self._callbacks[0][0] <= ticket:
            for then in self._callbacks.popleft()[1]:
                then()

    def choose_signals(self) -> None:
        """Have the writer wake the event loop only while a caller waits for a write."""
        needs_signals = bool(self._callbacks) or self._core.waits_for_write
        if needs_signals is self._is_signalled:
            return
        self._is_signalled = needs_signals
        if self._writer.signal_from(0 if needs_signals else NO_SIGNALS) > self._last_ticket and needs_signals:
            self._wake()
