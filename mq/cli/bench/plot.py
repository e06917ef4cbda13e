"""Pictures with one or two panels of lines, SVG; and the one of `raftmq bench`: latency by percentile, and messages per
second over time. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from mq.cli.bench.results import DirectionCounts, Latencies, Result

WIDTH: Final = 960
HEIGHT: Final = 320
_LEFT, _TOP, _BOTTOM, _GAP = 70, 52, 54, 100
_COLOURS: Final = ("#1d4ed8", "#f59e0b", "#0f766e", "#65a30d", "#9333ea", "#dc2626")
_LETTER_WIDTH: Final = 8
_SHARES: Final = [1 - 10 ** (-step / 20) for step in range(121)]
"""Shares of messages from 0 to 99.9999 %, at equal distances on the axis."""
_NAMES: Final = {0.0: "0 %", 1.0: "90 %", 2.0: "99 %", 3.0: "99.9 %", 4.0: "99.99 %", 5.0: "99.999 %", 6.0: "99.9999 %"}

Line = Sequence[tuple[float, float]]


class Spread(NamedTuple):
    """The least and the greatest measured value at one place of the axis."""

    at: float
    least: float
    most: float


def draw(title: str, result: Result) -> str:
    """Draw a result as SVG. A panel without data says so."""
    latencies = {
        name: _percentiles(each)
        for name, each in (("acknowledged", result.acknowledged), ("delivered", result.delivered))
        if each is not None and each.count
    }
    rates = {
        name: _rates(each)
        for name, each in (("produced", result.produced), ("consumed", result.consumed))
        if each is not None and each.messages
    }
    seconds = max((line[-1][0] for line in rates.values()), default=0.0)
    nines = max((line[-1][0] for line in latencies.values()), default=0.0)
    ticks = {at: name for at, name in _NAMES.items() if at <= nines}
    step = max(1, math.ceil(seconds / 6))
    half = WIDTH // 2
    of_seconds = {float(at): str(at) for at in range(0, int(seconds) + 1, step)}
    return svg(
        title,
        [
            *panel((0, half), "latency, ms", "share of the messages that were not slower", latencies, ticks),
            *panel((half, half), "messages per second", "seconds from the first message", rates, of_seconds),
        ],
    )


def svg(title: str, elements: Sequence[str], width: int = WIDTH, height: int = HEIGHT) -> str:
    """Return a complete SVG file: these elements on a white ground."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'font-family="system-ui, sans-serif" font-size="12" fill="#334155">',
            f"  <title>{escape(title)}</title>",
            f'  <rect width="{width}" height="{height}" fill="#ffffff"/>',
            *(f"  {element}" for element in elements),
            "</svg>\n",
        ]
    )


def _percentiles(latencies: Latencies) -> Line:
    """Places on the axis (0 for 0 %, 1 for 90 %, 2 for 99 % ...) and milliseconds, as far as there are messages."""
    last = math.log10(max(latencies.count, 2))
    histogram = latencies.histogram
    places = [step / 20 for step in range(len(_SHARES)) if step / 20 <= last]
    return [
        (place, histogram.get_value_at_percentile(100 * share) / 1000)
        for place, share in zip(places, _SHARES, strict=False)
    ]


def _rates(counts: DirectionCounts) -> Line:
    """The counts of each whole second; the last, incomplete second is left out."""
    last = max(counts.by_second)
    return [(float(second), float(counts.by_second.get(second, 0))) for second in range(max(last, 1))]


def panel(
    place: tuple[int, int],
    unit: str,
    axis: str,
    lines: Mapping[str, Line],
    ticks: Mapping[float, str],
    spreads: Mapping[str, Sequence[Spread]] | None = None,
) -> list[str]:
    """Draw lines by name over one axis, whose ticks have names.

    Args:
        place: the left end and the width of the panel.
        spreads: by the name of a line, how far its values spread; its points are marked then.
    """
    x, width = place
    left, right, floor = x + _LEFT, x + width - _GAP + _LEFT, HEIGHT - _BOTTOM
    if not lines:
        return [f'<text x="{x + 20}" y="20">{escape(unit)}: not measured</text>']
    across = max(max(at for at, _ in line) for line in lines.values()) or 1.0
    # One window that was much slower than all others must not flatten the line.
    top = 1.2 * max(max(value for _, value in line) for line in lines.values()) or 1.0

    def at_x(at: float) -> float:
        return left + (right - left) * at / across

    def at_y(value: float) -> float:
        return floor - (floor - _TOP) * min(value, top) / top

    parts = [f'<text x="{x + 20}" y="20" font-size="13" font-weight="600">{escape(unit)}</text>']
    for value in (0.0, top / 2.4, top / 1.2):
        y = at_y(value)
        label = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for at, name in ticks.items():
        parts.append(f'<text x="{at_x(at):.1f}" y="{floor + 18}" text-anchor="middle">{escape(name)}</text>')
    parts.append(f'<text x="{(left + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(axis)}</text>')
    legend = left
    for (name, line), colour in zip(lines.items(), _COLOURS, strict=False):
        points = "L".join(f"{at_x(at):.1f} {at_y(value):.1f}" for at, value in line)
        parts.append(f'<path d="M{points}" stroke="{colour}" stroke-width="2" fill="none"/>')
        parts.append(f'<text x="{legend}" y="40" fill="{colour}" font-weight="600">{escape(name)}</text>')
        legend += _LETTER_WIDTH * (len(name) + 3)
        if spreads is not None:
            for at, least, most in spreads[name]:
                parts.append(f'<path d="M{at_x(at):.1f} {at_y(least):.1f}V{at_y(most):.1f}" stroke="{colour}"/>')
            for at, value in line:
                parts.append(f'<circle cx="{at_x(at):.1f}" cy="{at_y(value):.1f}" r="3.5" fill="{colour}"/>')
    return parts
