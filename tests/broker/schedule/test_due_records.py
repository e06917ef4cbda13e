"""Old records of due messages: a worker thread reads and verifies them, never the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.broker.schedule.due_records import LOADED_AT_ONCE, DueRecords
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY, QueueRun
from mq.store.queue_store import QueueStore, QueueStoreSettings
from raftlog import Job
from raftlog.segment import EntryGone
from raftlog.segment.verified_reads import VerifiedReads
from tests.support.popping import again, popped
from tests.support.running_broker import Client, broker_client, properties, running
from tests.support.stored_messages import wait_stored
from tests.support.waiting_messages import WallClock

COUNT = 5


class Loads:
    """The threads in which parts of the log were read from their files and verified."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[threading.Thread] = []
        load = VerifiedReads._load

        def noted(*given: Any, **named: Any) -> Any:
            self.threads.append(threading.current_thread())
            return load(*given, **named)

        monkeypatch.setattr(VerifiedReads, "_load", noted)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    return Loads(monkeypatch)


async def send_delayed(client: Client, clock: WallClock) -> None:
    for number in range(COUNT):
        assert (await client.send("T", b"%d" % number, i=properties(DELAY="3"))).code == 0


async def send_timed(client: Client, clock: WallClock) -> None:
    for number in range(COUNT):
        due_ms = clock.now_ms + 10_000 + number
        assert (await client.send("T", b"%d" % number, i=properties(TIMER_DELIVER_MS=str(due_ms)))).code == 0


async def send_popped(client: Client, clock: WallClock) -> None:
    await client.create_topic("T")
    for number in range(COUNT):
        assert (await client.send("T", b"%d" % number)).code == 0
    assert len(await popped(client, invisibleTime=10_000)) == COUNT


async def delivered(client: Client) -> list[bytes]:
    return [message.body for message in await wait_stored(client, COUNT)]


async def revived(client: Client) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < COUNT:
        found += [message.body for message in await again(client)]
    return found


@pytest.mark.parametrize(
    ("prepare", "collect"),
    [(send_delayed, delivered), (send_timed, delivered), (send_popped, revived)],
    ids=["delay levels", "timers", "revival of pops"],
)
async def test_worker_thread_reads_due_messages_after_a_restart(
    tmp_path: Path, clock: WallClock, loads: Loads, prepare: Callable[..., Any], collect: Callable[..., Any]
) -> None:
    async with running(tmp_path) as broker:
        await prepare(await broker.connect(), clock)
    async with broker_client(tmp_path) as client:
        loads.threads.clear()
        clock.now_ms += 11_000
        with trio.fail_after(30):
            assert await collect(client) == [b"%d" % number for number in range(COUNT)]
        assert loads.threads, "the records were in memory: this shows nothing"
        assert threading.main_thread() not in loads.threads


class Log:
    """Knows which parts of it are in memory; ``gone`` cannot be read."""

    def __init__(self, memory_pos: int) -> None:
        self.memory_pos = memory_pos
        self.verified: set[int] = set()
        self.gone: set[int] = set()

    def has_verified(self, pos: int, length: int) -> bool:
        return pos in self.verified

    def load(self, pos: int, length: int) -> None:
        if pos in self.gone:
            raise EntryGone("log", "position", pos, pos + 1)
        self.verified.add(pos)


def queue_of(directory: Path, count: int, size: int = 100, apart: int = 0) -> ConsumeQueue:
    """A queue of so many records, each so far from the one before."""
    store = QueueStore(str(directory), QueueStoreSettings())
    entries = b"".join(QUEUE_ENTRY.pack(number * (size + apart), size, 0) for number in range(count))
    store.append_run(QueueRun("T", 0, QueueOffset(0), entries))
    queue = store.get("T", 0)
    assert queue is not None
    return queue


def test_later_records_are_loaded_with_the_first_up_to_memory(tmp_path: Path) -> None:
    queue, log, jobs, ends = queue_of(tmp_path, 10), Log(memory_pos=700), list[Job](), list[str]()
    records = DueRecords(log, jobs.append)
    assert not records.may_read(queue, QueueOffset(2), PhysicalOffset(200), 100)
    records.load(queue, QueueOffset(2), lambda: ends.append("end"))
    assert records.is_loading
    jobs.pop()()()
    assert (log.verified, records.is_loading, ends) == ({200, 300, 400, 500, 600}, False, ["end"])
    assert records.may_read(queue, QueueOffset(7), PhysicalOffset(700), 100), "it is among the newest entries"
    assert not records.may_read(queue, QueueOffset(1), PhysicalOffset(100), 100)


def test_unreadable_record_raises_only_when_it_is_read(tmp_path: Path) -> None:
    queue, log, jobs = queue_of(tmp_path, 3), Log(memory_pos=1000), list[Job]()
    log.gone = {0}
    records = DueRecords(log, jobs.append)
    records.load(queue, QueueOffset(0), lambda: None)
    jobs.pop()()()
    assert log.verified == {100, 200}
    assert records.may_read(queue, QueueOffset(0), PhysicalOffset(0), 100), "else it would be loaded for ever"


def test_reading_job_is_bounded_by_number_of_records(tmp_path: Path) -> None:
    count = 3 * LOADED_AT_ONCE
    queue, log, jobs = queue_of(tmp_path, count), Log(memory_pos=count * 100), list[Job]()
    records = DueRecords(log, jobs.append)
    records.load(queue, QueueOffset(0), lambda: None)
    jobs.pop()()()
    assert len(log.verified) == LOADED_AT_ONCE


@pytest.mark.parametrize(
    ("size", "apart", "count"), [(2**20, 0, 1), (200_000, 0, 2), (100, 2**20, 7), (1024, 1024, 128)]
)
def test_reading_job_is_bounded_by_its_log_range(tmp_path: Path, size: int, apart: int, count: int) -> None:
    queue, log, jobs = queue_of(tmp_path, 200, size, apart), Log(memory_pos=2**30), list[Job]()
    records = DueRecords(log, jobs.append)
    records.load(queue, QueueOffset(0), lambda: None)
    jobs.pop()()()
    assert len(log.verified) == count
