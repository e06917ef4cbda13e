"""Reads that wait for the disk, carried out beside the event loop, so that nothing else waits for them."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from raftlog.replica import Job


class Background:
    """Carries out jobs in a worker thread, one after the other, and their ends on the event loop.

    Args:
        wake: asks for a turn of the event loop, after each end.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # A replica reads once at a time for each peer, so there are few of them.
        self._send, self._receive = trio.open_memory_channel[Job](math.inf)

    def put(self, job: Job) -> None:
        """Take a job."""
        self._send.send_nowait(job)

    async def run(self) -> None:
        """Work until cancelled. Raises whatever an end raises."""
        async for job in self._receive:
            end = await trio.to_thread.run_sync(job)
            end()
            self._wake()
