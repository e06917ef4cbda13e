"""Draws charts of rates as lines of an SVG picture. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mq.console import lags
from mq.console.history import EVERY_SECONDS, SECONDS, Rates
from mq.console.lags import Lag

WIDTH: Final = 600
HEIGHT: Final = 60
GAP_SECONDS: Final = 3 * EVERY_SECONDS
"""Two points that are further apart are not joined: nothing is known in between."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines as texts of ``x,y`` pairs. ``words`` describes them for people who cannot see the picture."""

    sent: tuple[str, ...]
    read: tuple[str, ...]
    highest: str
    words: str


def chart(points: Sequence[Rates], now: float) -> Chart | None:
    """Draw the rates of the last hour, with the present at the right. Returns None for fewer than two points."""
    if len(points) < 2:
        return None
    rates = [each for point in points for each in (point.sent, point.read) if each is not None]
    highest = max(rates, default=0.0)
    scale = max(highest, 1.0)
    sent_line = _lines([(each.at, each.sent) for each in points], now, scale)
    read = _lines([(each.at, each.read) for each in points], now, scale)
    minutes = max(1, round((now - points[0].at) / 60))
    words = f"rates of the last {minutes} min, at most {highest:,.1f} messages per second"
    return Chart(sent_line, read, f"{highest:,.1f}/s", words)


def error_chart(points: Sequence[Rates], now: float) -> Chart | None:
    """Draw the errors of the last hour. Returns None for fewer than two points, or if there were no errors."""
    highest = max((each.errors for each in points if each.errors is not None), default=0.0)
    if len(points) < 2 or not highest:
        return None
    lines = _lines([(each.at, each.errors) for each in points], now, highest)
    minutes = max(1, round((now - points[0].at) / 60))
    words = f"requests refused or failed in the last {minutes} min, at most {highest:,.1f} per second"
    return Chart(lines, (), f"{highest:,.1f}/s", words)


def lag_chart(points: Sequence[Lag], now: float) -> Chart | None:
    """Draw how many messages waited for a consumer group in the last hour. Returns None for fewer than two points."""
    if len(points) < 2:
        return None
    highest = max(each.message_count for each in points)
    lines = _lines([(each.at, each.message_count) for each in points], now, max(highest, 1), 3 * lags.EVERY_SECONDS)
    minutes = max(1, round((now - points[0].at) / 60))
    words = f"messages to consume in the last {minutes} min, at most {highest:,}, now {points[-1].message_count:,}"
    return Chart(lines, (), f"{highest:,}", words)


def _lines(
    points: Sequence[tuple[float, float | None]], now: float, scale: float, gap_seconds: float = GAP_SECONDS
) -> tuple[str, ...]:
    lines: list[list[str]] = []
    last: float | None = None
    for at, value in points:
        if value is None:
            last = None
            continue
        if last is None or at - last > gap_seconds:
            lines.append([])
        x = WIDTH * (1 - (now - at) / SECONDS)
        y = HEIGHT * (1 - value / scale)
        lines[-1].append(f"{max(0.0, x):.1f},{y:.1f}")
        last = at
    return tuple(" ".join(line) for line in lines if len(line) > 1)
