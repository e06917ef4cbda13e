"""Writes a run as a section of docs/benchmarks/low-rate.md. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.suites.figures import Figure

BEGIN = "<!-- measured by `make bench-low-rate`: begin -->"
END = "<!-- measured by `make bench-low-rate`: end -->"

LOOPBACK_MS = 0.03
"""The part of the goal for one round trip more than the floor, which replication needs."""
IDLE_PERCENT_MAX = 0.5
IDLE_WAKE_UPS_MAX = 20.0
CPU_RATE = 50
CPU_MS_MAX = 0.5


@dataclass(frozen=True, slots=True)
class LowRateSample:
    """The figures of a system during ``seconds`` with ``rate`` messages a second; 0: it was idle. Servers are in the
    order of their processes.

    ``acknowledged`` messages in these seconds: fewer than were due if the machine was too busy for this rate. CPU of
    the servers and of the client in cores, and their wake-ups a second. Times in ms from when a message was due; 0
    while idle.
    """

    rate: float
    seconds: float
    acknowledged: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    server_cores: tuple[float, ...]
    server_wake_ups: tuple[float, ...]
    client_cores: float
    client_wake_ups: float
    load_average: float

    def ms_per_message(self, cores: float) -> float:
        """Return a process's CPU in ms per acknowledged message; infinite if none was acknowledged."""
        return 1e3 * cores * self.seconds / self.acknowledged if self.acknowledged else float("inf")


LOAD_BUSY = 2.0
BUSY = (
    "**The machine was busy with other work**, so that single rows are far too high, also those of the floor. Compare "
    "CPU per message and wake-ups."
)

Samples = Mapping[str, Sequence[LowRateSample]]
"""The samples of each system, by its name."""


def section(
    about: Mapping[str, str], samples: Samples, left_out: Mapping[str, str], *, command: str, machine: str, date: str
) -> str:
    """Write the section of the page: how the systems were measured, a table of all, and the goals."""
    loads = [sample.load_average for each in samples.values() for sample in each]
    longest = [
        f"Command: `{command}`. Date: {date}. Load average before each row: {min(loads):.1f} to {max(loads):.1f}.",
        f"Machine: {machine}; servers and clients share it.",
        *([BUSY] if statistics.median(loads) >= LOAD_BUSY else []),
        "",
        "| name | what it is |",
        "|---|---|",
        *(f"| {name} | {about[name]} |" for name in samples),
        "",
        "| name | msgs/s due | acknowledged | p50 / p90 / p99 ms | CPU of each server, ms/msg | client, ms/msg "
        "| wake-ups/s of each server | client |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(_row(name, sample) for name, each in samples.items() for sample in each if sample.rate),
        "",
        "| idle | CPU of each server, % of a core | client | wake-ups/s of each server | client |",
        "|---|---:|---:|---:|---:|",
        *(_idle_row(name, sample) for name, each in samples.items() for sample in each if not sample.rate),
        "",
        "| name | figure | measured | goal |",
        "|---|---|---:|---|",
        *(figure.row() for figure in goals(samples)),
    ]
    if left_out:
        longest += ["", "Left out on this machine: " + "; ".join(f"{name} ({why})" for name, why in left_out.items())]
    return "\n".join(longest)


def _row(name: str, sample: LowRateSample) -> str:
    servers = " / ".join(f"{sample.ms_per_message(each):.2f}" for each in sample.server_cores)
    wake_ups = " / ".join(f"{each:,.0f}" for each in sample.server_wake_ups)
    return (
        f"| {name} | {sample.rate:,.0f} | {sample.acknowledged / sample.seconds:,.0f} "
        f"| {sample.p50_ms:.2f} / {sample.p90_ms:.2f} / {sample.p99_ms:.2f} | {servers} "
        f"| {sample.ms_per_message(sample.client_cores):.2f} | {wake_ups} | {sample.client_wake_ups:,.0f} |"
    )


def _idle_row(name: str, sample: LowRateSample) -> str:
    servers = " / ".join(f"{100 * each:.2f}" for each in sample.server_cores)
    wake_ups = " / ".join(f"{each:.0f}" for each in sample.server_wake_ups)
    return f"| {name} | {servers} | {100 * sample.client_cores:.2f} | {wake_ups} | {sample.client_wake_ups:.0f} |"


def goals(samples: Samples, floor: str = "floor", own: str = "raftmq") -> list[Figure]:
    """Return each figure that has a goal and was measured."""
    figures = list[Figure]()
    ours = {sample.rate: sample for sample in samples.get(own, ())}
    floors = {sample.rate: sample for sample in samples.get(floor, ())}
    for rate in sorted(ours.keys() & floors.keys()):
        limit = 2 * floors[rate].p50_ms + LOOPBACK_MS
        goal = f"p50 at {rate:,.0f} msgs/s: at most twice the floor and a loopback hop"
        figures.append(Figure(own, goal, ours[rate].p50_ms, "ms", limit))
    if 500 in ours and 2000 in ours:
        goal = "p50 at 500 msgs/s: not above that at 2,000"
        figures.append(Figure(own, goal, ours[500].p50_ms, "ms", ours[2000].p50_ms))
    if CPU_RATE in ours:
        sample = ours[CPU_RATE]
        goal = f"CPU at {CPU_RATE} msgs/s per message, most of a replica or of the client"
        most = sample.ms_per_message(max(*sample.server_cores, sample.client_cores))
        figures.append(Figure(own, goal, most, "ms", CPU_MS_MAX))
    if 0 in ours:
        idle = ours[0]
        for name, cores, wake_ups in (
            ("an idle broker", max(idle.server_cores), max(idle.server_wake_ups)),
            ("an idle producer and consumer of our library", idle.client_cores, idle.client_wake_ups),
        ):
            figures.append(Figure(own, f"{name}: CPU", 100 * cores, "% of a core", IDLE_PERCENT_MAX))
            figures.append(Figure(own, f"{name}: wake-ups", wake_ups, "/s", IDLE_WAKE_UPS_MAX))
    return figures
