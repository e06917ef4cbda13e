"""The clock of a replica that answers reads from a lease: it goes on while the machine is suspended.

Linux's monotonic clock, by which timers run, stands still meanwhile. A leader that wakes up would take its lease for as
young as before, and answer reads although another replica was elected long ago.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds from some beginning; never goes back."""


def awake_time() -> float:
    """Seconds since some time before the machine was started, without those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def boot_time() -> float:
    """Seconds since the machine was started, those in which it was suspended included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseClock:
    """``clock`` plus the seconds for which the machine has been suspended since this object was made.

    Args:
        clock: what timers run by.
        monotonic, boot: two clocks that differ by the time for which the machine was suspended.
    """

    def __init__(self, clock: Clock, monotonic: Clock = awake_time, boot: Clock = boot_time) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._boot = boot
        self._first = self._gap = boot() - monotonic()

    def __call__(self) -> float:
        return self._clock() + self.suspended_seconds()

    def suspended_seconds(self) -> float:
        """For how long the machine has been suspended since this object was made."""
        # In this order the difference comes out too small when something else runs in between, and never too large.
        boot = self._boot()
        self._gap = max(self._gap, boot - self._monotonic())
        return self._gap - self._first
