"""Writes a curve as a table and a picture, for its section of docs/benchmarks/curves.md. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.curves.sample import Curve, PointSample, Spread
from mq.cli.bench import plot


def marks(curve: Curve) -> tuple[str, str]:
    """Return the marks around the section of the curve."""
    mark = f"<!-- measured by `make bench-curves`, {curve.name}:"
    return f"{mark} begin -->", f"{mark} end -->"


def section(curve: Curve, samples: Sequence[PointSample], *, machine: str, date: str) -> str:
    """Write the section of the page: how the curve was measured, the picture, and a row for each point."""
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
            *_cost_of_each(curve, samples),
            *_times_first(samples),
        ]
    )


def _cost_of_each(curve: Curve, samples: Sequence[PointSample]) -> list[str]:
    """The sentence about the memory and disk of one more, from the difference of the last two points; may be empty."""
    if not curve.each or len(samples) < 2:
        return []
    one, other = samples[-2:]
    count = int(other.at.replace(",", "")) - int(one.at.replace(",", ""))
    memory = (other.rss_mib - one.rss_mib) * 2**20 / count
    text = f"From {one.at} to {other.at}, {curve.each} takes {memory:,.0f} bytes of the leader's memory"
    if one.state_mib is not None and other.state_mib is not None:
        text += f", and {(other.state_mib - one.state_mib) * 2**20 / count:,.0f} bytes of its disk besides the log"
    return ["", f"{text}."]


def _times_first(samples: Sequence[PointSample]) -> list[str]:
    """The paragraph that compares the last point with the first one in the same process; may be empty."""
    if (times := samples[-1].times_first) is None:
        return []
    return [
        "",
        f"With {samples[-1].at} of them, messages to all and messages to {samples[0].at} of them were sent in turns to "
        f"the same broker: a message to one of all took {times.median:.2f} times as much CPU of the leader (median; "
        f"pairs of windows from {times.least:.2f} to {times.most:.2f}).",
    ]


def _row(sample: PointSample) -> str:
    follower = "-" if sample.follower_us is None else _with_spread(sample.follower_us)
    return (
        f"| {sample.at} | {sample.messages_per_second.median:,.0f} | {sample.p50_ms:.1f} / {sample.p99_ms:.1f} "
        f"| {_with_spread(sample.leader_us)} | {follower} | {max(0.0, sample.children_us):.1f} | {sample.rss_mib:,.0f} "
        f"| {100 * sample.generator_cores:.0f} % |"
    )


def _with_spread(spread: Spread) -> str:
    return f"{spread.median:.1f} ({spread.least:.1f} to {spread.most:.1f})"


def picture(curve: Curve, samples: Sequence[PointSample]) -> str:
    """Draw two panels as SVG: CPU per message with its spread, and p99. Points are evenly spaced."""
    cpu = {"leader": [sample.leader_us for sample in samples]}
    followers = [sample.follower_us for sample in samples if sample.follower_us is not None]
    if len(followers) == len(samples):
        cpu["follower"] = followers
    p99 = {"p99": [Spread(sample.p99_ms, sample.p99_ms, sample.p99_ms) for sample in samples]}
    ticks = {float(number): sample.at for number, sample in enumerate(samples)}
    half = plot.WIDTH // 2
    parts = []
    for x, unit, series in ((0, "CPU per message, us", cpu), (half, "p99, ms", p99)):
        lines = {
            name: [(at, each.median) for at, each in zip(ticks, values, strict=True)] for name, values in series.items()
        }
        spreads = {
            name: [plot.Spread(at, each.least, each.most) for at, each in zip(ticks, values, strict=True)]
            for name, values in series.items()
        }
        parts += plot.panel((x, half), unit, curve.axis, lines, ticks, spreads)
    return plot.svg(f"{curve.title}: CPU per message, and p99 of the latency", parts)
