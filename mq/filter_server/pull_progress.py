"""Decides when to respond to a consumer's pull, and how far it got. Pure.

A pull is answered as soon as a message is let through and no more are at hand. If none is, it is answered a second
after messages were looked at, with the offset behind them, or at its deadline. So a filter that lets nothing through
moves on like any other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mq.filter_server.picking import FilterResult
from mq.protocol.codes import ResponseCode
from mq.protocol.numbers import QueueOffset

EXAMINED_MAX: Final = 512
"""Messages of one pull at the broker."""
ANSWER_BYTES_MAX: Final = 1024 * 1024
GATHER_SECONDS: Final = 0.05
"""The time for which an answer with messages waits for more that are at hand."""
PROGRESS_SECONDS: Final = 1.0
"""The time after which a pull is answered whose messages were all filtered out: the offset of the group follows."""


class PullHead(NamedTuple):
    """A broker's response to a pull, without the messages."""

    code: int
    next_offset: int
    low: int
    high: int
    remark: str | None


class PullResponse(NamedTuple):
    """The response to a consumer's pull. `body` has stored records."""

    code: int
    next_offset: int
    low: int
    high: int
    remark: str | None
    body: bytes


class PullProgress:
    """One pull for ``count_max`` messages from offset ``begin`` on, which may wait ``hold_seconds`` from ``now`` on.

    Attributes:
        offset: all messages before this offset are decided.
        nbytes: the size of the accepted messages.
    """

    def __init__(self, begin: int, count_max: int, hold_seconds: float, now: float) -> None:
        self.offset = begin
        self.nbytes = 0
        self._is_over = False
        self._first = begin
        self._count_max = min(max(count_max, 1), EXAMINED_MAX)
        self._started_at = now
        self._deadline = now + hold_seconds
        self._turn_until = now + max(hold_seconds, PROGRESS_SECONDS)
        self._records: list[memoryview] = []
        self._low = self._high = 0

    def is_over(self) -> bool:
        """Whether the pull must be responded to now."""
        return self._is_over

    @property
    def room_count(self) -> int:
        """The number of further messages that fit into the response."""
        return self._count_max - len(self._records)

    @property
    def room(self) -> int:
        """The number of further bytes that fit into the response."""
        return ANSWER_BYTES_MAX - self.nbytes

    @property
    def read_until(self) -> float:
        """The time until which the broker may wait with its next response; in the past if it must not wait."""
        return 0.0 if self._records else self._deadline

    @property
    def turn_until(self) -> float:
        """The time until which the pull waits for the filter."""
        return self._turn_until

    def fail(self) -> bool:
        """End the pull, because the broker refused a read or did not answer. Returns whether to raise that error; if
        earlier messages were examined, the next pull gets it instead.
        """
        self._is_over = True
        return self.offset == self._first

    def take_response(self, head: PullHead, now: float) -> PullResponse | None:
        """Record a broker's response to a read. Returns it if the consumer shall get it unchanged, else None."""
        self._low, self._high = head.low, head.high
        if head.code == ResponseCode.PULL_OFFSET_MOVED:
            self._is_over = True
            return PullResponse(*head, b"") if self.offset == self._first else None
        if head.code != ResponseCode.SUCCESS:
            self.offset = max(self.offset, head.next_offset)
            self._is_over = bool(self._records) or now >= self._deadline
            if self.offset > self._first:
                self._deadline = min(self._deadline, self._started_at + PROGRESS_SECONDS)
        return None

    def add_result(self, selection: FilterResult, now: float) -> None:
        """Add the result of filtering: the next offset, and the accepted messages."""
        assert selection.next_offset >= self.offset, f"examined from {self.offset} to {selection.next_offset}"
        self.offset = selection.next_offset
        self._records += selection.passed
        self.nbytes += sum(map(len, selection.passed))
        if self._records:
            is_full = self.room_count <= 0 or self.room <= 0 or selection.is_cut
            self._is_over = is_full or self.offset >= self._high or now >= self._started_at + GATHER_SECONDS
        else:
            self._deadline = min(self._deadline, self._started_at + PROGRESS_SECONDS)
            self._is_over = now >= self._started_at + PROGRESS_SECONDS

    def response(self) -> PullResponse:
        """Return the response for the consumer."""
        offset, low, high = QueueOffset(self.offset), self._low, self._high
        if self._records:
            return PullResponse(ResponseCode.SUCCESS, offset, low, high, "FOUND", b"".join(self._records))
        if offset > self._first:
            return PullResponse(ResponseCode.PULL_RETRY_IMMEDIATELY, offset, low, high, "NO_MATCHED_MESSAGE", b"")
        return PullResponse(ResponseCode.PULL_NOT_FOUND, offset, low, high, "OFFSET_OVERFLOW_ONE", b"")
