"""Draws a run: sends by time and duration, faults as bands, leaders as bars, and the rate below. Pure, SVG."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from html import escape
from typing import NamedTuple

from checkers.history import History, Operation

WIDTH, LEFT, RIGHT = 1000, 60, 10
TOP, PLOT = 20, 260
BAR, GAP = 16, 6
RATE = 90
DOTS_MAX = 6000
"""Above this number they are drawn in cells, one dot each, so that the page of a long run stays small."""
CELL = 3

X = Callable[[int], float]
"""The horizontal position of a time."""

COLOURS = {"ok": "#2a9d4a", "fail": "#d62839", "info": "#ee9b00"}
TERM_COLOURS = ("#457b9d", "#8d99ae", "#6a4c93", "#1982c4", "#ff924c")


class LogScale(NamedTuple):
    """Maps durations to heights, between two powers of ten in seconds."""

    top: int
    height: int
    first: int
    last: int

    def y(self, seconds: float) -> float:
        """Return the y coordinate of a duration in seconds, on a logarithmic scale."""
        part = (math.log10(max(seconds, 10.0**self.first)) - self.first) / (self.last - self.first)
        return self.top + self.height * (1 - min(part, 1.0))

    def lines(self) -> Iterator[str]:
        """Draw a horizontal line for each power of ten."""
        for decade in range(self.first, self.last + 1):
            y = self.y(10.0**decade)
            label = f"{10**decade} s" if decade >= 0 else f"{10.0 ** (decade + 3):g} ms"
            yield (
                f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#ddd'/>"
                f"<text x='{LEFT - 4}' y='{y + 4:.1f}' text-anchor='end' fill='#666'>{label}</text>"
            )


_SCALE = LogScale(TOP, PLOT, -4, 1)


def draw(history: History) -> str:
    """Draw the timeline as an `svg` element."""
    first, last = history.began, history.ended
    span = max(last - first, 1)
    scale = (WIDTH - LEFT - RIGHT) / span
    sends = list(history.named("send"))
    height = TOP + PLOT + GAP + len(history.nodes) * (BAR + GAP) + RATE + 30

    def x(t: int) -> float:
        return LEFT + (t - first) * scale

    parts = [f"<svg viewBox='0 0 {WIDTH} {height}' font-family='sans-serif' font-size='11' role='img'>"]
    for fault in history.faults:
        end = last if fault.ended is None else fault.ended
        width = max((end - fault.began) * scale, 1.5)
        parts.append(
            f"<rect x='{x(fault.began):.1f}' y='{TOP}' width='{width:.1f}' height='{height - TOP - 20}' fill='#888' "
            f"fill-opacity='.18'><title>{escape(fault.what)}</title></rect>"
            f"<text x='{x(fault.began):.1f}' y='{TOP - 6}' fill='#444'>{escape(fault.kind)}</text>"
        )
    parts += _SCALE.lines()
    parts += _dots(sends, x, last)
    parts += _leaders(history, x, last)
    parts += _rate(sends, x, first, last, height)
    parts.append("</svg>")
    return "".join(parts)


def _dots(sends: list[Operation], x: X, last: int) -> Iterator[str]:
    step = CELL if len(sends) > DOTS_MAX else 1
    cells: Counter[tuple[str, int, int]] = Counter()
    for send in sends:
        end = last if send.ended is None else send.ended
        at = round(x(send.began) / step) * step
        cells[send.outcome, at, round(_SCALE.y((end - send.began) / 1e9) / step) * step] += 1
    for (outcome, at, y), count in sorted(cells.items(), key=lambda cell: cell[0][0] != "ok"):
        opacity = min(1.0, 0.35 + 0.15 * math.log2(count + 1))
        radius = 1.4 if outcome == "ok" else 2.2
        yield f"<circle cx='{at}' cy='{y}' r='{radius}' fill='{COLOURS[outcome]}' fill-opacity='{opacity:.2f}'/>"


def _leaders(history: History, x: X, last: int) -> Iterator[str]:
    for row, node in enumerate(history.nodes):
        y = TOP + PLOT + GAP + row * (BAR + GAP)
        yield f"<text x='{LEFT - 4}' y='{y + 12}' text-anchor='end' fill='#444'>{escape(node)}</text>"
        roles = [(event.t, *event.v) for event in history.of_run("role") if event.n == node]
        untils = [*(at for at, *_ in roles[1:]), last]
        for (since, role, term), until in zip(roles, untils, strict=False):  # one more, where there is no role
            if role == "leader":
                width = max(x(until) - x(since), 1.0)
                colour = TERM_COLOURS[int(term) % len(TERM_COLOURS)]
                yield (
                    f"<rect x='{x(since):.1f}' y='{y}' width='{width:.1f}' height='{BAR}' fill='{colour}'/>"
                    f"<text x='{x(since) + 3:.1f}' y='{y + 12}' fill='#fff'>term {escape(str(term))}</text>"
                )


def _rate(sends: list[Operation], x: X, first: int, last: int, height: int) -> Iterator[str]:
    second = 10**9
    ack_counts = Counter((send.ended - first) // second for send in sends if send.outcome == "ok" and send.ended)
    highest = max(ack_counts.values(), default=1)
    bottom = height - 20
    points = []
    for number in range((last - first) // second + 1):
        y = bottom - (RATE - 20) * ack_counts[number] / highest
        points.append(f"{x(first + number * second):.1f},{y:.1f}")
        if number % max(1, (last - first) // second // 12) == 0:
            at = x(first + number * second)
            yield f"<text x='{at:.1f}' y='{height - 6}' text-anchor='middle' fill='#666'>{number} s</text>"
    yield f"<polyline points='{' '.join(points)}' fill='none' stroke='#2a9d4a'/>"
    label = f"acknowledged in a second, at most {highest}"
    yield f"<text x='{LEFT + 4}' y='{bottom - RATE + 32}' fill='#2a9d4a'>{label}</text>"
