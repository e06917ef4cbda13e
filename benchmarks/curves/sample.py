"""The points of a curve, and their figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.cases import Window


@dataclass(frozen=True, slots=True)
class PointMeasurement:
    """The figures of one point, measured once.

    Attributes:
        at: the name of the point, as "1,000" or "64 KiB".
        windows: each with the CPU of the leader itself, then of a follower itself, then of the child processes of a
            replica.
        rss_mib: resident memory of the leader.
        load_average: of the machine, before the point.
        state_mib: of its files except the log; None where that is not of interest.
        times_first: the leader's CPU for a message, divided by its CPU at the first point. Each number comes from two
            windows, one after the other, in the same process; empty where that was not compared.
    """

    at: str
    windows: Sequence[Window]
    rss_mib: float
    load_average: float
    has_followers: bool
    state_mib: float | None = None
    times_first: Sequence[float] = ()


class Spread(NamedTuple):
    """The median, least and most of a figure over the windows of a point."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class PointSample:
    """One point of a curve, over all windows of all its measurements. CPU is in microseconds per message.

    Attributes:
        leader_us, follower_us, children_us: of the leader itself, of a follower itself (None without followers), and of
            the child processes of a replica.
        generator_cores: the most that a process of the load generator used.
        load_average: the highest of the passes.
        times_first: the leader's CPU as a multiple of that at the first point, measured in turns; None if it was not.
    """

    at: str
    messages_per_second: Spread
    p50_ms: float
    p99_ms: float
    leader_us: Spread
    follower_us: Spread | None
    children_us: float
    rss_mib: float
    generator_cores: float
    load_average: float
    state_mib: float | None = None
    times_first: Spread | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve. ``name``: for ``--curve``. ``title``, ``axis``: for people. ``load``: what is the same for all points.

    ``each``: the thing that the curve adds, in the singular, where the page tells its memory and disk.
    """

    name: str
    title: str
    axis: str
    load: str
    each: str = ""


def samples_of(measurements: Sequence[PointMeasurement]) -> list[PointSample]:
    """Combine the measurements of each point, in the order in which points were measured first."""
    points: dict[str, list[PointMeasurement]] = {}
    for each in measurements:
        points.setdefault(each.at, []).append(each)
    return [_sample_of(at, passes) for at, passes in points.items()]


def _sample_of(at: str, passes: Sequence[PointMeasurement]) -> PointSample:
    # A window without messages, as when a load generator begins late, has no cost per message.
    windows = [window for each in passes for window in each.windows if window.messages_per_second]
    return PointSample(
        at=at,
        messages_per_second=_spread([window.messages_per_second for window in windows]),
        p50_ms=statistics.median(window.p50_ms for window in windows),
        p99_ms=statistics.median(window.p99_ms for window in windows),
        leader_us=_spread([window.leader_us for window in windows]),
        follower_us=_spread([window.follower_us[0] for window in windows]) if passes[0].has_followers else None,
        # They work on one part of the log after the other: only all windows together show their cost.
        children_us=statistics.fmean(window.follower_us[1] for window in windows),
        rss_mib=passes[0].rss_mib,
        generator_cores=max(window.generator_cores_max for window in windows),
        load_average=max(each.load_average for each in passes),
        state_mib=passes[0].state_mib,
        times_first=_spread(times) if (times := [ratio for each in passes for ratio in each.times_first]) else None,
    )


def _spread(values: list[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def bytes_name(size: int) -> str:
    """Format a size, as "64 B", "16 KiB", "1 MiB"."""
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"
