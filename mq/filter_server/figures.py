"""Counts what a filter server does, by consumer group."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from mq.monitoring.families import Families, Family, Histogram, Kind
from mq.monitoring.process import process_families

GROUPS_MAX: Final = 1_000
OTHERS: Final = "(others)"
"""Groups above `GROUPS_MAX` count together."""


@dataclass(slots=True)
class GroupFigures:
    """Statistics of one group since the process started."""

    examined: int = 0
    passed: int = 0
    failed: int = 0
    passed_bytes: int = 0
    seconds: float = 0.0
    throttled_seconds: float = 0.0


class FilterCounters:
    """The counters of a filter server.

    Attributes:
        connections, pulls: open connections, and pulls that are being served.
        programs: filter programs in memory.
    """

    def __init__(self) -> None:
        self.groups: dict[str, GroupFigures] = {}
        self.connections = 0
        self.pulls = 0
        self.programs = 0

    def count_filtered(self, group: str, *, examined: int, passed: int, failed: int, seconds: float) -> None:
        """Count messages that a filter examined, and the processor seconds it took."""
        figures = self._get(group)
        figures.examined += examined
        figures.passed += passed
        figures.failed += failed
        figures.seconds += seconds

    def add_passed(self, group: str, nbytes: int) -> None:
        """Count bytes of messages that were passed on."""
        self._get(group).passed_bytes += nbytes

    def count_throttled(self, group: str, seconds: float) -> None:
        """Add the seconds for which a filter had to wait, because its group had used too much processor time."""
        self._get(group).throttled_seconds += seconds

    def _get(self, group: str) -> GroupFigures:
        if group not in self.groups and len(self.groups) >= GROUPS_MAX:
            group = OTHERS
        return self.groups.setdefault(group, GroupFigures())


_BY_GROUP: Final = (
    ("messages_in", "examined", "Messages that filters looked at."),
    ("messages_out", "passed", "Messages that were passed on to consumers."),
    ("errors", "failed", "Messages for which the filter failed; they are passed on or skipped as the group wants."),
    ("bytes_out", "passed_bytes", "Bytes of messages that were passed on."),
    ("cpu_seconds", "seconds", "Time of a processor that filters took."),
    ("throttled_seconds", "throttled_seconds", "Time that filters waited because their group had used too much."),
)


def collect(figures: FilterCounters) -> Generator[None, None, Families]:
    """Collect all metrics of a filter server; see `mq.monitoring.families.Collect`."""
    families: list[Family | Histogram] = [*process_families({})]
    yield
    for name, text, value in (
        ("connections", "Open connections of consumers.", figures.connections),
        ("pulls", "Pulls that are being served.", figures.pulls),
        ("programs", "Filter programs in memory.", figures.programs),
    ):
        families.append(Family(f"raftmq_filter_{name}", Kind.GAUGE, text, (), [((), value)]))
    for name, attribute, text in _BY_GROUP:
        rows = [((group,), getattr(each, attribute)) for group, each in sorted(figures.groups.items())]
        families.append(Family(f"raftmq_filter_{name}", Kind.COUNTER, text, ("group",), rows))
    return families
