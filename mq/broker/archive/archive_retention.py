"""The retention of archived messages in a group: the longest time and the largest size that any replica is set to.

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
    """Messages older than ``seconds`` expire, and the oldest ones above ``nbytes``; NOT_SET: no limit."""

    seconds: int
    nbytes: int

    @staticmethod
    def from_settings(settings: BrokerSettings) -> KeptLimits:
        """The limits of a replica."""
        hours = settings.archive_retention_hours
        seconds = NOT_SET if hours is None else max(1, round(hours * _SECONDS_OF_AN_HOUR))
        return KeptLimits(seconds, settings.archive_retention_bytes or NOT_SET)


class SharedLimits:
    """Exchanges retention limits: members report theirs to the leader, which answers with the group's."""

    def __init__(self, valid_seconds: float) -> None:
        self._valid_seconds = valid_seconds
        self._limits: dict[str, tuple[KeptLimits, float]] = {}
        self._of_leader: tuple[KeptLimits, float] | None = None

    def set_member(self, node_id: str, limits: KeptLimits, now: float) -> None:
        """Note the settings that a member reports to this replica, the leader."""
        self._limits[node_id] = limits, now

    def set(self, limits: KeptLimits, now: float) -> None:
        """Store the limits of the group, which the leader answered at the time ``now``."""
        assert min(limits) >= NOT_SET, f"archived messages would be deleted after {limits}"
        self._of_leader = limits, now

    def silent(self, members: Collection[str], now: float) -> list[str]:
        """The members whose limits this leader does not know, or has not received for long."""
        return sorted(
            each for each in members if each not in self._limits or now > self._limits[each][1] + self._valid_seconds
        )

    def group_limits(self, members: Collection[str], now: float) -> KeptLimits | None:
        """The limits of the group, from the reports to this leader; None if a member has not reported yet."""
        if not members or self.silent(members, now):
            return None
        limits = [self._limits[each][0] for each in members]
        seconds = [each.seconds for each in limits]
        nbytes = [each.nbytes for each in limits]
        return KeptLimits(
            NOT_SET if NOT_SET in seconds else max(seconds), NOT_SET if NOT_SET in nbytes else max(nbytes)
        )

    def leader_limits(self, now: float) -> KeptLimits | None:
        """The limits of the group in the leader's last answer; None without a recent answer."""
        if self._of_leader is None or now > self._of_leader[1] + self._valid_seconds:
            return None
        return self._of_leader[0]
