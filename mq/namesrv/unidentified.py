"""Knows the connections that sent no complete request yet, and chooses one to close when there are too many.

A reconnect of thousands of clients at once, each with a TLS handshake, looks at first like thousands of connections
that only take up room. So time tells them apart: a connection has some seconds for its first request, however many
there are. If all places are taken, an address with few such connections gets one from the address with the most.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P", bound=Hashable)


class _Stranger(NamedTuple):
    address: str
    since: float


class UnidentifiedConnections(Generic[P]):
    """The connections that sent no complete request yet, the oldest first. Times are monotonic seconds.

    Args:
        count_max: if there are more such connections, the oldest ones whose time is over are closed.
        seconds_max: how long a connection may take for its first request.
    """

    def __init__(self, count_max: int, seconds_max: float) -> None:
        self._count_max = count_max
        self._seconds_max = seconds_max
        self._all: dict[P, _Stranger] = {}
        self._by_address: dict[str, dict[P, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, peer: P, address: str, now: float) -> None:
        """Add a new connection from `address`."""
        self._all[peer] = _Stranger(address, now)
        self._by_address.setdefault(address, {})[peer] = None

    def discard(self, peer: P) -> None:
        """Remove a connection that has sent a request or is closed."""
        stranger = self._all.pop(peer, None)
        if stranger is not None:
            peers = self._by_address[stranger.address]
            del peers[peer]
            if not peers:
                del self._by_address[stranger.address]

    def overdue(self, now: float) -> P | None:
        """Return the oldest connection if there are too many and its time is over; else None."""
        if len(self._all) <= self._count_max:
            return None
        peer, stranger = next(iter(self._all.items()))
        return peer if now >= stranger.since + self._seconds_max else None

    def in_favour_of(self, address: str) -> P | None:
        """Choose what to close for ``address``: the oldest of the address with far more than it; None if none has."""
        most = max(self._by_address.values(), key=len, default={})
        return next(iter(most)) if len(most) > 2 * len(self._by_address.get(address, ())) + 1 else None
