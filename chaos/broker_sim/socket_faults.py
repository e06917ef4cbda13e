"""Draws and counts the faults of simulated sockets in receives and sends.

As Linux does it with TCP sockets that do not block; `tests/unit/replica/test_socket_borders.py` shows it on real ones:

- A receive returns the bytes that are there, as far as they fit into the buffer. Where it ends has nothing to do with
  what the other side has sent in one piece. Readiness may be reported with nothing to receive (EAGAIN).
- A send takes what fits into the socket's buffer. If that was not all, the next one fails with EAGAIN, until the
  socket is reported as writable.
- If the peer has reset the connection, one call fails with ECONNRESET: a send, or a receive once everything that
  arrived before is read. Later sends fail with EPIPE, and receives return the end of the stream. Here, all later calls
  fail as the first one, since only the compiled form makes them; and unread bytes have not arrived.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from random import Random
from typing import Final

_SHARES: Final = (0.0, 0.02, 0.2)
"""Some sockets are sound, some suffer now and then, and some often."""
_FULL_SECONDS_MAX: Final = 0.05
_RESET_CHANCE: Final = 0.01
"""Per fault; an unlucky socket is reset after some thousand calls."""


class SocketFaults:
    """Draws the faults of one socket.

    The socket has randomness of its own: whatever order calls for different sockets are made in, a run is the same.

    Args:
        counts: the number of times that each fault happened, by name.
    """

    def __init__(self, rng: Random, counts: Counter[str]) -> None:
        self._rng = rng
        self._share = rng.choice(_SHARES)
        self._counts = counts
        self._is_full = False
        self._is_reset = False

    def receive_count(self, nbytes: int, *, calm: bool) -> int:
        """Return the number of ``nbytes`` that a receive gets. Raises BlockingIOError, ConnectionResetError."""
        self._check(calm)
        rng = self._rng
        if rng.random() >= self._share:
            return nbytes
        if rng.random() < 0.2:
            self._counts["receives of nothing"] += 1
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._counts["partial receives"] += 1
        return rng.randint(1, nbytes)

    def send_count(self, nbytes: int, *, calm: bool) -> int:
        """Return the number of ``nbytes`` that a send takes. Raises BlockingIOError, ConnectionResetError."""
        count = 0
        if not self._is_full:
            self._check(calm)
            if self._rng.random() >= self._share:
                return nbytes
            # From here on, another attempt draws nothing: only one of the forms makes it.
            self._is_full = True
            count = self._rng.randrange(nbytes)
            self._counts["partial sends"] += count > 0
        if count == 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return count

    def full_seconds(self) -> float:
        """Choose at random how many seconds the socket's buffer stays full."""
        return self._rng.uniform(0.0, _FULL_SECONDS_MAX)

    def on_writable(self) -> None:
        """Record that the socket's buffer has space again."""
        self._is_full = False

    def _check(self, calm: bool) -> None:
        if not self._is_reset and not calm and self._rng.random() < self._share * _RESET_CHANCE:
            self._is_reset = True
            self._counts["resets of connections"] += 1
        if self._is_reset:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
