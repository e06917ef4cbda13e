"""Resident memory over time as figures, a table and a picture: pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

SETTLING_SECONDS = 300.0
"""Caches, tables and the allocator's arenas fill up meanwhile; growth counts from here on."""
WIDTH, HEIGHT = 960, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 190, 34, 50
_COLOURS = ("#1d4ed8", "#0f766e", "#65a30d", "#9333ea", "#f59e0b", "#dc2626")
BEGIN = "<!-- measured by `make bench-memory`: begin -->"
END = "<!-- measured by `make bench-memory`: end -->"


class Sample(NamedTuple):
    """``rss_mib``: resident memory of each process or group of processes, by name, after ``seconds`` of load."""

    seconds: float
    rss_mib: Mapping[str, float]


class Growth(NamedTuple):
    """Resident memory of one name, in MiB; ``per_hour`` is the slope of the line through the samples that count."""

    first: float
    last: float
    most: float
    per_hour: float


def growths(samples: Sequence[Sample], settling_seconds: float = SETTLING_SECONDS) -> dict[str, Growth]:
    """By name, over the samples after ``settling_seconds``, two or more."""
    counted = [sample for sample in samples if sample.seconds >= settling_seconds]
    assert len(counted) >= 2, f"{len(counted)} samples after {settling_seconds:g} s"
    hours = [sample.seconds / 3600 for sample in counted]
    found = dict[str, Growth]()
    for name in counted[0].rss_mib:
        values = [sample.rss_mib[name] for sample in counted]
        slope = statistics.linear_regression(hours, values).slope
        found[name] = Growth(values[0], values[-1], max(values), slope)
    return found


def section(
    samples: Sequence[Sample],
    *,
    load: str,
    machine: str,
    date: str,
    load_average: float,
    settling_seconds: float = SETTLING_SECONDS,
) -> str:
    """How it was measured, the picture, and a row for each name."""
    counted = growths(samples, settling_seconds)
    first = next(sample.seconds for sample in samples if sample.seconds >= settling_seconds)
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
                for name, growth in counted.items()
            ),
        ]
    )


def picture(samples: Sequence[Sample]) -> str:
    """A line for each name over the minutes, SVG."""
    minutes_max = max(sample.seconds for sample in samples) / 60
    top = 1.1 * max(max(sample.rss_mib.values()) for sample in samples)
    floor, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT

    def at_x(minutes: float) -> float:
        return _LEFT + (right - _LEFT) * minutes / minutes_max

    def at_y(mib: float) -> float:
        return floor - (floor - _TOP) * mib / top

    lines = ['<text x="20" y="20" font-size="13" font-weight="600">resident memory, MiB</text>']
    for value in (0.0, top / 2.2, top / 1.1):
        lines.append(f'<path d="M{_LEFT} {at_y(value):.1f}H{right}" stroke="#e2e8f0"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{at_y(value) + 4:.1f}" text-anchor="end">{value:,.0f}</text>')
    for step in range(7):
        minutes = step * minutes_max / 6
        lines.append(f'<text x="{at_x(minutes):.1f}" y="{floor + 18}" text-anchor="middle">{minutes:.0f}</text>')
    lines.append(f'<text x="{(_LEFT + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">minutes of load</text>')
    for place, name in enumerate(samples[0].rss_mib):
        colour = _COLOURS[place % len(_COLOURS)]
        points = (f"{at_x(sample.seconds / 60):.1f} {at_y(sample.rss_mib[name]):.1f}" for sample in samples)
        lines.append(f'<path d="M{"L".join(points)}" stroke="{colour}" stroke-width="2" fill="none"/>')
        lines.append(f'<path d="M{right + 16} {_TOP + 20 * place + 6}h16" stroke="{colour}" stroke-width="2"/>')
        lines.append(f'<text x="{right + 38}" y="{_TOP + 20 * place + 10}" fill="{colour}">{escape(name)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'font-family="system-ui, sans-serif" font-size="12" fill="#334155">',
            "  <title>Resident memory of each process over the minutes of load</title>",
            f'  <rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            *(f"  {line}" for line in lines),
            "</svg>\n",
        ]
    )
