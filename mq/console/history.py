"""The rates of broker groups in the last hour. Pure: the time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from mq.inspection.cluster import GroupStatus

EVERY_SECONDS: Final = 10.0
SECONDS: Final = 3600.0
GROUPS_MAX: Final = 100
"""Broker groups whose rates are kept."""


class Rates(NamedTuple):
    """Messages per second of a broker group; None while it has no leader, or does not say."""

    at: float
    sent: float | None
    read: float | None


class History:
    """The rates of each broker group, a point every `EVERY_SECONDS`, for `SECONDS`."""

    def __init__(self) -> None:
        self._points: dict[str, deque[Rates]] = {}
        self._positions: dict[str, deque[tuple[float, int]]] = {}

    def add(self, groups: Sequence[GroupStatus], now: float) -> None:
        """Note the rates of now. A group that is not there any more is forgotten after an hour."""
        for group in groups[:GROUPS_MAX]:
            points = self._points.setdefault(group.group, deque(maxlen=int(SECONDS / EVERY_SECONDS)))
            points.append(Rates(now, *rates_of(group)))
            leader = next((each for each in group.replicas if each.role == "leader"), None)
            if leader is not None and leader.commit_position is not None:
                positions = self._positions.setdefault(group.group, deque(maxlen=int(SECONDS / EVERY_SECONDS)))
                positions.append((now, leader.commit_position))
        for name in [name for name, points in self._points.items() if points[-1].at < now - SECONDS]:
            del self._points[name]
            self._positions.pop(name, None)

    def seconds_behind(self, group: str, position: int, now: float) -> float | None:
        """How long ago the leader of a broker group had committed no more than ``position``.

        None if that was before the first look; at least by what the log has grown since then.
        """
        times = [at for at, committed in self._positions.get(group, ()) if committed <= position]
        return now - times[-1] if times else None

    def of(self, group: str, now: float) -> list[Rates]:
        """The points of the last hour, the oldest first."""
        return [each for each in self._points.get(group, ()) if each.at >= now - SECONDS]


def rates_of(group: GroupStatus) -> tuple[float | None, float | None]:
    """What the leader of a group says of the last 10 s: messages sent to it, and read from it, per second."""
    leader = next((each for each in group.replicas if each.role == "leader"), None)
    if leader is None and group.is_stock:
        leader = next((each for each in group.replicas if each.broker_id == 0), None)
    figures: Mapping[str, str] = leader.figures if leader is not None else {}
    return _first(figures.get("putTps")), _first(figures.get("getTransferredTps") or figures.get("getTransferedTps"))


def _first(text: str | None) -> float | None:
    """The first of RocketMQ's three rates, over 10 s."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return None
