"""Logs warnings about peers' messages, by default once a minute for each peer and reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import structlog

REASONS_MAX: Final = 256
_NUMBERS = re.compile(r"\b[0-9a-f]*\d[0-9a-f]*\b")

Log = structlog.stdlib.BoundLogger


class RefusalLog:
    """Logs a refusal unless the same peer was refused for the same reason, ignoring numbers in it, not long ago.

    Args:
        now: monotonic seconds.
        every_seconds: a refusal is logged again after this time at the earliest.
    """

    def __init__(self, log: Log, now: Callable[[], float], every_seconds: float = 60.0) -> None:
        self._log = log
        self._now = now
        self._every_seconds = every_seconds
        # When a peer and reason may be logged again, and how often it was suppressed.
        self._suppressions: dict[tuple[str, str], tuple[float, int]] = {}

    def warning(self, event: str, *, source: str, error: str, **values: object) -> None:
        """Log ``event`` about ``source``; ``times`` is the number since the last line, if more than one."""
        key = source, _NUMBERS.sub("#", error)[:200]
        now = self._now()
        again_at, skip_count = self._suppressions.pop(key, (now, 0))
        if now < again_at:
            self._suppressions[key] = again_at, skip_count + 1
            return
        if len(self._suppressions) >= REASONS_MAX:
            del self._suppressions[next(iter(self._suppressions))]
        self._suppressions[key] = now + self._every_seconds, 0
        if skip_count:
            values["times"] = skip_count + 1
        self._log.warning(event, error=error, **values)
