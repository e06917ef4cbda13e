"""Writes measurements into the marked sections of the pages of docs/benchmarks, and to benchmarks/results."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks import procfs
from benchmarks.cases import Measurement

OutcomeT = TypeVar("OutcomeT")

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "benchmarks"
"""A page for each benchmark; docs/performance.md sums them up."""
BEGIN = "<!-- measured by `make bench`: begin -->"
END = "<!-- measured by `make bench`: end -->"


def markdown(
    measurements: Sequence[Measurement], *, command: str, machine: str, date: str, ceilings: Mapping[str, float]
) -> str:
    """Write the section of the page: how cases were measured, and a table for each number of nodes."""
    loads = [measurement.load_average for measurement in measurements]
    lines = [
        f"Command: `{command}`. Date: {date}. Load average before each case: {min(loads):.1f} to {max(loads):.1f}.",
        f"Machine: {machine}; servers and load generator share it.",
        f"Each line is the median of {len(measurements[0].windows)} windows, after a warm-up.",
        "",
    ]
    for nodes in sorted({measurement.case.nodes for measurement in measurements}):
        group = [measurement for measurement in measurements if measurement.case.nodes == nodes]
        heading = "One replica" if nodes == 1 else f"{nodes} replicas"
        lines += [
            f"## {heading}, {group[0].durability}",
            "",
            "| load | msgs/s | p50 / p99 ms | leader us/msg | followers us/msg | RSS MiB | generator us/msg, core |",
            "|---|---:|---:|---:|---:|---:|---:|",
            *(_row(measurement) for measurement in group),
            "",
        ]
    lines += [
        "CPU is user and system time of the process (`/proc/PID/stat`) during the window, divided by the messages",
        "acknowledged in it. The last column is the load generator's own CPU: per message, and the share of one core",
        "that its busiest process used. Against a server that answers at once without doing any work, it",
        "reached " + ", ".join(f"{rate:,.0f} msgs/s at {load}" for load, rate in ceilings.items()) + ".",
    ]
    return "\n".join(lines)


def _row(measurement: Measurement) -> str:
    window = measurement.median
    followers = " + ".join(f"{us:.1f}" for us in window.follower_us) or "-"
    rss = " / ".join(f"{mib:.0f}" for mib in measurement.rss_mib)
    return (
        f"| {measurement.case.load} | {window.messages_per_second:,.0f} | {window.p50_ms:.2f} / {window.p99_ms:.2f} "
        f"| {window.leader_us:.1f} | {followers} | {rss} "
        f"| {window.generator_us:.1f}, {100 * window.generator_cores_max:.0f} % |"
    )


def replace_section(text: str, section: str, begin: str = BEGIN, end: str = END) -> str:
    """Replace everything between the two marks in ``text``. Raises ValueError if a mark is missing."""
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"no section between {begin!r} and {end!r}")
    return f"{before}{begin}\n\n{section}\n\n{end}{after}"


def page_of(benchmark: str) -> Path:
    """Return the path of the page of a case of ``python -m benchmarks``."""
    return PAGES / f"{benchmark}.md"


class RunRecord:
    """Records one run of ``make bench-NAME`` in its results and on its page.

    Args:
        root: the directory with docs and benchmarks.

    Attributes:
        command: how it was started.
        date: when it ended.
        machine: where it ran.
    """

    def __init__(self, name: str, command: str = "", root: Path = ROOT) -> None:
        self._name, self._end_time, self._root = name, datetime.now(UTC), root
        words = " ".join(sys.argv[1:])
        self.command = (command or f"make bench-{name}") + (f' ARGS="{words}"' if words else "")
        self.date = f"{self._end_time:%Y-%m-%d %H:%M} UTC"
        self.machine = procfs.machine()

    @property
    def about(self) -> dict[str, str]:
        """The command, the machine and the date of the run, for a section."""
        return {"command": self.command, "machine": self.machine, "date": self.date}

    def keep(self, **figures: object) -> None:
        """Write raw figures to benchmarks/results, and remove those of earlier runs, which git's history keeps."""
        directory = self._root / "benchmarks" / "results"
        for earlier in directory.glob(f"{self._name}-2*.json"):
            earlier.unlink()
        path = directory / f"{self._name}-{self._end_time:%Y%m%dT%H%M%SZ}.json"
        path.write_text(json.dumps({**self.about, **figures}, indent=1) + "\n")
        print(f"wrote {path.relative_to(self._root)}")

    def publish(self, section: str, marks: tuple[str, str] = (BEGIN, END), page: str = "") -> None:
        """Replace the part of the benchmark's page between two marks."""
        path = self._root / page_of(page or self._name).relative_to(ROOT)
        path.write_text(replace_section(path.read_text(), section, *marks))
        print(f"wrote {path.relative_to(self._root)}")


def earlier_run(results: Path, kind: type[OutcomeT]) -> OutcomeT:
    """Read the results of a run from benchmarks/results. Raises OSError; ValueError for those of another benchmark."""
    try:
        outcome = msgspec.json.decode(results.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{results} has results of another benchmark: {error}") from error
    if outcome == kind():
        raise ValueError(f"{results} has results of another benchmark")
    return outcome
