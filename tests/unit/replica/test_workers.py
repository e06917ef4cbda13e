"""Threads that run jobs, and end with or without the job that they are at."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import trio

from raftlog import Reactor, Workers


async def test_job_that_ends_after_the_threads_were_closed_writes_nowhere(tmp_path: Path) -> None:
    """The number of the mailbox's descriptor belongs to another file by then."""
    reactor = Reactor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reactor.run)
        begun, go_on = threading.Event(), threading.Event()
        called: list[str] = []

        def job() -> object:
            begun.set()
            assert go_on.wait(20)
            return lambda: called.append("too late")

        known = set(threading.enumerate())
        workers = Workers(reactor, 1)
        (thread,) = set(threading.enumerate()) - known
        workers.put(job)  # type: ignore[arg-type]
        assert await trio.to_thread.run_sync(begun.wait, 20)
        before = set(os.listdir("/proc/self/fd"))
        workers.close(waits=False)
        freed = {int(each) for each in before} - {int(each) for each in os.listdir("/proc/self/fd")}
        files = [os.open(tmp_path / f"{number}", os.O_RDWR | os.O_CREAT) for number in range(8)]
        try:
            assert freed & set(files), f"{freed} were closed, {files} opened"
            go_on.set()
            await trio.to_thread.run_sync(thread.join, 20)
            assert not thread.is_alive()
            assert [os.fstat(each).st_size for each in files] == [0] * 8
        finally:
            for each in files:
                os.close(each)
        assert not called
        nursery.cancel_scope.cancel()
