"""Lets other threads, including those that do not hold the interpreter's lock, call into the reactor's thread."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from raftlog.net.reactor import EPOLLIN, Reactor


class ThreadSignal:
    """Calls ``handle(events)`` in the reactor's thread after an addition to ``fd``: once for all since the last call.

    Attributes:
        fd: an eventfd. Any thread adds 1 to it.
    """

    def __init__(self, reactor: Reactor, handle: Callable[[int], None]) -> None:
        self._reactor = reactor
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Edge-triggered: each addition is an event, and the sum need not be read. It overflows after 2**64.
        reactor.add(self.fd, handle, EPOLLIN | select.EPOLLET)

    def close(self) -> None:
        """Stop handling; no thread may use ``fd`` afterwards."""
        self._reactor.remove(self.fd)
        os.close(self.fd)
