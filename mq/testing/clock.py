"""The clock of a kit's brokers.

It runs with the clock of the event loop, which may be virtual itself, and `advance` puts it ahead. Delays, invisible
times, check-backs and the ages of messages depend on it. Elections, heartbeats, locks and time-outs of connections are
on the clock of the event loop, so that no client seems silent for the time by which the clock was put ahead.
"""

from __future__ import annotations

import datetime as dt
import time

import trio
from trio.testing import MockClock


def check_is_ahead(seconds: float) -> None:
    """Raise ValueError unless `seconds` is a duration by which the clock can be advanced."""
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"time goes ahead by a number of seconds, not by {seconds}")


class KitClock:
    """A clock that a test can advance, with monotonic and wall time. Make it in the event loop of the brokers.

    Raises ValueError if its clock stands still.
    """

    def __init__(self) -> None:
        self._loop = clock = trio.lowlevel.current_clock()
        if isinstance(clock, MockClock) and clock.rate == 0 and clock.autojump_threshold == float("inf"):
            raise ValueError(
                "the clock of this event loop stands still, and servers could not start: use one that jumps when all "
                "tasks wait, MockClock(autojump_threshold=0), or autojump_clock of pytest-trio"
            )
        self._epoch_ms = time.time_ns() // 1_000_000 - round(self._loop.current_time() * 1000)
        self.ahead_seconds = 0.0
        """How far it was put ahead."""

    def seconds(self) -> float:
        """Return monotonic seconds."""
        return self._loop.current_time() + self.ahead_seconds

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self._epoch_ms + round(self.seconds() * 1000)

    def now(self) -> dt.datetime:
        """Return the brokers' time, in UTC."""
        return dt.datetime.fromtimestamp(self.wall_ms() / 1000, tz=dt.UTC)

    def advance(self, seconds: float) -> None:
        """Advance the clock by `seconds`."""
        check_is_ahead(seconds)
        self.ahead_seconds += seconds
