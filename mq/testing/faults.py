"""Faults between clients and brokers that a test switches on: failed sends, and slow answers."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from mq.protocol.codes import RequestCode, ResponseCode

SENDS = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))


class Kind(Enum):
    """The kinds of faults."""

    UNKNOWN = auto()
    LOST = auto()
    TWICE = auto()
    REFUSED = auto()


class Fault(NamedTuple):
    """A fault to inject into one request."""

    kind: Kind
    code: int = 0
    remark: str = ""


class Faults:
    """Injects faults into the next sends of any clients, in the order of these calls.

    Attributes:
        played: how many faults have happened.
    """

    def __init__(self) -> None:
        self._sends: deque[Fault] = deque()
        self._slow_seconds = 0.0
        self.played = 0

    def outcome_unknown(self, count: int = 1) -> None:
        """Break the connection after the broker has stored the message, but before its answer arrives."""
        self._sends.extend([Fault(Kind.UNKNOWN)] * count)

    def lost(self, count: int = 1) -> None:
        """Break the connection before the broker gets the message. For clients it looks like `outcome_unknown`."""
        self._sends.extend([Fault(Kind.LOST)] * count)

    def duplicate(self, count: int = 1) -> None:
        """Store each of the next `count` messages twice, with one message id, as a retry may: consumers get both."""
        self._sends.extend([Fault(Kind.TWICE)] * count)

    def refuse(self, code: int = ResponseCode.SYSTEM_BUSY, remark: str = "refused by the test", count: int = 1) -> None:
        """Answer the next `count` sends with a response code, without storing the messages."""
        if code == ResponseCode.SUCCESS:
            raise ValueError("response code 0 means that the message is stored; choose another one to refuse it")
        self._sends.extend([Fault(Kind.REFUSED, code, remark)] * count)

    @contextlib.contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Delay each answer to a client within the block by `seconds` of the event loop's clock."""
        before, self._slow_seconds = self._slow_seconds, seconds
        try:
            yield
        finally:
            self._slow_seconds = before

    def clear(self) -> None:
        """Cancel the faults that have not happened yet."""
        self._sends.clear()

    @property
    def pending(self) -> int:
        """The number of faults that wait for a send."""
        return len(self._sends)

    @property
    def delay_seconds(self) -> float:
        """The seconds by which answers are delayed now."""
        return self._slow_seconds

    def next_fault(self, code: int) -> Fault | None:
        """Return the fault for a request that is about to reach its broker; None if there is none."""
        if not self._sends or code not in SENDS:
            return None
        self.played += 1
        return self._sends.popleft()
