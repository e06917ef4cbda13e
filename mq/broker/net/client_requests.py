"""Tracks requests of the broker to clients that want a response (221, 307, 309)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from mq.broker.limits import DEFAULT
from mq.protocol.incoming.headers import Response


class NoResponse(Enum):
    """The reason why no response of a client arrived."""

    GONE = auto()
    """The client's connection was closed."""
    TIMEOUT = auto()
    BUSY = auto()
    """Too many requests are in flight; this one was not sent."""


OnResponse = Callable[[Response | NoResponse, bytes], None]
"""Receives the response and its body."""

ConnectionT = TypeVar("ConnectionT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _ClientQuestion(Generic[ConnectionT]):
    connection: ConnectionT
    deadline: float
    on_response: OnResponse


class ClientRequests(Generic[ConnectionT]):
    """Tracks the broker's requests to clients. Each completes once: by response, timeout or closed connection.

    Args:
        clock: monotonic seconds.
        open_max: requests in flight on all connections together.
    """

    def __init__(self, clock: Callable[[], float], open_max: int = DEFAULT.net.client_requests_max) -> None:
        self._open_max = open_max
        self._clock = clock
        self._opaque = itertools.count(1)
        self._open: dict[int, _ClientQuestion[ConnectionT]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: ConnectionT, seconds: float, on_response: OnResponse) -> int | None:
        """Register a request, and return its opaque; None if too many requests are in flight."""
        if len(self._open) >= self._open_max:
            return None
        opaque = next(self._opaque) & 0x7FFFFFFF
        assert opaque not in self._open, f"request {opaque} is in flight already, with {len(self._open)} others"
        self._open[opaque] = _ClientQuestion(connection, self._clock() + seconds, on_response)
        return opaque

    def on_response(self, connection: ConnectionT, response: Response, body: bytes) -> bool:
        """Complete the request that ``response`` answers. Returns False if this connection had no such request."""
        question = self._open.get(response.opaque)
        if question is None or question.connection != connection:
            return False
        del self._open[response.opaque]
        question.on_response(response, body)
        return True

    def connection_closed(self, connection: ConnectionT) -> None:
        """Complete the requests on this connection with `NoResponse.GONE`."""
        if self._open:
            self._report(
                [opaque for opaque, each in self._open.items() if each.connection == connection], NoResponse.GONE
            )

    def expire(self) -> None:
        """Complete requests whose deadline has passed with `NoResponse.TIMEOUT`. A timer calls this."""
        if self._open:
            now = self._clock()
            self._report([opaque for opaque, each in self._open.items() if each.deadline <= now], NoResponse.TIMEOUT)

    def check_invariants(self) -> None:
        """Assert that not too many requests are in flight, for tests."""
        assert len(self._open) <= self._open_max, f"{len(self._open)} requests are open; maximum: {self._open_max}"

    def _report(self, opaques: list[int], reason: NoResponse) -> None:
        for opaque in opaques:
            # The callback may close a connection and thereby complete other requests.
            question = self._open.pop(opaque, None)
            if question is not None:
                question.on_response(reason, b"")
