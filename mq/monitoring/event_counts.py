"""Counts log events by level and name, for alerts on warnings and errors without a counter per event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

NAMES_MAX: Final = 500
"""Event names are fixed; above this number of names, further ones count as ``other``."""


class EventCounts:
    """Counts log events by level and name, as a processor of structlog."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        """Count one event, and pass it on unchanged."""
        if method in ("warning", "error", "critical"):
            key = (method, str(event.get("event", "")))
            if key not in self._counts and len(self._counts) >= NAMES_MAX:
                key = (method, "other")
            self._counts[key] += 1
        return event

    def errors(self) -> dict[str, int]:
        """Return how often each event of level error or critical was logged, by its name."""
        counts: Counter[str] = Counter()
        for (level, name), count in self._counts.items():
            if level in ("error", "critical"):
                counts[name] += count
        return dict(sorted(counts.items()))

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how often each event was logged, by its level and name."""
        return dict(sorted(self._counts.items()))


LOGGED: Final = EventCounts()
"""The counts of this process."""
