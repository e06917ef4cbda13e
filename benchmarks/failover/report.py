"""Writes measured failovers as a page of the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Events:
    """The unavailability during each repetition of an event. Goals are in seconds; None: no goal."""

    name: str
    p50_goal: float | None
    max_goal: float | None
    load_average: float
    gaps: list[float] = field(default_factory=list)
    sends: int = 0
    """All that were sent from the start of the first run to the end of the last one."""
    failed_sends: int = 0
    recoveries: list[float] = field(default_factory=list)
    """Seconds from each healing until all replicas had caught up; empty where there was no fault."""

    @property
    def p50(self) -> float:
        """The median unavailability in seconds."""
        return statistics.median(self.gaps)

    @property
    def maximum(self) -> float:
        """The longest unavailability in seconds."""
        return max(self.gaps)

    @property
    def is_met(self) -> bool:
        """Whether the median and the maximum are within their goals."""
        p50_met = self.p50_goal is None or self.p50 < self.p50_goal
        return p50_met and (self.max_goal is None or self.maximum < self.max_goal)


def markdown(all_events: Sequence[Events], *, command: str, machine: str, date: str) -> str:
    """Write the page about all events."""
    lines = [
        "# Failover, measured",
        "",
        f"Written by `{command}` on {date}.",
        f"Machine: {machine}; two name servers, three brokers and the producer share it.",
        "",
        "Our producer, with default settings, sends a message of 100 bytes every 5 ms. Unavailability is the longest",
        "time between two acknowledgements around an event, as the producer sees it, including detection, election,",
        "the name server's new route and its discovery by the client. A failed send is one that the producer reported",
        "as failed or unknown after its timeout of 10 s. A replica has caught up when it is at most 20 entries",
        "behind its leader; the time until all have caught up counts from the end of the fault.",
        "",
        "A server that was cut off cannot refuse requests. After 1 s without an answer, clients ask the name servers",
        "four times a second whether another replica leads.",
        "",
        "| event | tries | p50 | max | goal p50 / max | met | sends | failed | caught up, max | load |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|---:|",
        *(_row(each) for each in all_events),
        "",
        "All tries in order, in seconds:",
        "",
        *(f"- {each.name}: {', '.join(f'{gap:.2f}' for gap in each.gaps)}" for each in all_events),
        "",
    ]
    return "\n".join(lines)


def _row(each: Events) -> str:
    goal = f"{_seconds(each.p50_goal)} / {_seconds(each.max_goal)}"
    return (
        f"| {each.name} | {len(each.gaps)} | {_seconds(each.p50)} | {_seconds(each.maximum)} | {goal} "
        f"| {'yes' if each.is_met else 'no'} | {each.sends:,} | {each.failed_sends} "
        f"| {_seconds(max(each.recoveries, default=None))} | {each.load_average:.1f} |"
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"
