"""Measures the maximum lag of the event loop: for how long one callback blocked all others."""

from __future__ import annotations

from collections import deque
from typing import Final

_SPAN_SECONDS: Final = 10
_SPANS: Final = 6


class EventLoopLag:
    """Knows the longest delay of the last minute, in steps of ten seconds. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._longest: deque[tuple[int, float]] = deque()

    def add(self, seconds: float, now: float) -> None:
        """Record that a callback ran ``seconds`` late, or took ``seconds``."""
        span = int(now) // _SPAN_SECONDS
        if not self._longest or self._longest[-1][0] != span:
            self._longest.append((span, seconds))
            if len(self._longest) > _SPANS:
                self._longest.popleft()
        elif seconds > self._longest[-1][1]:
            self._longest[-1] = span, seconds

    def longest(self, now: float) -> float:
        """Return the longest delay of the last minute in seconds; 0 if there was none."""
        oldest = int(now) // _SPAN_SECONDS - _SPANS
        return max((seconds for span, seconds in self._longest if span > oldest), default=0.0)
