"""The operators' log, and rate-limited warnings for events that may occur per message: at most one per event name and
minute.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

Log = structlog.stdlib.BoundLogger

_EVERY_MS = 60_000


class RateLimitedLog:
    """Logs an event unless it logged one of the same name less than a minute ago."""

    def __init__(self, log: Log, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._now_ms = now_ms
        self._logged_ms: dict[str, int] = {}

    def warning(self, event: str, **values: object) -> None:
        """Log a warning. ``values`` are taken from this call only, so counts should be cumulative."""
        now_ms = self._now_ms()
        last_ms = self._logged_ms.get(event)
        # If the clock is set back, warnings must still appear.
        if last_ms is None or not last_ms <= now_ms < last_ms + _EVERY_MS:
            self._logged_ms[event] = now_ms
            self._log.warning(event, **values)
