"""Delayed messages and timers whose record a disk does not give: they hold up no others."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from mq.broker.broker import Broker
from mq.broker.schedule import level_delivery
from mq.broker.schedule.read_backoff import KNOWN_MAX, PAUSE_MS_MAX, PAUSE_MS_MIN, ReadBackoff
from mq.broker.write_path.outcome import Stored
from mq.protocol.messages.delay import timer_slot
from mq.protocol.messages.records import RawRecord, RecordError, split_record
from mq.protocol.names import TIMER_TOPIC
from mq.protocol.numbers import QueueOffset
from tests.support.running_broker import Client, broker_client, limited, properties, running
from tests.support.stored_messages import stored, wait_stored
from tests.support.timer_model import HOUR, MINUTE, SECOND, START_MS, TimerMachine
from tests.support.waiting_messages import WallClock

LEVEL, SECONDS = 3, 10


class Disk:
    """Does not give the records with these bodies, and counts how often each was wanted."""

    def __init__(self) -> None:
        self.lost: set[bytes] = set()
        self.wanted: dict[bytes, int] = {}

    def split(self, data: bytes) -> RawRecord:
        record = split_record(data)
        if record.body in self.lost:
            self.wanted[record.body] = self.wanted.get(record.body, 0) + 1
            raise RecordError(0, "damaged")
        return record


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(level_delivery, "split_record", disk.split)
    return disk


async def send(client: Client, *bodies: bytes) -> None:
    for body in bodies:
        assert (await client.send("T", body, i=properties(DELAY=str(LEVEL)))).code == 0


async def delivered(client: Client, count: int) -> list[bytes]:
    return [message.body for message in await wait_stored(client, count)]


async def figures(client: Client, pending: int, unreadable: int) -> None:
    """Wait until so many messages wait, and so many of them cannot be read."""
    await client.wait_for(
        lambda info: (
            (info["raftmq.delayedPending"], info["raftmq.delayedUnreadable"]) == (str(pending), str(unreadable))
        )
    )


async def test_unreadable_delayed_message_does_not_delay_others_and_is_delivered_once(
    tmp_path: Path, clock: WallClock, disk: Disk
) -> None:
    disk.lost = {b"m1", b"m3"}
    names = [b"m%d" % number for number in range(6)]
    async with broker_client(tmp_path) as client:
        await send(client, *names)
        clock.now_ms += SECONDS * 1000
        assert await delivered(client, 4) == [b"m0", b"m2", b"m4", b"m5"]
        await figures(client, 2, 2)
        disk.lost = {b"m3"}
        clock.now_ms += 1000
        assert (await delivered(client, 5))[4:] == [b"m1"]
        await figures(client, 1, 1)
        await send(client, b"m6")
        clock.now_ms += SECONDS * 1000
        assert (await delivered(client, 6))[5:] == [b"m6"]
    for _ in range(2):
        async with broker_client(tmp_path) as client:
            await figures(client, 1, 1)
            assert len(await stored(client)) == 6, "delivered again"
    disk.lost = set()
    async with broker_client(tmp_path) as client:
        assert (await delivered(client, 7))[6:] == [b"m3"]
        await figures(client, 0, 0)
        await send(client, b"m7")
        clock.now_ms += SECONDS * 1000
        assert (await delivered(client, 8))[7:] == [b"m7"]
    async with broker_client(tmp_path) as client:
        await figures(client, 0, 0)
        assert sorted(message.body for message in await stored(client)) == [*names, b"m6", b"m7"]


async def test_unreadable_delayed_message_is_retried_less_and_less_often(
    client: Client, clock: WallClock, disk: Disk
) -> None:
    disk.lost = {b"m0"}
    await send(client, b"m0")
    clock.now_ms += SECONDS * 1000
    await figures(client, 1, 1)
    tries = []
    for _ in range(16):
        await client.wait_for(lambda info: True)
        tries.append(disk.wanted[b"m0"])
        clock.now_ms += 1000
        before = (await client.info())["raftmq.delayedUnreadable"]
        assert before == "1"
    assert tries[-1] <= 6


async def test_unreadable_disk_stops_the_reading_job_early(tmp_path: Path, clock: WallClock, disk: Disk) -> None:
    names = [b"m%d" % number for number in range(8)]
    disk.lost = set(names)
    async with broker_client(tmp_path, limits=limited(waiting={"unreadable_skipped_max": 3})) as client:
        await send(client, *names)
        clock.now_ms += SECONDS * 1000
        await figures(client, 8, 3)
        disk.lost = set()
        for _ in range(3):
            clock.now_ms += 1000
            await client.wait_for(lambda info: True)
        assert sorted(await delivered(client, 8)) == names
        await figures(client, 0, 0)


async def test_unreadable_delayed_message_is_skipped_for_good(
    tmp_path: Path, clock: WallClock, disk: Disk, brokers: list[Broker]
) -> None:
    disk.lost = {b"m0"}
    async with running(tmp_path) as served:
        client = await served.connect()
        await send(client, b"m0", b"m1")
        clock.now_ms += SECONDS * 1000
        assert await delivered(client, 1) == [b"m1"]
        await figures(client, 1, 1)
        (broker,) = brokers
        queue = broker._store.get("SCHEDULE_TOPIC_XXXX", LEVEL - 1)
        assert queue is not None
        queue.begin_at(QueueOffset(1))
        clock.now_ms += 1000
        await client.wait_for(lambda info: info["raftmq.delayedExpired"] == "1")
        await figures(client, 0, 0)
        await client.wait_for(lambda info: broker._metadata.delay_offsets.get(LEVEL) == 2)


def test_unreadable_message_is_retried_at_growing_intervals(
    machine: TimerMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.send(5 * SECOND, 0, 2)
    machine.store_pending()
    tries: list[int] = []
    damage(machine, monkeypatch, 0, tries)
    for _ in range(10 * 60 * 4):
        machine.pass_time(SECOND // 4)
        machine.run_timers(3)
        machine.store_pending()
    assert machine.visible == {"m1": 1}
    started_ms = START_MS + 5 * SECOND
    assert [(at - started_ms) // SECOND for at in tries[:7]] == [0, 1, 3, 7, 15, 31, 63]
    assert all(60 * SECOND <= later - at <= 62 * SECOND for at, later in pairwise(tries[6:]))
    assert len(tries) in (14, 15)
    assert machine.timers.counters()["timers_unreadable"] == 1
    monkeypatch.undo()
    machine.pass_time(MINUTE)
    machine.run_timers(50)
    machine.store_pending()
    assert machine.visible["m0"] == 1
    assert machine.timers.counters()["timers_unreadable"] == 0


def test_unreadable_timer_is_dropped_once_its_log_file_is_deleted(
    machine: TimerMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.send(5 * SECOND, 0, 2)
    machine.store_pending()
    damage(machine, monkeypatch, 0, [])
    machine.pass_time(HOUR)
    machine.run_timers(50)
    machine.store_pending()
    assert (machine.timers.pending_count, machine.timers.counters()["timers_unreadable"]) == (1, 1)
    queue = machine.store.get(TIMER_TOPIC, timer_slot(START_MS + 5 * SECOND))
    assert queue is not None
    queue.begin_at(QueueOffset(1))
    machine.pass_time(MINUTE)
    machine.run_timers(50)
    machine.store_pending()
    assert (machine.timers.pending_count, machine.timers.counters()["timers_unreadable"]) == (0, 0)
    assert machine.timers.expiry_count == 1
    del machine.messages["m0"]


def test_list_of_unreadable_messages_is_bounded() -> None:
    unreadable = ReadBackoff()
    for offset in range(KNOWN_MAX + 5):
        assert unreadable.postpone((1, offset), 0) == (PAUSE_MS_MIN if offset < KNOWN_MAX else PAUSE_MS_MAX)
    assert len(unreadable) == KNOWN_MAX
    assert unreadable.postponed_until((1, KNOWN_MAX), 0) is None
    assert unreadable.postponed_until((1, 0), 0) == PAUSE_MS_MIN
    assert unreadable.postponed_until((1, 0), -HOUR) is None, "the clock went back"
    unreadable.forget_before(1, QueueOffset(KNOWN_MAX - 1))
    unreadable.forget_before(2, QueueOffset(KNOWN_MAX))
    assert len(unreadable) == 1


def damage(machine: TimerMachine, monkeypatch: pytest.MonkeyPatch, number: int, tries: list[int]) -> None:
    """The disk gives the record of a waiting message no more; when it was tried is noted."""
    outcome = machine.messages[f"m{number}"].outcome
    assert isinstance(outcome, Stored)
    read = machine.log.read

    def read_or_fail(position: int, size: int) -> bytes:
        if position == outcome.physical_offset:
            tries.append(machine.now_ms)
            raise RecordError(0, "the body's checksum is wrong")
        return read(position, size)

    assert machine.timers._delivery is not None
    monkeypatch.setattr(machine.timers._delivery, "_read", read_or_fail)
