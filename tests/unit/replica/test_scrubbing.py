"""Damage in a running node's log: the task that looks for it, and a sector that cannot be read any more."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from raftlog.log_numbers import LogIndex
from raftlog.net.machine import Machine, standing_in
from raftlog.scrub_task import scrub_log
from raftlog.segment import RealDisk, StorageCorrupt
from tests.unit.replica.members import led_group
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


BODIES = [b"%04d" % number + bytes(196) for number in range(200)]
BLOCK_BYTES = 4096


class BadBlock:
    """The first block of a file: nobody can read it until it is written as a whole."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = str(path)
        self.is_lost = False
        for name in ("pread", "pread_disk", "pread_cached", "is_cached"):
            monkeypatch.setattr(RealDisk, name, self._reading(getattr(RealDisk, name)))
        monkeypatch.setattr(RealDisk, "pwritev", self._writing(RealDisk.pwritev))

    def _reading(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def read(disk: RealDisk, fd: int, length: int, offset: int) -> Any:
            if self.is_lost and offset < BLOCK_BYTES and os.readlink(f"/proc/self/fd/{fd}") == self._path:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(disk, fd, length, offset)

        return read

    def _writing(self, real: Callable[..., int]) -> Callable[..., int]:
        def write(disk: RealDisk, fd: int, buffers: list[bytes], offset: int) -> int:
            if offset == 0 and sum(map(len, buffers)) >= BLOCK_BYTES:
                self.is_lost &= os.readlink(f"/proc/self/fd/{fd}") != self._path
            return real(disk, fd, buffers, offset)

        return write


async def test_peers_restore_a_sector_unreadable_in_a_scrub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with led_group(tmp_path, bodies=BODIES) as (nodes, leader):
        for member in nodes.others(leader):
            await member.until(lambda member: member.application.bodies == BODIES)
        hurt = nodes.others(leader)[0]
        assert hurt.replica.log.segments()[0].closed
        await hurt.stop()
        block = BadBlock(hurt.directory / f"{0:020d}", monkeypatch)
        before = (hurt.directory / f"{0:020d}").read_bytes()
        block.is_lost = True
        await nodes.start(hurt)
        await hurt.until(lambda member: not block.is_lost and member.application.bodies == BODIES)
        assert (hurt.directory / f"{0:020d}").read_bytes() == before
        assert not hurt.ended.is_set()
