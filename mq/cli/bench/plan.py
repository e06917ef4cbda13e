"""Plans a benchmark: its messages and their due times. Pure."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

_HEAD = struct.Struct(">QQ")
"""Every body begins with the numbers of the run and of the message."""
BODY_BYTES_MIN = _HEAD.size


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The load: messages of ``body_bytes`` to ``topic`` for ``seconds``, after a warm-up that is not measured.

    Attributes:
        in_flight: how many messages, or batches, may wait for acknowledgement at once.
        batch: the number of messages in one request.
        rate: messages per second that become due, whether or not earlier ones are acknowledged; None: as fast as
            they are acknowledged.
        linger: seconds that a message waits for others to share a request with; None: no automatic batches.
        run: a number that identifies the messages of this run, 0 to 2**64 - 1.
    """

    topic: str
    body_bytes: int
    seconds: float
    warm_up_seconds: float
    in_flight: int
    batch: int = 1
    rate: float | None = None
    run: int = 0
    linger: float | None = None

    def body(self, number: int) -> bytes:
        """Return the body of a message, from which `number_of` gets the number."""
        return _HEAD.pack(self.run, number).ljust(self.body_bytes, b"x")

    def number_of(self, body: bytes) -> int | None:
        """Return the number of a message of this run; None for any other message."""
        if len(body) < BODY_BYTES_MIN:
            return None
        run, number = _HEAD.unpack_from(body)
        return int(number) if run == self.run else None


class Schedule:
    """The due times of requests in an open loop, in seconds since the start.

    A latency counts from the due time of its request. So a server that stalls for a second is charged with all requests
    due in that second, including those sent only after it (no coordinated omission).
    """

    def __init__(self, rate: float, batch: int) -> None:
        self._interval = batch / rate
        self._next = 0

    @property
    def next_at(self) -> float:
        """The time at which the next request is due."""
        return self._next * self._interval

    def next_due(self) -> float:
        """Return the due time of the next request, and advance to the request after it."""
        at = self.next_at
        self._next += 1
        return at

    def due_before(self, elapsed: float) -> int:
        """Return how many of the requests that remain are due before ``elapsed`` seconds."""
        return max(0, math.ceil(elapsed / self._interval) - self._next)
