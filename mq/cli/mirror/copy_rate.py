"""Computes the progress of a mirror, its rate, and when it will have caught up. Pure; seconds of any clock."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

WINDOW_SECONDS: Final = 30.0
"""Rates are averages over this number of seconds."""


class MirrorFigures(NamedTuple):
    """The figures of a mirror at one moment.

    Attributes:
        copied: messages that were copied since the start of this process.
        behind: messages that the source has, and the target does not have yet.
        rate: messages copied per second.
        eta_seconds: seconds until it catches up at this rate; 0 if it has, None if it does not come closer.
    """

    copied: int
    behind: int
    rate: float
    eta_seconds: float | None

    def text(self) -> str:
        """Format the progress as one line."""
        if self.behind == 0:
            eta = "caught up"
        elif self.eta_seconds is None:
            eta = "does not come closer"
        else:
            eta = f"caught up in {duration(self.eta_seconds)}"
        return f"{self.copied:,} copied, {self.behind:,} behind, {self.rate:,.0f} messages/s, {eta}"


class Progress:
    """Computes rates from samples of the last half minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def add_sample(self, now: float, copied_count: int, behind: int) -> MirrorFigures:
        """Add a sample, and return the figures that result."""
        samples = self._samples
        samples.append((now, copied_count, behind))
        while len(samples) > 2 and samples[1][0] <= now - WINDOW_SECONDS:
            samples.popleft()
        began, copied_then, behind_then = samples[0]
        seconds = now - began
        if seconds <= 0:
            return MirrorFigures(copied_count, behind, 0.0, 0.0 if behind == 0 else None)
        rate = (copied_count - copied_then) / seconds
        closer = (behind_then - behind) / seconds
        eta: float | None = 0.0
        if behind:
            eta = behind / closer if closer > 0 else None
        return MirrorFigures(copied_count, behind, rate, eta)


def duration(seconds: float) -> str:
    """Format a duration: ``45 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    whole = max(round(seconds), 0)
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"
