"""Limits the processor time that the filters of one consumer group use. Pure."""

from __future__ import annotations

from typing import Final

_BURST_SECONDS: Final = 1.0


class GroupBudget:
    """The processor time of one group: `share` processors on average, of which a second can be saved up."""

    def __init__(self, share: float, now: float) -> None:
        self._share = share
        self._seconds = share * _BURST_SECONDS
        self._at = now

    def spend(self, seconds: float, now: float) -> None:
        """Charge `seconds` of processor time to the group."""
        self._seconds = min(self._seconds + (now - self._at) * self._share, self._share * _BURST_SECONDS) - seconds
        self._at = now

    def wait_seconds(self, now: float) -> float:
        """Return for how many seconds the group's filters must not run; 0 if they may."""
        self.spend(0.0, now)
        return max(0.0, -self._seconds / self._share)
