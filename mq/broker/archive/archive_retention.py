"""The retention of archived messages in a group: the longest time and the largest size in any replica's settings.

A replica alone must not delete messages that the others are to keep. Each tells the leader its settings from time to
time; the leader answers with the limits of the group, once every member has told its own. Without such an answer,
nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from mq.broker.settings import BrokerSettings

NOT_SET: Final = 0
_SECONDS_OF_AN_HOUR: Final = 3600


class KeptLimits(NamedTuple):
    """Archived messages expire once older than ``seconds``, or beyond the newest ``nbytes``; NOT_SET: no limit."""

    seconds: int
    nbytes: int

    @staticmethod
    def from_settings(settings: BrokerSettings) -> KeptLimits:
        """Return the limits in a replica's settings."""
        hours = settings.archive_retention_hours
        seconds = NOT_SET if hours is None else max(1, round(hours * _SECONDS_OF_AN_HOUR))
        return KeptLimits(seconds, settings.archive_retention_bytes or NOT_SET)


class SharedLimits:
    """Shares retention limits: members report theirs to the leader, and its response has the limits of the group."""

    def __init__(self, valid_seconds: float) -> None:
        self._valid_seconds = valid_seconds
        self._limits: dict[str, tuple[KeptLimits, float]] = {}
        self._of_leader: tuple[KeptLimits, float] | None = None

    def set_member(self, node_id: str, limits: KeptLimits, now: float) -> None:
        """Store the limits that a member has reported to this leader."""
        self._limits[node_id] = limits, now

    def set(self, limits: KeptLimits, now: float) -> None:
        """Store the limits of the group from a response of the leader, received at ``now``."""
        assert min(limits) >= NOT_SET, f"archived messages would be deleted after {limits}"
        self._of_leader = limits, now

    def silent(self, members: Collection[str], now: float) -> list[str]:
        """Return the members that have not reported their limits to this leader recently."""
        return sorted(
            each for each in members if each not in self._limits or now > self._limits[each][1] + self._valid_seconds
        )

    def group_limits(self, members: Collection[str], now: float) -> KeptLimits | None:
        """Return the limits of the group from the members' reports; None if the reports of some are missing or old."""
        if not members or self.silent(members, now):
            return None
        limits = [self._limits[each][0] for each in members]
        seconds = [each.seconds for each in limits]
        nbytes = [each.nbytes for each in limits]
        return KeptLimits(
            NOT_SET if NOT_SET in seconds else max(seconds), NOT_SET if NOT_SET in nbytes else max(nbytes)
        )

    def leader_limits(self, now: float) -> KeptLimits | None:
        """Return the limits of the group from the leader's last response; None if that is old."""
        if self._of_leader is None or now > self._of_leader[1] + self._valid_seconds:
            return None
        return self._of_leader[0]
