"""Keeps the rates of broker groups over the last hour. Pure: the time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from mq.inspection.cluster import GroupStatus

EVERY_SECONDS: Final = 10.0
SECONDS: Final = 3600.0
ERROR_FIGURES: Final = ("raftmq.requestsRefused", "raftmq.requestsFailed")
GROUPS_MAX: Final = 100
"""Broker groups whose rates are kept."""


class Rates(NamedTuple):
    """The messages per second of a broker group; None while it has no leader or does not report them.

    ``errors`` are the requests per second that its replicas refused, or at which they failed.
    """

    at: float
    sent: float | None
    read: float | None
    errors: float | None = None


class History:
    """Keeps the rates of each broker group: a point every `EVERY_SECONDS`, for `SECONDS`."""

    def __init__(self) -> None:
        self._points: dict[str, deque[Rates]] = {}
        self._positions: dict[str, deque[tuple[float, int]]] = {}
        self._errors: dict[str, tuple[float, dict[str, int]]] = {}

    def add(self, groups: Sequence[GroupStatus], now: float) -> None:
        """Add the present rates. Deletes the points of a group that has not existed for an hour."""
        for group in groups[:GROUPS_MAX]:
            points = self._points.setdefault(group.group, deque(maxlen=int(SECONDS / EVERY_SECONDS)))
            points.append(Rates(now, *rates_of(group), self._error_rate(group, now)))
            leader = next((each for each in group.replicas if each.role == "leader"), None)
            if leader is not None and leader.commit_position is not None:
                positions = self._positions.setdefault(group.group, deque(maxlen=int(SECONDS / EVERY_SECONDS)))
                positions.append((now, leader.commit_position))
        for name in [name for name, points in self._points.items() if points[-1].at < now - SECONDS]:
            del self._points[name]
            self._positions.pop(name, None)
            self._errors.pop(name, None)

    def seconds_behind(self, group: str, position: int, now: float) -> float | None:
        """Return how many seconds ago the leader of a broker group had committed no more than ``position``.

        Returns None if that was before the first point. The result is a lower bound, from the growth of the log.
        """
        times = [at for at, commit_position in self._positions.get(group, ()) if commit_position <= position]
        return now - times[-1] if times else None

    def errors(self, group: str, now: float) -> float | None:
        """Return the errors per second between the last two points of a group; None if unknown."""
        points = self._points.get(group)
        return points[-1].errors if points and points[-1].at >= now - 3 * EVERY_SECONDS else None

    def _error_rate(self, group: GroupStatus, now: float) -> float | None:
        """Errors per second that replicas counted since the last look; a restarted replica counts from 0."""
        counts = {
            each.node_id: sum(int(each.figures[name]) for name in ERROR_FIGURES)
            for each in group.replicas
            if all(each.figures.get(name, "").isdecimal() for name in ERROR_FIGURES)
        }
        before = self._errors.get(group.group)
        self._errors[group.group] = now, counts
        if before is None or not counts or now <= before[0] or not counts.keys() & before[1].keys():
            return None
        increases = (count - before[1][node] for node, count in counts.items() if node in before[1])
        return sum(each for each in increases if each > 0) / (now - before[0])

    def get(self, group: str, now: float) -> list[Rates]:
        """Return a group's points of the last hour, the oldest first."""
        return [each for each in self._points.get(group, ()) if each.at >= now - SECONDS]


def rates_of(group: GroupStatus) -> tuple[float | None, float | None]:
    """Return the messages per second sent to and read from a group's leader, over the last 10 s, as it reports them."""
    leader = next((each for each in group.replicas if each.role == "leader"), None)
    if leader is None and group.is_stock:
        leader = next((each for each in group.replicas if each.broker_id == 0), None)
    figures: Mapping[str, str] = leader.figures if leader is not None else {}
    return _rate(figures.get("putTps")), _rate(figures.get("getTransferredTps") or figures.get("getTransferedTps"))


def _rate(text: str | None) -> float | None:
    """The first of RocketMQ's three rates, over 10 s."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return None
