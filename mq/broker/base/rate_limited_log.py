"""Warnings about what may happen for each of many messages: one of a kind in a minute."""

from __future__ import annotations

from collections.abc import Callable

import structlog

_EVERY_MS = 60_000


class RateLimitedLog:
    """Logs an event unless it logged one of that name less than a minute ago."""

    def __init__(self, log: structlog.stdlib.BoundLogger, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._now_ms = now_ms
        self._logged_ms: dict[str, int] = {}

    def warning(self, event: str, **values: object) -> None:
        """A warning; ``values`` are those of this time, so counts should count all."""
        now_ms = self._now_ms()
        last_ms = self._logged_ms.get(event)
        # A clock that went back must not keep it silent.
        if last_ms is None or not last_ms <= now_ms < last_ms + _EVERY_MS:
            self._logged_ms[event] = now_ms
            self._log.warning(event, **values)
