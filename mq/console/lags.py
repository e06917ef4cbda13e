"""Keeps the lag of each consumer group over the last hour. Pure: the time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from mq.client.message import MessageQueue
from mq.protocol.requests.group_progress import GroupProgress

EVERY_SECONDS: Final = 60.0
SECONDS: Final = 3600.0
GROUPS_MAX: Final = 10_000


class Lag(NamedTuple):
    """The number of messages that waited for a group at one time."""

    at: float
    message_count: int


class LagHistory:
    """Keeps the lag of each group: a point every `EVERY_SECONDS`, for `SECONDS`.

    A group in whose queues nothing waits costs nothing: a point is kept when it differs from the last one, and between
    two points the lag is as at the first one.
    """

    def __init__(self) -> None:
        self._points: dict[str, deque[Lag]] = {}
        self._times: deque[float] = deque(maxlen=int(SECONDS / EVERY_SECONDS))

    def add(self, progress: Mapping[str, Mapping[MessageQueue, GroupProgress]], now: float) -> None:
        """Add the present lags. Deletes the points of a group that no longer exists."""
        self._times.append(now)
        for group in self._points.keys() - progress.keys():
            del self._points[group]
        for group, queues in progress.items():
            waiting_count = sum(max(0, each.end - each.offset) for each in queues.values())
            points = self._points.get(group)
            if points is None:
                if len(self._points) < GROUPS_MAX:
                    self._points[group] = deque([Lag(now, waiting_count)])
                continue
            if points[-1].message_count != waiting_count:
                points.append(Lag(now, waiting_count))
            while len(points) > 1 and points[1].at <= now - SECONDS:
                points.popleft()

    def get(self, group: str, now: float) -> list[Lag]:
        """Return the lag of a group at each time of the last hour at which lags were added, the oldest first."""
        points = self._points.get(group)
        if points is None:
            return []
        lags = []
        points_after = iter([*points, Lag(float("inf"), 0)])
        current, after = None, next(points_after)
        for at in self._times:
            while after.at <= at:
                current, after = after, next(points_after)
            if current is not None and at >= now - SECONDS:
                lags.append(Lag(at, current.message_count))
        return lags
