"""The clock of a replica with lease reads: it continues while the machine is suspended.

Linux's monotonic clock, which timers use, stops during suspension. A leader that resumes would consider its lease
valid, and answer reads although another replica was elected long ago.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds from an arbitrary origin; never decreases."""


def awake_time() -> float:
    """Seconds since an origin before boot, without suspension."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def boot_time() -> float:
    """Seconds since boot, including suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseClock:
    """``clock`` plus the seconds for which the machine has been suspended since this object was created.

    Args:
        clock: the clock of timers.
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
        """Seconds for which the machine has been suspended since this object was created."""
        # In this order a delay in between makes the difference too small, never too large.
        boot = self._boot()
        self._gap = max(self._gap, boot - self._monotonic())
        return self._gap - self._first
