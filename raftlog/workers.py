"""Worker threads for reads that wait for the disk, so that the event loop does not."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import NoReturn, cast

import trio

from raftlog.net.machine import this_machine
from raftlog.net.reactor import Mailbox, Reactor
from raftlog.replica import Job


class BackgroundJobs:
    """Runs jobs in a worker thread, one after the other, and their completions on the event loop.

    Args:
        wake: requests a turn of the event loop, after each completion.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # A replica reads once at a time for each peer, so there are few of them.
        self._send, self._receive = trio.open_memory_channel[Job](math.inf)

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._send.send_nowait(job)

    async def run(self) -> None:
        """Work until cancelled. Raises the exceptions of completions."""
        async for job in self._receive:
            end = await this_machine().in_thread(job)
            end()
            self._wake()


class Workers:
    """Threads that run jobs, many a second; completions are called in a turn of the event loop.

    A job reaches its thread, and its completion the event loop, in a few microseconds, without a turn of trio in
    between.

    Args:
        count: of threads, and so of concurrent jobs. The caller limits how many wait.

    On a machine without threads, a job runs when it is queued.
    """

    def __init__(self, reactor: Reactor, count: int) -> None:
        assert count >= 1, f"{count} threads"
        self._ends = Mailbox(reactor, lambda end: cast("Callable[[], None]", end)())
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._is_closed = False
        self._end_lock = threading.Lock()
        """Held while a completion is handed over: the mailbox has a descriptor, whose number is used again later."""
        self._runs_at_once = not this_machine().has_threads
        names = [] if self._runs_at_once else [f"reader-{number}" for number in range(count)]
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    def put(self, job: Job) -> None:
        """Queue a job."""
        if self._runs_at_once:
            self._do(job)
        else:
            self._jobs.put(job)

    def close(self, *, waits: bool = True) -> None:
        """End the threads after their current jobs; no completion is called afterwards.

        ``waits`` for the current jobs, and so for the disk. Without it, they end with the process at the latest.
        """
        with suppress(Empty):
            while True:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads if waits else ():
            thread.join()
        with self._end_lock:
            self._is_closed = True
            self._ends.close()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)

    def _do(self, job: Job) -> None:
        try:
            end = job()
        except Exception as error:
            end = partial(_raise, error)  # a bug: it ends the process like one on the event loop
        with self._end_lock:
            if not self._is_closed:
                self._ends.put(end)


def _raise(error: Exception) -> NoReturn:
    raise error
