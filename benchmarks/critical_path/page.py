"""Writes critical paths as tables and pictures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from benchmarks.critical_path.steps import Lane, Row
from mq.cli.bench.plot import svg

BEGIN: Final = "<!-- measured by `make bench-critical-path`: begin -->"
END: Final = "<!-- measured by `make bench-critical-path`: end -->"

WIDTH: Final = 1000
_LEFT, _RIGHT, _TOP, _LANE_HEIGHT, _BAR = 200, 30, 50, 56, 20
_COLOURS: Final = {True: "#1d4ed8", False: "#94a3b8"}
_WAIT_COLOUR: Final = "#f59e0b"
_WAITS: Final = ("wake up", "the leader wakes up")
_LANES: Final = (
    Lane.LEADER,
    Lane.LEADER_WRITER,
    Lane.FOLLOWER,
    Lane.FOLLOWER_WRITER,
    Lane.OTHER,
    Lane.OTHER_WRITER,
)


@dataclass(frozen=True, slots=True)
class LoadTrace:
    """A load, and the figures of its critical path.

    ``entries`` were traced. ``path_us``: median from when the leader wakes up with a request to its reply; ``p50_ms``:
    as the client saw it. CPU in us per message, and turns of the event loop per entry, the leader's first.
    """

    load: str
    entries: int
    path_us: float
    p50_ms: float
    messages_per_second: float
    cpu_us: tuple[float, ...]
    turns: tuple[float, ...]
    load_average: float
    rows: Sequence[Row]

    @property
    def name(self) -> str:
        """The load in the form that names of files contain."""
        return self.load.rpartition(" ")[2]


def is_wait(row: Row) -> bool:
    """Whether no thread works in this step: one has work, and does not run yet."""
    return row.name.startswith(_WAITS)


def section(traces: Sequence[LoadTrace], *, command: str, machine: str, date: str) -> str:
    """Write the section of the page: how the loads were measured, and a picture and a table for each load."""
    lines = [
        f"Command: `{command}`. Date: {date}.",
        f"Machine: {machine}; servers and load generator share it.",
    ]
    for each in traces:
        cpu, turns = (" / ".join(f"{value:.{digits}f}" for value in values) for values, digits in _figures(each))
        lines += [
            "",
            f"## {each.load}",
            "",
            f"{each.entries:,} entries; {each.messages_per_second:,.0f} msgs/s; p50 at the client {each.p50_ms:.2f} "
            f"ms, of it {each.path_us / 1e3:.2f} ms from when the leader wakes up until it has sent the reply. CPU "
            f"with the trace, us per message: {cpu}. Turns of the event loop per entry: {turns}. Load average before: "
            f"{each.load_average:.1f}.",
            "",
            f"![Critical path at {escape(each.load)}](../images/critical-path-{each.name}.svg)",
            "",
            "| who | does what | from, us | to, us | takes, us: median | p90 | the reply waits for it |",
            "|---|---|---:|---:|---:|---:|---|",
            *(
                f"| {row.lane} | {row.name} | {row.begin_us:,.0f} | {row.end_us:,.0f} | {row.median_us:,.0f} "
                f"| {row.p90_us:,.0f} | {'yes' if row.is_critical else 'no'} |"
                for row in each.rows
            ),
            "",
            f"Of what the reply waits for: {_shares(each)}.",
        ]
    return "\n".join(lines)


def _figures(each: LoadTrace) -> tuple[tuple[tuple[float, ...], int], tuple[tuple[float, ...], int]]:
    return (each.cpu_us, 0), (each.turns, 1)


def shares(rows: Sequence[Row]) -> Mapping[str, float]:
    """Add the medians of the critical steps by kind, in us. This is not exactly the median of the sums."""
    shares_of = {"waking up": 0.0, "writing with a sync": 0.0, "the leader's event loop": 0.0, "the follower's": 0.0}
    for row in rows:
        if not row.is_critical:
            continue
        if is_wait(row):
            kind = "waking up"
        elif row.name == "write and sync":
            kind = "writing with a sync"
        else:
            kind = "the leader's event loop" if row.lane is Lane.LEADER else "the follower's"
        shares_of[kind] += row.median_us
    return shares_of


def _shares(each: LoadTrace) -> str:
    return ", ".join(f"{name} {value:,.0f} us" for name, value in shares(each.rows).items())


def picture(trace: LoadTrace) -> str:
    """Draw a row for each thread as SVG, with a bar for each step from its median begin to its median end."""
    span = max(row.end_us for row in trace.rows)
    height = _TOP + _LANE_HEIGHT * len(_LANES) + 40
    right = WIDTH - _RIGHT

    def at_x(us: float) -> float:
        return _LEFT + (right - _LEFT) * us / span

    floor = height - 34
    lines = [
        f'<text x="20" y="22" font-size="14" font-weight="600">{escape(trace.load)}: medians of {trace.entries:,} '
        "entries, microseconds since the leader woke up with the request</text>"
    ]
    step = _nice(span / 8)
    us = 0.0
    while us <= span:
        lines.append(f'<path d="M{at_x(us):.1f} {_TOP - 8}V{floor}" stroke="#e2e8f0"/>')
        lines.append(f'<text x="{at_x(us):.1f}" y="{floor + 16}" text-anchor="middle">{us:,.0f}</text>')
        us += step
    for number, lane in enumerate(_LANES):
        y = _TOP + _LANE_HEIGHT * number
        lines.append(f'<text x="20" y="{y + 15}">{escape(lane)}</text>')
        for row in trace.rows:
            # Waits of the leader for the network are drawn where it waits.
            of = Lane.LEADER if row.lane is Lane.WIRE else row.lane
            if of is not lane:
                continue
            colour = _WAIT_COLOUR if is_wait(row) else _COLOURS[row.is_critical]
            wide = max(at_x(row.end_us) - at_x(row.begin_us), 1.0)
            text = escape(f"{row.name}: {row.median_us:,.0f} us")
            lines.append(
                f'<rect x="{at_x(row.begin_us):.1f}" y="{y}" width="{wide:.1f}" height="{_BAR}" fill="{colour}" '
                f'stroke="#ffffff"><title>{text}</title></rect>'
            )
            if wide > 8 * len(f"{row.median_us:,.0f}"):
                lines.append(
                    f'<text x="{at_x(row.begin_us) + wide / 2:.1f}" y="{y + 14}" text-anchor="middle" fill="#ffffff">'
                    f"{row.median_us:,.0f}</text>"
                )
    x = float(_LEFT)
    for name, colour in (
        ("the reply waits for this work", _COLOURS[True]),
        ("a thread or process wakes up", _WAIT_COLOUR),
        ("the reply does not wait for this", _COLOURS[False]),
    ):
        lines.append(f'<rect x="{x}" y="{height - 14}" width="12" height="10" fill="{colour}"/>')
        lines.append(f'<text x="{x + 18}" y="{height - 5}">{name}</text>')
        x += 260
    return svg(f"Who waits for whom while a message is stored: {trace.load}", lines, WIDTH, height)


def _nice(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... that is not below ``value``."""
    scale = 1.0
    while True:
        for factor in (1.0, 2.0, 5.0):
            if factor * scale >= value:
                return factor * scale
        scale *= 10.0
