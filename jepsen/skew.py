"""Compares brokers' clocks with this machine's clock, by the times in their figures. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

TOLD_FROM_SECONDS = 2.0
"""Brokers report whole seconds, and an answer takes a moment."""
_RUNTIME = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")


def broker_time(table: Mapping[str, str]) -> float | None:
    """Return the time at which a broker wrote its figures, in seconds since the epoch; None if they lack it.

    Only for a clock that is not behind the time at which the broker started: the runtime is never negative.
    """
    runtime = _RUNTIME.fullmatch(table.get("runtime", ""))
    boot_ms = table.get("bootTimestamp", "")
    if runtime is None or not boot_ms.isdigit():
        return None
    days, hours, minutes, seconds = map(int, runtime.groups())
    return int(boot_ms) / 1000 + ((days * 24 + hours) * 60 + minutes) * 60 + seconds


class ClockSkews:
    """Remembers how far the clock of each broker is ahead."""

    def __init__(self) -> None:
        self._recorded_skews: dict[str, float] = {}

    def news(self, node: str, table: Mapping[str, str], now: float) -> float | None:
        """Return the seconds by which a broker's clock is ahead, if they have changed; None if not, or if unknown."""
        clock = broker_time(table)
        if clock is None:
            return None
        skew = clock - now
        skew = 0.0 if abs(skew) < TOLD_FROM_SECONDS else skew
        if abs(skew - self._recorded_skews.get(node, 0.0)) < TOLD_FROM_SECONDS:
            return None
        self._recorded_skews[node] = skew
        return round(skew, 1)
