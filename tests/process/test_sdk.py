"""The SDK against a real name server and three real brokers, on both event loops, with real deaths of leaders."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import anyio.from_thread
import anyio.to_thread
import pytest

from mq.cli.dev_cluster import DevCluster, Ports
from mq.client import (
    Admin,
    Message,
    MessageQueue,
    MessageRefused,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendRejected,
    SendResult,
)
from mq.protocol.codes import ResponseCode
from tests.support.real_groups import Cluster
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.anyio]

GROUP = "broker-a"
QUEUES = 4
MESSAGE_BYTES_MAX = 100_000

numbers = itertools.count()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    settings = {"message_bytes_max": str(MESSAGE_BYTES_MAX)}
    with anyio.from_thread.start_blocking_portal("trio") as portal:
        opened = DevCluster.open(directory, ports=Ports.free(3), settings=settings, group=GROUP)
        with portal.wrap_async_context_manager(opened) as inner:
            yield Cluster(inner, portal)


@asynccontextmanager
async def new_topic(cluster: Cluster) -> AsyncGenerator[str]:
    """A topic with QUEUES empty queues, and a minute for the test."""
    topic = f"Sdk{next(numbers)}"
    with anyio.fail_after(60):
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(topic, QUEUES)
        yield topic


def consumer_of(cluster: Cluster, topic: str, tags: str = "*") -> PushConsumer:
    consumer = PushConsumer(cluster.namesrv, f"{topic}-readers", consume_from="first")
    consumer.subscribe(topic, tags)
    return consumer


async def send(producer: Producer, topic: str, count: int) -> list[str]:
    """The ids of `count` messages that were stored."""
    outcomes = await producer.send_many(Message(topic, b"%d" % number) for number in range(count))
    results = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
    assert len(results) == count, [outcome for outcome in outcomes if not isinstance(outcome, SendResult)]
    return [result.message_id for result in results]


async def test_messages_arrive_with_all_they_carry(cluster: Cluster) -> None:
    async with (
        new_topic(cluster) as topic,
        Producer(cluster.namesrv) as producer,
        consumer_of(cluster, topic, "en || fr") as consumer,
    ):
        await producer.send(Message(topic, b"hallo", tags="de"))
        sent = {
            b"hello": await producer.send(Message(topic, b"hello", tags="en", keys=["1", "one"])),
            b"salut" * 2000: await producer.send(
                Message(topic, b"salut" * 2000, tags="fr", properties={"colour": "rouge"}, sharding_key="s")
            ),
        }
        received: dict[bytes, ReceivedMessage] = {}
        async for message in consumer:
            received[message.body] = message
            if len(received) == 2:
                break
        assert received.keys() == sent.keys()
        for body, message in received.items():
            result = sent[body]
            assert (message.message_id, message.queue, message.queue_offset) == (
                result.message_id,
                result.queue,
                result.queue_offset,
            )
        hello, salut = received[b"hello"], received[b"salut" * 2000]
        assert (hello.tags, hello.keys) == ("en", ("1", "one"))
        assert (salut.tags, salut.properties["colour"], salut.sharding_key) == ("fr", "rouge", "s")


async def test_a_batch_is_stored_together(cluster: Cluster) -> None:
    async with (
        new_topic(cluster) as topic,
        Producer(cluster.namesrv) as producer,
        consumer_of(cluster, topic) as consumer,
    ):
        batch = [Message(topic, b"%d" % number, tags="t", keys=[f"k{number}"], flag=number) for number in range(300)]
        results = await producer.send_batch(batch)
        assert {result.queue for result in results} == {results[0].queue}
        first = results[0].queue_offset
        assert [result.queue_offset for result in results] == list(range(first, first + 300))
        received: list[ReceivedMessage] = []
        async for message in consumer:
            received.append(message)
            if len(received) == 300:
                break
        received.sort(key=lambda message: message.queue_offset)
        assert [(m.body, m.keys, m.record.flag, m.message_id, m.record.offset_message_id) for m in received] == [
            (sent.body, tuple(sent.keys), sent.flag, result.message_id, result.offset_message_id)
            for sent, result in zip(batch, results, strict=True)
        ]
        with pytest.raises(SendRejected, match="more than") as rejected:
            await producer.send_batch([Message(topic, b"x")] * 1000)
        assert (rejected.value.code, rejected.value.stored) == (ResponseCode.MESSAGE_ILLEGAL, "no")


async def test_a_member_that_leaves_hands_its_queues_over(cluster: Cluster) -> None:
    seen: Counter[str] = Counter()

    async def note(message: ReceivedMessage) -> None:
        seen[message.message_id] += 1

    async with (
        new_topic(cluster) as topic,
        Producer(cluster.namesrv) as producer,
        anyio.create_task_group() as tasks,
        consumer_of(cluster, topic) as first,
    ):
        tasks.start_soon(first.run, note)
        async with consumer_of(cluster, topic) as second:
            tasks.start_soon(second.run, note)
            await until(lambda: len(first.assignment) == len(second.assignment) == QUEUES // 2)
            assert not first.assignment & second.assignment
            sent = await send(producer, topic, 100)
            await until(lambda: len(seen) == 100)
            second.stop()
        sent += await send(producer, topic, 100)
        await until(lambda: len(seen) == 200)
        assert len(first.assignment) == QUEUES
        assert seen == Counter(sent), "a member that leaves stores its offsets first, so nothing comes twice"
        first.stop()


@pytest.mark.parametrize("way", ["left", "cancelled"])
async def test_a_group_goes_on_where_it_ended(cluster: Cluster, way: str) -> None:
    received: list[str] = []
    async with new_topic(cluster) as topic, Producer(cluster.namesrv) as producer:
        sent = await send(producer, topic, 60)
        with anyio.CancelScope() as scope:
            async with consumer_of(cluster, topic) as consumer:
                async for delivery in consumer.deliveries():
                    with delivery as message:
                        received.append(message.message_id)
                    if len(received) == 30:
                        break
                if way == "cancelled":
                    scope.cancel()
                    await anyio.sleep_forever()
        assert scope.cancelled_caught == (way == "cancelled")
        async with consumer_of(cluster, topic) as consumer:
            async for message in consumer:
                received.append(message.message_id)
                if len(received) == 60:
                    break
            await until(lambda: len(consumer.assignment) == QUEUES)
            assert sum(consumer.positions.values()) == 59, "the last one is not acknowledged yet"
    assert sorted(received) == sorted(sent)


async def test_the_death_of_a_leader_loses_nothing_and_hides_no_doubt(cluster: Cluster) -> None:
    """Several tasks each await one send after the other, and a consumer reads along."""
    acknowledged: list[SendResult] = []
    consumed: dict[MessageQueue, dict[int, str]] = defaultdict(dict)
    stopped = False

    async def send_until_stopped(producer: Producer, topic: str) -> None:
        while not stopped:
            acknowledged.append(await producer.send(Message(topic, b"x")))

    async def note(message: ReceivedMessage) -> None:
        known = consumed[message.queue].setdefault(message.queue_offset, message.message_id)
        assert known == message.message_id, f"{message.queue}: another message at offset {message.queue_offset}"

    async with (
        new_topic(cluster) as topic,
        Producer(cluster.namesrv, timeout=30) as producer,
        consumer_of(cluster, topic) as consumer,
        anyio.create_task_group() as reading,
    ):
        reading.start_soon(consumer.run, note)
        async with anyio.create_task_group() as sending:
            for _ in range(8):
                sending.start_soon(send_until_stopped, producer, topic)
            await until(lambda: len(acknowledged) > 100)
            async with cluster.dead(await cluster.leader()):
                before = len(acknowledged)
                await until(lambda: len(acknowledged) > before + 100)
                stopped = True
        async with Admin(cluster.namesrv) as admin:
            ends = {queue: await admin.max_offset(queue) for queue in await producer.queues(topic)}
        await until(lambda: consumer.positions == ends)
        consumer.stop()

    assert {queue: sorted(each) for queue, each in consumed.items()} == {q: list(range(end)) for q, end in ends.items()}
    stored = Counter(message_id for each in consumed.values() for message_id in each.values())
    for result in acknowledged:
        most = result.attempts if result.maybe_duplicated else 1
        assert 1 <= stored[result.message_id] <= most, (result, stored[result.message_id])


async def test_topics_and_offsets_as_an_administrator_sees_them(cluster: Cluster) -> None:
    async with new_topic(cluster) as topic, Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        assert topic in await admin.topics()
        route = await admin.route(topic)
        queues = [MessageQueue(topic, GROUP, number) for number in range(QUEUES)]
        assert route.write_queues == route.read_queues == tuple(queues)
        assert route.leader_address(GROUP) == cluster.inner.address(await cluster.leader())
        assert len(route.addresses()) == 3
        for _ in range(3):
            await producer.send(Message(topic, b"x"), queue=queues[1])
        assert [(await admin.min_offset(queue), await admin.max_offset(queue)) for queue in queues[:2]] == [
            (0, 0),
            (0, 3),
        ]
        async with consumer_of(cluster, topic) as consumer:
            deliveries = consumer.deliveries()
            for _ in range(2):
                (await anext(deliveries)).ack()
            assert await admin.consumers(consumer.group, topic) == [consumer.client_id]
        assert await admin.group_offset(consumer.group, queues[1]) == 2
        assert await admin.group_offset("somebody-else", queues[0]) is None
        assert await admin.consumers(consumer.group, topic) == []


async def test_what_is_refused_is_certainly_not_stored(cluster: Cluster) -> None:
    noise = random.Random(1).randbytes(MESSAGE_BYTES_MAX + 1)
    async with new_topic(cluster) as topic, Producer(cluster.namesrv) as producer, Admin(cluster.namesrv) as admin:
        with pytest.raises(SendRejected, match="body of 100001 bytes") as too_large:
            await producer.send(Message(topic, noise))
        assert (too_large.value.code, too_large.value.stored) == (ResponseCode.MESSAGE_ILLEGAL, "no")
        with pytest.raises(MessageRefused, match="4194305 bytes"):
            await producer.send(Message(topic, bytes(4 * 1024 * 1024 + 1)))
        with pytest.raises(SendRejected, match="queue id 4 is illegal") as no_queue:
            await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, GROUP, QUEUES))
        assert (no_queue.value.code, no_queue.value.stored) == (ResponseCode.INVALID_PARAMETER, "no")
        assert (too_large.value.attempts, no_queue.value.attempts) == (1, 1)
        assert {await admin.max_offset(queue) for queue in await producer.queues(topic)} == {0}
