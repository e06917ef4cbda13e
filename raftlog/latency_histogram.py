"""A histogram of durations: one thread observes, any thread reads."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the buckets in seconds, inclusive; one more bucket has everything above."""


class LatencyHistogram:
    """Counts durations in buckets.

    Attributes:
        counts: of each bucket.
        total: sum of all durations, in seconds.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds
