"""A curve as a table and a picture of its section of docs/benchmarks/curves.md: pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.curves.sample import Curve, Sample, Spread

WIDTH, HEIGHT = 960, 300
_LEFT, _TOP, _BOTTOM, _PANEL_GAP = 60, 46, 54, 90
_COLOURS = {"leader": "#1d4ed8", "follower": "#0f766e", "p99": "#f59e0b"}


def marks(curve: Curve) -> tuple[str, str]:
    """What the section of the curve stands between."""
    mark = f"<!-- measured by `make bench-curves`, {curve.name}:"
    return f"{mark} begin -->", f"{mark} end -->"


def section(curve: Curve, samples: Sequence[Sample], *, machine: str, date: str) -> str:
    """How it was measured, the picture, and a row for each point."""
    loads = [sample.load_average for sample in samples]
    return "\n".join(
        [
            f"Load: {curve.load}. Date: {date}. Load average before a point: up to {max(loads):.1f}.",
            f"Machine: {machine}; servers and clients share it.",
            "",
            f"![{curve.title}: CPU per message and p99](../images/curve-{curve.name}.svg)",
            "",
            f"| {curve.axis} | msgs/s | p50 / p99 ms | leader us/msg | follower us/msg | child processes us/msg "
            "| leader RSS MiB | generator, core |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
            *(_row(sample) for sample in samples),
            *_of_each(curve, samples),
            *_times_first(samples),
        ]
    )


def _of_each(curve: Curve, samples: Sequence[Sample]) -> list[str]:
    """What one of those takes by which the last two points differ."""
    if not curve.each or len(samples) < 2:
        return []
    one, other = samples[-2:]
    count = int(other.at.replace(",", "")) - int(one.at.replace(",", ""))
    memory = (other.rss_mib - one.rss_mib) * 2**20 / count
    text = f"From {one.at} to {other.at}, {curve.each} takes {memory:,.0f} bytes of the leader's memory"
    if one.state_mib is not None and other.state_mib is not None:
        text += f", and {(other.state_mib - one.state_mib) * 2**20 / count:,.0f} bytes of its disk besides the log"
    return ["", f"{text}."]


def _times_first(samples: Sequence[Sample]) -> list[str]:
    """How the last point compares with the first one in the same process."""
    if (times := samples[-1].times_first) is None:
        return []
    return [
        "",
        f"With {samples[-1].at} of them, messages to all and messages to {samples[0].at} of them were sent in turns to "
        f"the same broker: a message to one of all took {times.median:.2f} times as much CPU of the leader (median; "
        f"pairs of windows from {times.least:.2f} to {times.most:.2f}).",
    ]


def _row(sample: Sample) -> str:
    follower = "-" if sample.follower_us is None else _with_spread(sample.follower_us)
    return (
        f"| {sample.at} | {sample.messages_per_second.median:,.0f} | {sample.p50_ms:.1f} / {sample.p99_ms:.1f} "
        f"| {_with_spread(sample.leader_us)} | {follower} | {max(0.0, sample.children_us):.1f} | {sample.rss_mib:,.0f} "
        f"| {100 * sample.generator_cores:.0f} % |"
    )


def _with_spread(spread: Spread) -> str:
    return f"{spread.median:.1f} ({spread.least:.1f} to {spread.most:.1f})"


def picture(curve: Curve, samples: Sequence[Sample]) -> str:
    """Two panels, SVG: CPU per message with its spread, and p99. Points are evenly spaced."""
    half = WIDTH // 2
    cpu = {"leader": [sample.leader_us for sample in samples]}
    followers = [sample.follower_us for sample in samples if sample.follower_us is not None]
    if len(followers) == len(samples):
        cpu["follower"] = followers
    p99 = {"p99": [Spread(sample.p99_ms, sample.p99_ms, sample.p99_ms) for sample in samples]}
    names = [sample.at for sample in samples]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#334155">',
        f"  <title>{escape(curve.title)}: CPU per message, and p99 of the latency</title>",
        f'  <rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *_panel(0, half, "CPU per message, us", curve.axis, names, cpu),
        *_panel(half, half, "p99, ms", curve.axis, names, p99),
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    x: int, width: int, unit: str, axis: str, names: Sequence[str], series: dict[str, list[Spread]]
) -> list[str]:
    step = (width - _PANEL_GAP) / max(1, len(names) - 1)
    # One window that was much slower than all others must not flatten the curve.
    top = 1.2 * max(spread.median for spreads in series.values() for spread in spreads) or 1.0
    floor, left = HEIGHT - _BOTTOM, x + _LEFT
    right = left + step * max(1, len(names) - 1)

    def at_y(value: float) -> float:
        return floor - (floor - _TOP) * min(value, top) / top

    lines = [f'<text x="{x + 20}" y="20" font-size="13" font-weight="600">{escape(unit)}</text>']
    for value in (0.0, top / 2.4, top / 1.2):
        y = at_y(value)
        lines.append(f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="#e2e8f0"/>')
        lines.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.3g}</text>')
    for number, name in enumerate(names):
        at_x = left + number * step
        lines.append(f'<text x="{at_x:.1f}" y="{floor + 18}" text-anchor="middle">{escape(name)}</text>')
    middle = (left + right) / 2
    lines.append(f'<text x="{middle:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(axis)}</text>')
    for place, (name, spreads) in enumerate(series.items()):
        colour = _COLOURS[name]
        places = [(left + number * step, spread) for number, spread in enumerate(spreads)]
        path = "L".join(f"{at_x:.1f} {at_y(spread.median):.1f}" for at_x, spread in places)
        lines.append(f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
        for at_x, spread in places:
            lines.append(f'<path d="M{at_x:.1f} {at_y(spread.least):.1f}V{at_y(spread.most):.1f}" stroke="{colour}"/>')
            lines.append(f'<circle cx="{at_x:.1f}" cy="{at_y(spread.median):.1f}" r="3.5" fill="{colour}"/>')
        lines.append(f'<text x="{left + place * 90}" y="38" fill="{colour}" font-weight="600">{name}</text>')
    return [f"  {line}" for line in lines]
