"""Messages of one sharding key are handled in order, those of different keys at the same time."""

from __future__ import annotations

from collections import defaultdict

import anyio
import pytest

from mq.client import DeadLetter, PushConsumer, ReceivedMessage, RetryLater, StopConsumer
from mq.client.sync import SyncPushConsumer
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, offset_of, running
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.fake_messages import StoredMessage

pytestmark = pytest.mark.anyio

KEYS = ("a", "b", "c", None)


def fill(cluster: FakeCluster, count: int) -> None:
    """Messages `0` ... of one queue, with the keys in turn."""
    for number in range(count):
        key = KEYS[number % len(KEYS)]
        properties = f"UNIQ_KEY\x01{number}\x02" + (f"__SHARDINGKEY\x01{key}\x02" if key else "")
        message = StoredMessage(b"%d" % number, properties, sys_flag=0, flag=0, born_timestamp_ms=1_600_000_000_000)
        cluster.group.append("T", 0, message)


class Work:
    """Handles messages for as long as it is told, and notes who worked at the same time."""

    def __init__(self) -> None:
        self.at_work: set[str] = set()
        self.most = 0
        self.done: dict[str, list[int]] = defaultdict(list)
        self.held: set[bytes] = set()
        self.released = anyio.Event()

    async def handle(self, message: ReceivedMessage) -> None:
        key = message.sharding_key or f"none {message.body.decode()}"
        assert key not in self.at_work, "two messages of a key at the same time"
        self.at_work.add(key)
        self.most = max(self.most, len(self.at_work))
        try:
            if message.body in self.held:
                await self.released.wait()
            await anyio.lowlevel.checkpoint()
            self.done[message.sharding_key or "none"].append(int(message.body))
        finally:
            self.at_work.discard(key)

    @property
    def count(self) -> int:
        return sum(map(len, self.done.values()))


async def test_keys_keep_their_order_without_waiting_for_others(cluster: FakeCluster) -> None:
    fill(cluster, 40)
    work = Work()
    work.held = {b"0"}
    consumer = consumer_of(cluster, ordered="key", concurrency=3)
    consumer.on("T")(work.handle)
    async with running(consumer):
        await until(lambda: work.count == 30)
        assert work.done["a"] == []
        assert offset_of(cluster) in (None, 0), "the first message holds the offset"
        work.released.set()
        await until(lambda: work.count == 40)
    for key in ("a", "b", "c"):
        assert work.done[key] == list(range(KEYS.index(key), 40, 4))
    assert work.most == 3
    assert offset_of(cluster) == 40


async def test_failing_message_holds_back_its_key_only(cluster: FakeCluster) -> None:
    fill(cluster, 12)
    got: list[int] = []
    consumer = consumer_of(cluster, ordered="key", max_reconsume_times=2)

    @consumer.on("T")
    async def handle(message: ReceivedMessage) -> None:
        got.append(int(message.body))
        if message.body == b"0":
            raise ValueError
        if message.body == b"1":
            raise DeadLetter("at once")

    async with running(consumer):
        await until(lambda: len(got) == 14)
    assert [number for number in got if number % 4 == 0] == [0, 0, 0, 4, 8]
    assert [number for number in got if number % 4 == 1] == [1, 5, 9]
    assert sorted(cluster.group.bodies("%DLQ%cg")) == [b"0", b"1"]
    assert offset_of(cluster) == 12


async def test_dropped_message_does_not_hold_back_its_key(cluster: FakeCluster) -> None:
    """The group is reset beyond a message that waits for its retry."""
    fill(cluster, 8)
    done: list[int] = []
    consumer = consumer_of(cluster, ordered="key")

    @consumer.on("T")
    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"0":
            raise RetryLater(7200)
        done.append(int(message.body))

    async with running(consumer):
        await until(lambda: len(done) == 6)
        assert 4 not in done
        assert consumer._member is not None
        [queue] = consumer.assignment
        consumer._member.reset({queue: 4})
        await until(lambda: sorted(done[6:]) == [4, 5, 6, 7], seconds=20)
    assert offset_of(cluster) == 8


async def test_unhandled_messages_return_in_order(cluster: FakeCluster) -> None:
    """Draining, pausing and stopping leave the rest of each key to the next run."""
    fill(cluster, 12)
    work = Work()
    work.held = {b"0", b"1"}
    stops = [b"6"]
    async with consumer_of(cluster, ordered="key") as consumer:

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            if message.body in stops:
                stops.clear()
                raise StopConsumer("once")
            await work.handle(message)

        with anyio.fail_after(60), pytest.raises(StopConsumer):
            await consumer.run()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run)
                await until(lambda: {"a", "b"} <= work.at_work)
                consumer.pause()
                work.held.clear()
                work.released.set()
                await until(lambda: not work.at_work)
                assert work.count < 12
                assert await consumer.drain(60)
            consumer.resume()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run)
                await until(lambda: work.count == 12)
                consumer.stop()
    for key in ("a", "b", "c"):
        assert work.done[key] == list(range(KEYS.index(key), 12, 4))
    assert offset_of(cluster) == 12


def test_threads_keep_the_order_of_keys(threads: FakeCluster) -> None:
    fill(threads, 20)
    done: dict[str | None, list[int]] = defaultdict(list)
    consumer = SyncPushConsumer(threads.namesrv, "cg", consume_from="first", ordered="key", concurrency=4)

    @consumer.on("T")
    def handle(message: ReceivedMessage) -> None:
        done[message.sharding_key].append(int(message.body))
        if sum(map(len, done.values())) == 20:
            consumer.stop()

    with consumer:
        consumer.run()
    assert [done[key] for key in ("a", "b", "c")] == [list(range(start, 20, 4)) for start in range(3)]


def test_invalid_values_of_ordered_are_refused() -> None:
    with pytest.raises(ValueError, match="ordered is 'keys'"):
        PushConsumer("127.0.0.1:1", "cg", ordered="keys")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="exclusive"):
        PushConsumer("127.0.0.1:1", "cg", ordered="key", exclusive=True)
