"""Lists all performance goals with the last measurements: whether each is met, and by how much.

Measures nothing: reads the newest results of each benchmark in benchmarks/results/, and writes the tables of
docs/benchmarks/goals.md and docs/performance.md. ``python -m benchmarks.report.goals`` (``make bench-goals``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.load.generators import ROOT
from benchmarks.low_rate.page import LowRateSample, goals
from benchmarks.report import consuming_goals
from benchmarks.report.run_record import page_of, replace_section
from benchmarks.report.summary import beside_others, by_benchmark, send_lines
from benchmarks.suites.figures import Figure

RESULTS: Final = ROOT / "benchmarks" / "results"
BEGIN: Final = "<!-- written by `make bench-goals`: begin -->"
END: Final = "<!-- written by `make bench-goals`: end -->"

SUITES: Final = (
    "steady",
    "paced",
    "client",
    "store",
    "delays-transactions-pop",
    "metrics",
    "backup",
    "archive",
    "fairness",
    "filter",
)
"""Benchmarks whose results are figures with their goals."""


@dataclass(frozen=True, slots=True)
class SendGoal:
    """Limits of `make bench` for three replicas, bodies of 1 KiB, and one message in flight on each connection.

    p50 in ms, None for none; CPU in us per message.
    """

    connections: int
    p50_ms: float | None
    leader_us: float
    follower_us: float


SEND_GOALS: Final = (SendGoal(1, 0.6, 250.0, 150.0), SendGoal(64, None, 22.0, 10.0))


@dataclass(frozen=True, slots=True)
class GoalFigure:
    """A figure with a goal, from a run of ``benchmark`` at ``date``."""

    benchmark: str
    date: str
    load_average: float
    figure: Figure

    def row(self) -> str:
        """Return the figure as a row of a table."""
        figure = self.figure
        _, case, name, value, goal, _ = (part.strip() for part in figure.row().split("|"))
        goal = goal.removesuffix(", missed")
        what = f"{case}: {name}"
        return f"| {self.benchmark} | {what} | {value} | {goal} | {figure.distance} | {self.date[:10]} |"


def suite_goals(benchmark: str, raw: Mapping[str, Any]) -> Iterator[GoalFigure]:
    """Yield the figures with goals in the results of a suite."""
    for each in raw["figures"]:
        figure = Figure(**each)
        if figure.goal is not None:
            yield GoalFigure(benchmark, raw["date"], raw["loadAverage"], figure)


def send_goals(raw: Mapping[str, Any]) -> Iterator[GoalFigure]:
    """Yield the goals of `make bench`, from the window with the median rate of each case."""
    for goal in SEND_GOALS:
        for each in raw["measurements"]:
            case = each["case"]
            if (case["nodes"], case["body_bytes"], case["connections"], case["in_flight"]) != (
                3,
                1024,
                goal.connections,
                1,
            ):
                continue
            windows = sorted(each["windows"], key=lambda window: window["messages_per_second"])
            window = windows[len(windows) // 2]
            name = f"1 KiB {goal.connections}x1, three replicas"
            figures = [
                Figure(name, "CPU of the leader", window["leader_us"], "us/message", goal.leader_us),
                Figure(name, "CPU of a follower", max(window["follower_us"]), "us/message", goal.follower_us),
            ]
            if goal.p50_ms is not None:
                figures.insert(0, Figure(name, "p50", window["p50_ms"], "ms", goal.p50_ms))
            for figure in figures:
                yield GoalFigure("produce", raw["date"], each["load_average"], figure)


def low_rate_goals(raw: Mapping[str, Any]) -> Iterator[GoalFigure]:
    """Yield the goals of `make bench-low-rate`."""
    samples = {
        name: [LowRateSample(**sample) for sample in peer_samples]
        for name, peer_samples in raw["measured"].items()
        if all("seconds" in sample for sample in peer_samples)
    }
    load = max((sample.load_average for peer_samples in samples.values() for sample in peer_samples), default=0.0)
    for figure in goals(samples):
        yield GoalFigure("low-rate", raw["date"], load, figure)


def newest(benchmark: str, directory: Path = RESULTS) -> Mapping[str, Any] | None:
    """Read the raw results of the last run of a benchmark; None without any."""
    paths = sorted(directory.glob(f"{benchmark}-2*.json"))
    return json.loads(paths[-1].read_text()) if paths else None


def collect(directory: Path = RESULTS) -> list[GoalFigure]:
    """Return all goals that were measured."""
    figures = list[GoalFigure]()
    if (raw := newest("produce", directory)) is not None:
        figures += send_goals(raw)
    if (raw := newest("low-rate", directory)) is not None:
        figures += low_rate_goals(raw)
    if (raw := newest("peers-consuming", directory)) is not None:
        samples = consuming_goals.samples_of(raw)
        for figure in consuming_goals.goals(samples):
            figures.append(GoalFigure("peers-consuming", raw["date"], consuming_goals.load_of(samples), figure))
    for benchmark in SUITES:
        if (raw := newest(benchmark, directory)) is not None:
            figures += suite_goals(benchmark, raw)
    return figures


BUSY: Final = 2.0
"""The load average from which on times and rates say more about the machine than about the brokers."""


def section(figures: Sequence[GoalFigure]) -> str:
    """Write the section of the page: the number of goals, a table of the missed ones, and one of the met ones."""
    rest = [each for each in figures if not each.figure.is_met]
    hits = [each for each in figures if each.figure.is_met]
    busy = sorted({each.benchmark for each in figures if each.load_average >= BUSY})
    lines = [
        f"Of {len(figures)} goals, {len(hits)} are met and {len(rest)} are missed in the last run of each benchmark."
    ]
    if busy:
        lines.append(
            f"The machine was busy with other work (load average {BUSY:g} or more) in those of {', '.join(busy)}: "
            "their times and rates are worse than the brokers."
        )
    lines += ["", "Missed:", "", *_table(rest), "", "Met:", "", *_table(hits)]
    return "\n".join(lines)


def summary(figures: Sequence[GoalFigure], directory: Path = RESULTS) -> str:
    """Summarize the newest results: sends, other systems, and the number of goals that each benchmark meets."""
    lines = list[str]()
    if (sends := newest("produce", directory)) is not None:
        lines += ["### Sending", "", *send_lines(sends), ""]
    lines += ["### Beside other systems", ""]
    lines += [*beside_others(newest("peers", directory), newest("peers-consuming", directory)), ""]
    count = sum(each.figure.is_met for each in figures)
    lines += [
        "### Goals",
        "",
        f"{count} of {len(figures)} goals are met ([all of them](benchmarks/goals.md)).",
        "",
    ]
    lines += by_benchmark((each.benchmark, each.date, each.figure.is_met, _in_short(each)) for each in figures)
    return "\n".join(lines)


def _in_short(goal: GoalFigure) -> str:
    return f"{goal.figure.case}: {goal.figure.name} ({goal.figure.distance.removeprefix('missed: ')})"


def _table(figures: Iterable[GoalFigure]) -> list[str]:
    head = ["| benchmark | figure | measured | goal | by how much | date |", "|---|---|---:|---|---|---|"]
    return head + [each.row() for each in figures]


def main() -> None:
    """Write docs/benchmarks/goals.md, and the tables of docs/performance.md."""
    parser = argparse.ArgumentParser(
        prog="make bench-goals", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.parse_args(sys.argv[1:])
    figures = collect()
    page = page_of("goals")
    page.write_text(replace_section(page.read_text(), section(figures), BEGIN, END))
    page = ROOT / "docs" / "performance.md"
    page.write_text(replace_section(page.read_text(), summary(figures), BEGIN, END))
    for each in figures:
        if not each.figure.is_met:
            print(f"{each.benchmark}: {each.figure}, {each.figure.distance}")
    count = sum(each.figure.is_met for each in figures)
    print(f"{count} of {len(figures)} goals are met; wrote docs/benchmarks/goals.md")


if __name__ == "__main__":
    main()
