"""Results of a benchmark as a picture, SVG: latency by percentile, and messages per second over time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from mq.cli.bench.results import Counted, Latencies, Result

WIDTH, HEIGHT = 960, 320
_LEFT, _TOP, _BOTTOM, _GAP = 70, 52, 54, 100
_COLOURS = ("#1d4ed8", "#f59e0b")
_SHARES = [1 - 10 ** (-step / 20) for step in range(121)]
"""Shares of messages from 0 to 99.9999 %, at equal distances on the axis."""
_NAMES = {0.0: "0 %", 1.0: "90 %", 2.0: "99 %", 3.0: "99.9 %", 4.0: "99.99 %", 5.0: "99.999 %", 6.0: "99.9999 %"}

Line = list[tuple[float, float]]


def drawing(title: str, result: Result) -> str:
    """The picture. A panel without data says so."""
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
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'font-family="system-ui, sans-serif" font-size="12" fill="#334155">',
            f"  <title>{escape(title)}</title>",
            f'  <rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            *_panel(0, "latency, ms", "share of the messages that were not slower", latencies, ticks),
            *_panel(
                WIDTH // 2,
                "messages per second",
                "seconds from the first message",
                rates,
                {float(at): str(at) for at in range(0, int(seconds) + 1, step)},
            ),
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


def _rates(counted: Counted) -> Line:
    """For each whole second; the last one is left out, since it is not whole."""
    last = max(counted.by_second)
    return [(float(second), float(counted.by_second.get(second, 0))) for second in range(max(last, 1))]


def _panel(x: int, unit: str, axis: str, lines: dict[str, Line], ticks: dict[float, str]) -> Sequence[str]:
    left, right, floor = x + _LEFT, x + WIDTH // 2 - _GAP + _LEFT, HEIGHT - _BOTTOM
    if not lines:
        return [f'  <text x="{x + 20}" y="20">{escape(unit)}: not measured</text>']
    across = max(max(at for at, _ in line) for line in lines.values()) or 1.0
    top = 1.1 * max(max(value for _, value in line) for line in lines.values()) or 1.0

    def at_x(at: float) -> float:
        return left + (right - left) * at / across

    def at_y(value: float) -> float:
        return floor - (floor - _TOP) * value / top

    parts = [f'<text x="{x + 20}" y="20" font-size="13" font-weight="600">{escape(unit)}</text>']
    for value in (0.0, top / 2.2, top / 1.1):
        y = at_y(value)
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>')
    for at, name in ticks.items():
        parts.append(f'<text x="{at_x(at):.1f}" y="{floor + 18}" text-anchor="middle">{escape(name)}</text>')
    parts.append(f'<text x="{(left + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(axis)}</text>')
    for place, (name, line) in enumerate(lines.items()):
        points = "L".join(f"{at_x(at):.1f} {at_y(value):.1f}" for at, value in line)
        parts.append(f'<path d="M{points}" stroke="{_COLOURS[place]}" stroke-width="2" fill="none"/>')
        parts.append(f'<text x="{left + 110 * place}" y="40" fill="{_COLOURS[place]}" font-weight="600">{name}</text>')
    return [f"  {part}" for part in parts]
