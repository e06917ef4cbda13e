"""Requests of the broker to clients that want an answer, such as "which offsets do you have?" (221, 307, 309)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from mq.protocol.headers import Response

OPEN_MAX = 4096
"""Questions under way on all connections together."""


class NoAnswer(Enum):
    """Why a client did not answer."""

    GONE = auto()
    """Its connection was closed."""
    TIMEOUT = auto()
    BUSY = auto()
    """Too many questions are under way; this one was not asked."""


OnAnswer = Callable[[Response | NoAnswer, bytes], None]
"""Gets the response and its body."""

ConnectionT = TypeVar("ConnectionT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Question(Generic[ConnectionT]):
    connection: ConnectionT
    deadline: float
    on_answer: OnAnswer


class ClientRequests(Generic[ConnectionT]):
    """The questions under way. Each is settled once: by its answer, by time, or with its connection."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._opaque = itertools.count(1)
        self._open: dict[int, _Question[ConnectionT]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: ConnectionT, seconds: float, on_answer: OnAnswer) -> int | None:
        """Note a question; returns the opaque to ask it with. None when too many are under way."""
        if len(self._open) >= OPEN_MAX:
            return None
        opaque = next(self._opaque) & 0x7FFFFFFF
        self._open[opaque] = _Question(connection, self._clock() + seconds, on_answer)
        return opaque

    def answered(self, connection: ConnectionT, response: Response, body: bytes) -> bool:
        """Settle the question that ``response`` is about; returns whether this connection was asked one."""
        question = self._open.get(response.opaque)
        if question is None or question.connection != connection:
            return False
        del self._open[response.opaque]
        question.on_answer(response, body)
        return True

    def connection_closed(self, connection: ConnectionT) -> None:
        """Nobody will answer what this connection was asked."""
        if self._open:
            self._settle(
                [opaque for opaque, each in self._open.items() if each.connection == connection], NoAnswer.GONE
            )

    def expire(self) -> None:
        """Settle what was not answered in time; called by a timer."""
        if self._open:
            now = self._clock()
            self._settle([opaque for opaque, each in self._open.items() if each.deadline <= now], NoAnswer.TIMEOUT)

    def _settle(self, opaques: list[int], reason: NoAnswer) -> None:
        for opaque in opaques:
            # Whoever is told may close a connection, and with it settle others of these.
            question = self._open.pop(opaque, None)
            if question is not None:
                question.on_answer(reason, b"")
