"""Worker threads: they end with or without the job that they are at, and short jobs of one turn share one."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import trio

from raftlog import Reactor, Workers
from raftlog.net.machine import Machine


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


async def test_jobs_of_one_turn_share_one_thread_run() -> None:
    machine, threads, found = Machine(), list[tuple[int, int]](), dict[int, int]()
    runs = 0

    def job(number: int) -> int:
        threads.append((number, runs))
        assert threading.current_thread() is not threading.main_thread()
        return 10 * number

    async def ask(number: int) -> None:
        found[number] = await machine.in_thread_together(lambda: job(number))

    limiter = trio.to_thread.current_default_thread_limiter()
    for runs in range(2):
        most = 0
        async with trio.open_nursery() as nursery:
            for number in (1, 2, 3):
                nursery.start_soon(ask, number)
            while len(threads) < 3 * (runs + 1):
                most = max(most, int(limiter.borrowed_tokens))
                await trio.lowlevel.checkpoint()
        assert most <= 1
        assert sorted(threads[3 * runs :]) == [(1, runs), (2, runs), (3, runs)]
    assert found == {1: 10, 2: 20, 3: 30}


async def test_error_of_one_job_is_raised_only_by_its_caller() -> None:
    machine, found = Machine(), list[object]()

    def fail() -> int:
        raise OSError("the disk is gone")

    async def ask(fails: bool) -> None:
        try:
            found.append(await machine.in_thread_together(fail if fails else lambda: 7))
        except OSError as error:
            found.append(str(error))

    async with trio.open_nursery() as nursery:
        for fails in (True, False, True):
            nursery.start_soon(ask, fails)
    assert sorted(map(str, found)) == ["7", "the disk is gone", "the disk is gone"]


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_cancelling_one_caller_spares_the_others(cancelled: int) -> None:
    machine, found = Machine(), list[int]()
    scopes = [trio.CancelScope(), trio.CancelScope()]

    async def ask(number: int) -> None:
        with scopes[number]:
            found.append(await machine.in_thread_together(lambda: number))
            await trio.lowlevel.checkpoint()
            found.append(10 + number)

    async with trio.open_nursery() as nursery:
        for number in (0, 1):
            nursery.start_soon(ask, number)
        scopes[cancelled].cancel()
    other = 1 - cancelled
    assert {other, 10 + other} <= set(found)
    assert 10 + cancelled not in found
    assert await machine.in_thread_together(lambda: 5) == 5


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
async def test_callers_get_the_error_of_a_failed_thread_start(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_room(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise error("can't start new thread")

    monkeypatch.setattr("trio.to_thread.run_sync", no_room)
    machine, told = Machine(), list[str]()

    async def ask() -> None:
        with pytest.raises(error) as refused:
            await machine.in_thread_together(lambda: 1)
        told.append(str(refused.value))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(ask)
    assert told == ["can't start new thread"] * 2
