"""Decides whether the reactor briefly waits for the next event itself, to save a trip through trio. Pure."""

from __future__ import annotations

from typing import Final

LINGER_SECONDS: Final = 0.003
_WORTH: Final = 0.75
_MEMORY: Final = 1 / 8
"""Weight of the newest wait in the share of waits that would have paid."""


class Lingering:
    """Estimates from recent waits whether the next event comes within `LINGER_SECONDS`.

    If it does, waiting for it in the reactor's own epoll set saves a trip through trio's loop. If it does not, the wait
    is a wake-up for nothing. What is in flight (a sync, an answer of a peer) comes soon; a client's next request may
    come at any time. So both kinds of waits are learned separately, also without lingering.
    """

    def __init__(self) -> None:
        self._shares = [1.0, 1.0]
        self._in_flight = False
        self._since = float("-inf")

    def is_worthwhile(self, came_at: float, now: float, *, in_flight: bool) -> bool:
        """Whether to linger from ``now``, after the events that came at ``came_at`` were handled.

        ``in_flight``: whether something is in flight that ends in an event.
        """
        shares = self._shares
        has_paid = came_at - self._since < LINGER_SECONDS
        shares[self._in_flight] += (has_paid - shares[self._in_flight]) * _MEMORY
        self._in_flight, self._since = in_flight, now
        return shares[in_flight] >= _WORTH
