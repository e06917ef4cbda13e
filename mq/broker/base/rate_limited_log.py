"""The operators' log, and warnings for events that may occur per message: one per event name and minute."""

from __future__ import annotations

from collections.abc import Callable

import structlog

Log = structlog.stdlib.BoundLogger

_EVERY_MS = 60_000


class RateLimitedLog:
    """Logs an event, unless it has logged one of the same name within a minute."""

    def __init__(self, log: Log, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._now_ms = now_ms
        self._logged_ms: dict[str, int] = {}

    def warning(self, event: str, **values: object) -> None:
        """Log a warning. Pass cumulative counts in ``values``: those of suppressed warnings are lost."""
        now_ms = self._now_ms()
        last_ms = self._logged_ms.get(event)
        # If the clock is set back, warnings must still appear.
        if last_ms is None or not last_ms <= now_ms < last_ms + _EVERY_MS:
            self._logged_ms[event] = now_ms
            self._log.warning(event, **values)
