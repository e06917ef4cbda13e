"""What the SDK does with a cluster, whoever made it: for our own, and for those of RocketMQ."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

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
from tests.support.waiting import until

GROUP = "broker-a"
QUEUES = 4
MESSAGE_BYTES_MAX = 100_000
"""The brokers have this limit."""

numbers = itertools.count()


@asynccontextmanager
async def new_topic(namesrv: str) -> AsyncGenerator[str]:
    """A topic with QUEUES empty queues, and a minute for the test."""
    topic = f"Sdk{next(numbers)}"
    with anyio.fail_after(60):
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, QUEUES)
        yield topic


def consumer_of(namesrv: str, topic: str, tags: str = "*") -> PushConsumer:
    consumer = PushConsumer(namesrv, f"{topic}-readers", consume_from="first")
    consumer.subscribe(topic, tags)
    return consumer


async def send(producer: Producer, topic: str, count: int) -> list[str]:
    """The ids of `count` messages that were stored."""
    outcomes = await producer.send_many(Message(topic, b"%d" % number) for number in range(count))
    results = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
    assert len(results) == count, [outcome for outcome in outcomes if not isinstance(outcome, SendResult)]
    return [result.message_id for result in results]


async def messages_arrive_with_all_they_carry(namesrv: str) -> None:
    async with (
        new_topic(namesrv) as topic,
        Producer(namesrv) as producer,
        consumer_of(namesrv, topic, "en || fr") as consumer,
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


async def a_batch_is_stored_together(namesrv: str) -> None:
    async with (
        new_topic(namesrv) as topic,
        Producer(namesrv) as producer,
        consumer_of(namesrv, topic) as consumer,
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


async def a_member_that_leaves_hands_its_queues_over(namesrv: str) -> None:
    seen: Counter[str] = Counter()

    async def note(message: ReceivedMessage) -> None:
        seen[message.message_id] += 1

    async with (
        new_topic(namesrv) as topic,
        Producer(namesrv) as producer,
        anyio.create_task_group() as tasks,
        consumer_of(namesrv, topic) as first,
    ):
        tasks.start_soon(first.run, note)
        async with consumer_of(namesrv, topic) as second:
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


async def a_group_goes_on_where_it_ended(namesrv: str, way: str) -> None:
    received: list[str] = []
    async with new_topic(namesrv) as topic, Producer(namesrv) as producer:
        sent = await send(producer, topic, 60)
        with anyio.CancelScope() as scope:
            async with consumer_of(namesrv, topic) as consumer:
                async for delivery in consumer.deliveries():
                    with delivery as message:
                        received.append(message.message_id)
                    if len(received) == 30:
                        break
                if way == "cancelled":
                    scope.cancel()
                    await anyio.sleep_forever()
        assert scope.cancelled_caught == (way == "cancelled")
        async with consumer_of(namesrv, topic) as consumer:
            async for message in consumer:
                received.append(message.message_id)
                if len(received) == 60:
                    break
            await until(lambda: len(consumer.assignment) == QUEUES)
            assert sum(consumer.positions.values()) == 59, "the last one is not acknowledged yet"
    assert sorted(received) == sorted(sent)


async def what_is_refused_is_certainly_not_stored(namesrv: str) -> None:
    noise = random.Random(1).randbytes(MESSAGE_BYTES_MAX + 1)
    async with new_topic(namesrv) as topic, Producer(namesrv) as producer, Admin(namesrv) as admin:
        with pytest.raises(SendRejected, match="the body has 100001 bytes") as too_large:
            await producer.send(Message(topic, noise))
        assert (too_large.value.code, too_large.value.stored) == (ResponseCode.MESSAGE_ILLEGAL, "no")
        with pytest.raises(MessageRefused, match="4194305 bytes"):
            await producer.send(Message(topic, bytes(4 * 1024 * 1024 + 1)))
        with pytest.raises(SendRejected, match="queue id 4 is illegal") as no_queue:
            await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, GROUP, QUEUES))
        assert (no_queue.value.code, no_queue.value.stored) == (ResponseCode.INVALID_PARAMETER, "no")
        assert (too_large.value.attempts, no_queue.value.attempts) == (1, 1)
        assert {await admin.max_offset(queue) for queue in await producer.queues(topic)} == {0}


SCENARIOS: dict[str, Callable[[str], Awaitable[None]]] = {
    "messages arrive with all they carry": messages_arrive_with_all_they_carry,
    "a batch is stored together": a_batch_is_stored_together,
    "a member that leaves hands its queues over": a_member_that_leaves_hands_its_queues_over,
    "a group goes on where it ended: left": partial(a_group_goes_on_where_it_ended, way="left"),
    "a group goes on where it ended: cancelled": partial(a_group_goes_on_where_it_ended, way="cancelled"),
    "what is refused is certainly not stored": what_is_refused_is_certainly_not_stored,
}
"""Each is called with the address of a name server, on asyncio or trio."""
