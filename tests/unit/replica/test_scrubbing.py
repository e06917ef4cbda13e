"""The task that looks for damage in a running node's log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
import structlog
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from raftlog.log_numbers import LogIndex
from raftlog.net.machine import Machine, standing_in
from raftlog.scrub_task import scrub_log
from raftlog.segment import StorageCorrupt
from tests.unit.segment.log_home import LogHome

T = TypeVar("T")

LOG: structlog.stdlib.BoundLogger = structlog.get_logger()


class WithoutThreads(Machine):
    """Reads at once: while a thread reads, a clock that jumps would pass all deadlines."""

    async def in_thread(self, job: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return job()


@pytest.fixture(autouse=True)
def without_threads() -> Iterator[None]:
    with standing_in(WithoutThreads()):
        yield


async def test_damage_ends_the_task_with_its_place(autojump_clock: MockClock) -> None:
    home = LogHome()
    log = home.open()
    home.put(log, *[b"x" * 52] * 100)
    began = trio.current_time()
    with trio.move_on_after(30 * 24 * 3600) as scope:
        await scrub_log(log, lambda: LogIndex(100), log=LOG)
    assert scope.cancelled_caught, "a healthy log ended it"
    assert (log.scrubs, log.scrubbed_bytes) == (5, 5 * (log.end_pos - log.base_pos)), "at the start and each week"
    home.disk.flip_bit(home.segment(4096), 560)
    with pytest.raises(StorageCorrupt) as caught:
        await scrub_log(log, lambda: LogIndex(100), log=LOG, first_round_seconds=5)
    assert caught.value.physical_offset == 4596
    assert trio.current_time() - began > 30 * 24 * 3600
    home.close_all()


async def test_rate_is_bounded(autojump_clock: MockClock) -> None:
    home = LogHome(segment_bytes=1 << 20)
    log = home.open()
    home.put(log, *[b"x" * 10_000] * 80)
    home.disk.flip_bit(home.segment(), log.locate(LogIndex(79)).pos + 60)
    began = trio.current_time()
    with pytest.raises(StorageCorrupt):
        await scrub_log(log, lambda: LogIndex(80), log=LOG, first_round_seconds=0, bytes_per_second=10_000)
    assert trio.current_time() - began > 50
    home.close_all()


async def test_first_round_starts_at_once_and_reports_bytes_from_disk(autojump_clock: MockClock) -> None:
    home = LogHome()
    log = home.open()
    home.put(log, *[b"x" * 52] * 100)
    with capture_logs() as lines, trio.move_on_after(60):
        await scrub_log(log, lambda: LogIndex(100), log=LOG)
    (line,) = [line for line in lines if line["event"] == "log_scrubbed"]
    assert line["nbytes"] == line["from_disk"] == log.end_pos
    home.close_all()


async def test_round_waits_until_something_is_committed(autojump_clock: MockClock) -> None:
    home = LogHome()
    log = home.open()
    home.put(log, *[b"x" * 52] * 100)
    with capture_logs() as lines, trio.move_on_after(60):
        await scrub_log(log, lambda: LogIndex(100 if trio.current_time() > 10 else 0), log=LOG)
    (line,) = [line for line in lines if line["event"] == "log_scrubbed"]
    assert line["nbytes"] == log.end_pos
    home.close_all()
