"""Limits the rate at which a thread copies bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

CATCH_UP_SECONDS: Final = 0.1
"""A delay beyond this is not made up for by copying faster than the rate."""


class CopyRate:
    """Limits copying to ``bytes_per_second`` by sleeping; 0 for no limit.

    After a pause, because the disk was slow or the process was stopped, it does not catch up.
    """

    def __init__(
        self,
        bytes_per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._due_at = clock()

    def throttle(self, nbytes: int) -> None:
        """Count `nbytes` more copied bytes, and sleep if they were copied too fast."""
        assert nbytes >= 0, f"{nbytes} bytes were copied"
        if not self._bytes_per_second:
            return
        now = self._clock()
        self._due_at = max(self._due_at, now - CATCH_UP_SECONDS) + nbytes / self._bytes_per_second
        if self._due_at > now:
            self._sleep(self._due_at - now)
