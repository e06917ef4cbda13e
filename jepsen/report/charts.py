"""Draws the charts below the timeline of a run: latencies, rates, clocks, operations of processes. Pure, SVG."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from checkers.history import History, Operation
from jepsen.report.timeline import COLOURS, LEFT, RIGHT, WIDTH, LogScale

BUCKETS = 100
"""Parts of a run's time, each with its own quantiles and rate."""
QUANTILES = ((0.5, "#8ecae6"), (0.95, "#219ebc"), (0.99, "#023047"), (1.0, "#fb8500"))
QUANTILE_HEIGHT = 90
NODE_COLOURS = ("#457b9d", "#e76f51", "#2a9d8f", "#6a4c93", "#b5838d", "#606c38")
RATE_HEIGHT = 110
LANES_MAX = 40
"""The number of processes shown, with the most operations; a client gets a new one after each unknown outcome."""
LANE, CELL = 7, 2
TITLE = 16
_SCALE = LogScale(TITLE, QUANTILE_HEIGHT, -4, 2)


class _Axis:
    """Maps times of a run to positions in a chart."""

    def __init__(self, history: History) -> None:
        self.first = history.began
        self.span = max(history.ended - history.began, 1)
        self._scale = (WIDTH - LEFT - RIGHT) / self.span

    def x(self, t: int) -> float:
        """The x coordinate of a time in nanoseconds."""
        return LEFT + (t - self.first) * self._scale

    def bucket(self, t: int) -> int:
        """The part of the run that a time is in."""
        return min((t - self.first) * BUCKETS // self.span, BUCKETS - 1)

    def middle(self, bucket: int) -> float:
        """The position of a part's middle."""
        return self.x(self.first + self.span * (2 * bucket + 1) // (2 * BUCKETS))


def charts(history: History) -> str:
    """Draw all charts with their headings, as HTML."""
    parts = [
        "<h2>Quantiles</h2><p>Durations of operations that were answered: "
        + ", ".join(f"<span style='color:{colour}'>{_name(part)}</span>" for part, colour in QUANTILES)
        + ".</p>",
        *_quantiles(history),
        "<h2>Rate of each replica</h2>",
        _rates(history),
        "<h2>Clocks</h2>",
        _clocks(history),
        f"<h2>Processes</h2><p>What each process did (green: answered, red: refused, orange: outcome unknown); at most "
        f"{LANES_MAX} processes, those with the most operations.</p>",
        _lanes(history),
    ]
    return "\n".join(parts)


def _name(fraction: float) -> str:
    return "maximum" if fraction == 1.0 else f"{fraction:.0%}"


def _open(height: int) -> str:
    return f"<svg viewBox='0 0 {WIDTH} {height}' font-family='sans-serif' font-size='11' role='img'>"


def _bands(history: History, axis: _Axis, height: int) -> Iterator[str]:
    for fault in history.faults:
        end = history.ended if fault.ended is None else fault.ended
        width = max(axis.x(end) - axis.x(fault.began), 1.5)
        yield (
            f"<rect x='{axis.x(fault.began):.1f}' y='{TITLE}' width='{width:.1f}' height='{height - TITLE}' "
            f"fill='#888' fill-opacity='.18'><title>{escape(fault.what)}</title></rect>"
        )


def _quantiles(history: History) -> Iterator[str]:
    """Draw one chart for each kind of operation that has a beginning and an end."""
    axis = _Axis(history)
    durations: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for operation in history.operations:
        if operation.outcome == "ok" and operation.ended is not None and operation.ended > operation.began:
            durations[operation.name][axis.bucket(operation.began)].append(operation.ended - operation.began)
    height = TITLE + QUANTILE_HEIGHT + 4
    for name, buckets in sorted(durations.items()):
        count = sum(map(len, buckets.values()))
        parts = [_open(height), *_bands(history, axis, height)]
        parts.append(f"<text x='{LEFT}' y='11' fill='#222'>{escape(name)}, {count:,} times</text>")
        parts += _SCALE.lines()
        for each in buckets.values():
            each.sort()
        for fraction, colour in QUANTILES:
            points = [
                (axis.middle(bucket), _SCALE.y(quantile(buckets[bucket], fraction) / 1e9)) for bucket in sorted(buckets)
            ]
            parts.append(_line(points, colour))
        parts.append("</svg>")
        yield "".join(parts)


def quantile(values: Sequence[int], fraction: float) -> int:
    """Return the smallest of the sorted values that at least the fraction ``fraction`` of them does not exceed."""
    return values[max(0, math.ceil(len(values) * fraction) - 1)]


def _line(points: Sequence[tuple[float, float]], colour: str) -> str:
    if len(points) == 1:
        ((x, y),) = points
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='1.5' fill='{colour}'/>"
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f"<polyline points='{path}' fill='none' stroke='{colour}'/>"


def _rates(history: History) -> str:
    """Draw the answered operations per second, by the replica that answered."""
    axis = _Axis(history)
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for operation in history.operations:
        if operation.outcome == "ok" and operation.node is not None and operation.ended is not None:
            counts[operation.node][axis.bucket(operation.ended)] += 1
    if not counts:
        return "<p>No operation of this workload names the replica that answered.</p>"
    height = TITLE + RATE_HEIGHT + 4
    highest = max(max(each.values()) for each in counts.values())
    in_a_second = highest * BUCKETS * 1e9 / axis.span
    parts = [_open(height), *_bands(history, axis, height)]
    parts.append(f"<text x='{LEFT}' y='11' fill='#222'>answers in a second, at most {in_a_second:,.0f}: </text>")
    for number, (node, each) in enumerate(sorted(counts.items())):
        colour = NODE_COLOURS[number % len(NODE_COLOURS)]
        parts.append(f"<text x='{LEFT + 250 + 60 * number}' y='11' fill='{colour}'>{escape(node)}</text>")
        points = [(axis.middle(at), TITLE + RATE_HEIGHT * (1 - each[at] / highest)) for at in range(BUCKETS)]
        parts.append(_line(points, colour))
    return "".join([*parts, "</svg>"])


def _clocks(history: History) -> str:
    """Draw the distance of each replica's clock from the clock of the clients' machine, as the replica reported it."""
    axis = _Axis(history)
    skews: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for event in history.of_run("skew"):
        skews[str(event.n)].append((event.t, float(event.v)))
    if not skews:
        return "<p>No replica reported another time than the clients' machine has, to two seconds.</p>"
    height = TITLE + RATE_HEIGHT + 4
    largest = max(abs(skew) for each in skews.values() for _, skew in each) or 1.0
    zero = TITLE + RATE_HEIGHT / 2
    parts = [_open(height), *_bands(history, axis, height)]
    parts.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{zero}' y2='{zero}' stroke='#ddd'/>")
    parts.append(f"<text x='{LEFT}' y='11' fill='#222'>ahead (up) or behind, at most {_duration(largest)}:</text>")
    for number, (node, each) in enumerate(sorted(skews.items())):
        colour = NODE_COLOURS[number % len(NODE_COLOURS)]
        parts.append(f"<text x='{LEFT + 250 + 60 * number}' y='11' fill='{colour}'>{escape(node)}</text>")
        points = [(axis.x(history.began), zero)]
        for at, skew in each:
            points += [(axis.x(at), points[-1][1]), (axis.x(at), zero - skew / largest * RATE_HEIGHT / 2)]
        points.append((axis.x(history.ended), points[-1][1]))
        parts.append(_line(points, colour))
    return "".join([*parts, "</svg>"])


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _lanes(history: History) -> str:
    """Draw a lane for each of the busiest processes; operations within a few pixels are drawn once."""
    axis = _Axis(history)
    counts = Counter(operation.process for operation in history.operations)
    lanes = sorted(process for process, _ in counts.most_common(LANES_MAX))
    row = {process: number for number, process in enumerate(lanes)}
    names: defaultdict[int, Counter[str]] = defaultdict(Counter)
    marks: dict[tuple[int, int, str], float] = {}
    for operation in history.operations:
        if operation.process in row:
            names[operation.process][operation.name] += 1
            _mark(marks, operation, row, axis, history.ended)
    height = TITLE + len(lanes) * LANE + 4
    parts = [_open(height), *_bands(history, axis, height)]
    for process in lanes:
        y = TITLE + row[process] * LANE
        what = ", ".join(f"{count:,} {name}" for name, count in names[process].most_common())
        parts.append(
            f"<text x='{LEFT - 4}' y='{y + 6}' text-anchor='end' font-size='6' fill='#444'>{process}"
            f"<title>process {process}: {escape(what)}</title></text>"
        )
    for (lane, at, outcome), until in sorted(marks.items(), key=lambda mark: mark[0][2] != "ok"):
        y = TITLE + lane * LANE + 1
        width = max(until - at, CELL)
        parts.append(f"<rect x='{at}' y='{y}' width='{width:.0f}' height='{LANE - 2}' fill='{COLOURS[outcome]}'/>")
    return "".join([*parts, "</svg>"])


def _mark(
    marks: dict[tuple[int, int, str], float],
    operation: Operation,
    row: Mapping[int, int],
    axis: _Axis,
    last: int,
) -> None:
    at = int(axis.x(operation.began)) // CELL * CELL
    until = axis.x(last if operation.ended is None else operation.ended)
    key = (row[operation.process], at, operation.outcome)
    marks[key] = max(marks.get(key, 0.0), until)
