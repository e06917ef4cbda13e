"""Writes resident memory over time as figures, a table and a picture. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mq.cli.bench import plot

WARM_UP_SECONDS = 300.0
"""Caches, tables and the allocator's arenas fill up meanwhile; growth counts from here on."""
BEGIN = "<!-- measured by `make bench-memory`: begin -->"
END = "<!-- measured by `make bench-memory`: end -->"


class MemorySample(NamedTuple):
    """The resident memory of each process or group of processes, by name, after ``seconds`` of load."""

    seconds: float
    rss_mib: Mapping[str, float]


class Growth(NamedTuple):
    """The resident memory of a process in MiB. ``per_hour``: the slope of the line through samples after warm-up."""

    first: float
    last: float
    most: float
    per_hour: float


def growths(samples: Sequence[MemorySample], warm_up_seconds: float = WARM_UP_SECONDS) -> dict[str, Growth]:
    """Return the growth of each process over the samples after ``warm_up_seconds``: two or more."""
    late_samples = [sample for sample in samples if sample.seconds >= warm_up_seconds]
    assert len(late_samples) >= 2, f"{len(late_samples)} samples after {warm_up_seconds:g} s"
    hours = [sample.seconds / 3600 for sample in late_samples]
    growth_of = dict[str, Growth]()
    for name in late_samples[0].rss_mib:
        values = [sample.rss_mib[name] for sample in late_samples]
        slope = statistics.linear_regression(hours, values).slope
        growth_of[name] = Growth(values[0], values[-1], max(values), slope)
    return growth_of


def section(
    samples: Sequence[MemorySample],
    *,
    load: str,
    machine: str,
    date: str,
    load_average: float,
    warm_up_seconds: float = WARM_UP_SECONDS,
) -> str:
    """Write the section of the page: how memory was measured, the picture, and a row for each process."""
    growth_of = growths(samples, warm_up_seconds)
    first = next(sample.seconds for sample in samples if sample.seconds >= warm_up_seconds)
    return "\n".join(
        [
            f"Load: {load} Date: {date}. Load average at the end: {load_average:.1f}.",
            f"Machine: {machine}; servers and clients share it.",
            "",
            "![Resident memory over time](../images/memory.svg)",
            "",
            f"| resident memory, MiB | after {first / 60:.0f} min | after {samples[-1].seconds / 60:.0f} min | most "
            "| growth per hour |",
            "|---|---:|---:|---:|---:|",
            *(
                f"| {name} | {growth.first:,.1f} | {growth.last:,.1f} | {growth.most:,.1f} | {growth.per_hour:+,.1f} |"
                for name, growth in growth_of.items()
            ),
        ]
    )


def picture(samples: Sequence[MemorySample]) -> str:
    """Draw the memory of each process over the minutes as a line, as SVG."""
    minutes_max = max(sample.seconds for sample in samples) / 60
    ticks = {at: f"{at:.0f}" for at in (step * minutes_max / 6 for step in range(7))}
    lines = {name: [(sample.seconds / 60, sample.rss_mib[name]) for sample in samples] for name in samples[0].rss_mib}
    panel = plot.panel((0, plot.WIDTH), "resident memory, MiB", "minutes of load", lines, ticks)
    return plot.svg("Resident memory of each process over the minutes of load", panel)
