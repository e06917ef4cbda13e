"""Limits the processor time that the filters of one consumer group use. Pure."""

from __future__ import annotations

from typing import Final

_BURST_SECONDS: Final = 1.0


class GroupBudget:
    """A group may use `share` processors on average, and save up a second of that."""

    def __init__(self, share: float, now: float) -> None:
        self._share = share
        self._remaining = share * _BURST_SECONDS
        self._at = now

    def spend(self, seconds: float, now: float) -> None:
        """Charge `seconds` of a processor to the group."""
        self._remaining = min(self._remaining + (now - self._at) * self._share, self._share * _BURST_SECONDS) - seconds
        self._at = now

    def wait_seconds(self, now: float) -> float:
        """Seconds for which the group's filters must not run; 0 if they may."""
        self.spend(0.0, now)
        return max(0.0, -self._remaining / self._share)
