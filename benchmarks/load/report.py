"""The figures of load generators: windows, latencies in buckets, and CPU time."""

from __future__ import annotations

import itertools
import math
import resource
import time
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

BUCKETS_PER_E = 50
"""Latencies are reported in logarithmic buckets: 50 to a factor of e, so a figure is right within 2 %."""


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of each window: acknowledged messages, CPU seconds of this process, and latencies by bucket.

    ``failed``: requests in all windows and before them that were refused, or whose connection was closed; only loads
    that survive such failures have this. ``refusals``: the number of refused connections, by text. ``late``: by how
    much requests were sent late, in all windows, in buckets; only loads with a rate have it. ``wake_ups``: the number
    of waits of this process, by window.
    """

    messages: list[int]
    cpu_seconds: list[float]
    latencies: list[dict[int, int]]
    failed: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)
    wake_ups: list[int] = field(default_factory=list)


class StartedLate(Exception):
    """The first window began before all connections sent."""


class Recorder:
    """Collects latencies by window.

    Attributes:
        samples: latencies of the current window, in seconds; before the first window they are discarded.
        boundary: when the next window begins, or the last one ends.
    """

    def __init__(self, begin: float, window_seconds: float, windows: int, batch: int) -> None:
        self._window_seconds = window_seconds
        self._windows = [array("d") for _ in range(windows)]
        self._cpu_marks: list[float] = []
        self._wait_marks: list[int] = []
        self._batch = batch
        self.samples = array("d")
        self.boundary = begin

    def advance(self, now: float) -> Report | None:
        """Go to the window that contains ``now``. Returns the report once the last window has ended."""
        while now >= self.boundary:
            self._cpu_marks.append(process_cpu_seconds())
            self._wait_marks.append(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw)
            number = len(self._cpu_marks) - 1
            if number == len(self._windows):
                return Report(
                    messages=[len(latencies) * self._batch for latencies in self._windows],
                    cpu_seconds=[end - start for start, end in itertools.pairwise(self._cpu_marks)],
                    latencies=[buckets(latencies) for latencies in self._windows],
                    wake_ups=[end - start for start, end in itertools.pairwise(self._wait_marks)],
                )
            self.samples = self._windows[number]
            self.boundary += self._window_seconds
        return None


def monotonic_seconds() -> float:
    """Return the time of CLOCK_MONOTONIC in seconds. All processes share this clock."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def process_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def buckets(latencies: array[float]) -> dict[int, int]:
    """Count the latencies, in seconds, in each logarithmic bucket."""
    counts: dict[int, int] = {}
    log = math.log
    for seconds in latencies:
        bucket = int(log(max(seconds, 1e-6) * 1e6) * BUCKETS_PER_E)
        counts[bucket] = counts.get(bucket, 0) + 1
    return counts


def sum_counts(counts: Iterable[dict[int, int]]) -> dict[int, int]:
    """Add the counts of each bucket."""
    total: Counter[int] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def bucket_seconds(bucket: int) -> float:
    """Return the middle of a bucket in seconds."""
    return math.exp((bucket + 0.5) / BUCKETS_PER_E) / 1e6


def quantile(counts: dict[int, int], share: float) -> float:
    """Return the latency in seconds that the fraction ``share`` of the samples do not exceed; 0 without samples."""
    total = sum(counts.values())
    total_so_far = 0
    for bucket in sorted(counts):
        total_so_far += counts[bucket]
        if total_so_far >= share * total:
            return bucket_seconds(bucket)
    return 0.0
