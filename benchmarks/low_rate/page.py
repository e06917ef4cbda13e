"""A run as a section of docs/performance.md: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BEGIN = "<!-- measured by `make bench-low-rate`: begin -->"
END = "<!-- measured by `make bench-low-rate`: end -->"

LOOPBACK_MS = 0.03
"""Of the goal: one round trip more than the floor, which replication needs."""
IDLE_PERCENT_MAX = 0.5
IDLE_WAKE_UPS_MAX = 20.0
CPU_RATE = 50
CPU_MS_MAX = 0.5


@dataclass(frozen=True, slots=True)
class LowRateSample:
    """What a system did in ``seconds`` with ``rate`` messages due a second; 0: it was idle. Servers in the order of
    their processes.

    ``acknowledged`` messages in these seconds: fewer than were due if the machine was too busy for this rate. CPU of
    the servers and of the client in cores, and how often a second they woke up. Times in ms from when a message was
    due; 0 while idle.
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
        """CPU of a process in ms per acknowledged message; infinite if none was acknowledged."""
        return 1e3 * cores * self.seconds / self.acknowledged if self.acknowledged else float("inf")


Samples = Mapping[str, Sequence[LowRateSample]]
"""By the name of a system."""


def section(
    about: Mapping[str, str], samples: Samples, left_out: Mapping[str, str], *, command: str, machine: str, date: str
) -> str:
    """How it was measured, a table of all, and the goals."""
    loads = [sample.load_average for each in samples.values() for sample in each]
    longest = [
        f"Command: `{command}`. Date: {date}. Load average before each row: {min(loads):.1f} to {max(loads):.1f}.",
        f"Machine: {machine}; servers and clients share it.",
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
        "| goal | measured |",
        "|---|---|",
        *(f"| {goal} | {found}, {'met' if is_met else 'missed'} |" for goal, found, is_met in goals(samples)),
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


def goals(samples: Samples, floor: str = "floor", own: str = "raftmq") -> list[tuple[str, str, bool]]:
    """Each goal whose figures there are: in words, what was measured, and whether it is met."""
    found = list[tuple[str, str, bool]]()
    ours = {sample.rate: sample for sample in samples.get(own, ())}
    floors = {sample.rate: sample for sample in samples.get(floor, ())}
    for rate in sorted(ours.keys() & floors.keys()):
        limit = 2 * floors[rate].p50_ms + LOOPBACK_MS
        goal = f"p50 at {rate:,.0f} msgs/s at most twice the floor and a loopback hop, {limit:.2f} ms"
        found.append((goal, f"{ours[rate].p50_ms:.2f} ms", ours[rate].p50_ms <= limit))
    if 500 in ours and 2000 in ours:
        low, high = ours[500].p50_ms, ours[2000].p50_ms
        found.append(("p50 at 500 msgs/s not above that at 2,000", f"{low:.2f} and {high:.2f} ms", low <= high))
    if CPU_RATE in ours:
        sample = ours[CPU_RATE]
        most = sample.ms_per_message(max(*sample.server_cores, sample.client_cores))
        goal = f"CPU at {CPU_RATE} msgs/s at most {CPU_MS_MAX} ms per message, of each replica and of the client"
        found.append((goal, f"{most:.2f} ms", most <= CPU_MS_MAX))
    if 0 in ours:
        idle = ours[0]
        most, wake_ups = 100 * max(idle.server_cores), max(idle.server_wake_ups)
        goal = f"an idle broker at most {IDLE_PERCENT_MAX} % of a core and {IDLE_WAKE_UPS_MAX:.0f} wake-ups/s"
        is_met = most <= IDLE_PERCENT_MAX and wake_ups <= IDLE_WAKE_UPS_MAX
        found.append((goal, f"{most:.2f} %, {wake_ups:.0f}/s", is_met))
        most, wake_ups = 100 * idle.client_cores, idle.client_wake_ups
        is_met = most <= IDLE_PERCENT_MAX and wake_ups <= IDLE_WAKE_UPS_MAX
        found.append(
            ("an idle producer and consumer of our library the same", f"{most:.2f} %, {wake_ups:.0f}/s", is_met)
        )
    return found
