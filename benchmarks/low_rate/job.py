"""The job of a client of `make bench-low-rate`, and the times at which its messages are due."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LowRateJob:
    """A load of ``rate`` messages a second of ``body_bytes``, due at fixed times; 0: only connect, and stay idle.

    Messages acknowledged before ``begin``, on CLOCK_MONOTONIC, are not measured. ``wire``, ``address``: a protocol of
    `benchmarks.load.closed_loop.WIRES` and the server; ``namesrv``, ``topic``: for our client library.
    """

    rate: float
    begin: float
    window_seconds: float
    windows: int = 1
    body_bytes: int = 1024
    wire: str = ""
    address: tuple[str, int] = ("", 0)
    namesrv: str = ""
    topic: str = ""

    @property
    def end(self) -> float:
        """The time at which the last window ends."""
        return self.begin + self.windows * self.window_seconds

    def at(self, begin: float) -> LowRateJob:
        """Return the job with another begin."""
        return replace(self, begin=begin)

    def due_times(self, now: float) -> Iterator[float]:
        """Yield the times at which messages are due, from soon after ``now`` on. One of them is ``begin``."""
        number = math.ceil((now - self.begin) * self.rate)
        while (due := self.begin + number / self.rate) < self.end:
            yield due
            number += 1
