"""Lite topics on the test kit: real brokers on virtual time, with the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mq.client import (
    Admin,
    BrokerError,
    ClientEvent,
    LiteConsumer,
    LiteStart,
    Message,
    MessageRefused,
    NameRefused,
    Producer,
    SubscriptionGroupConfig,
)
from mq.client.sync import SyncAdmin, SyncLiteConsumer, SyncProducer
from mq.testing import Kit, open_kit, running_kit
from tests.support.virtual_time import VIRTUAL_TIME

PARENT, GROUP = "Sessions", "agents"


def lite_group(name: str = GROUP, **attributes: str) -> SubscriptionGroupConfig:
    bound = {"+lite.bind.topic": PARENT} | {f"+lite.sub.{key}": value for key, value in attributes.items()}
    return SubscriptionGroupConfig(group_name=name, attributes=bound)


@asynccontextmanager
async def sessions(
    *, replicas: int = 1, expiration: int | None = None, quota: int | None = None, **group: str
) -> AsyncIterator[tuple[Kit, Admin, Producer]]:
    """A kit with a topic for lite topics, a group that is bound to it, and a producer."""
    attributes = {"message.type": "LITE"}
    if expiration is not None:
        attributes["lite.topic.expiration"] = str(expiration)
    async with open_kit(replicas=replicas) as kit, Admin(kit.namesrv) as admin:
        await admin.create_topic(PARENT, queues=4, attributes=attributes)
        if quota is not None:
            group["client.quota"] = str(quota)
        await admin.put_consumer_group(lite_group(**group))
        async with Producer(kit.namesrv, PARENT) as producer:
            yield kit, admin, producer


async def sent(producer: Producer, lite: str, *bodies: bytes) -> None:
    for body in bodies:
        await producer.send(Message(PARENT, body, lite_topic=lite))


async def received(consumer: LiteConsumer, count: int) -> list[tuple[str | None, bytes]]:
    """That many messages, acknowledged."""
    got: list[tuple[str | None, bytes]] = []
    for _ in range(count):
        message = await anext(consumer)
        got.append((message.lite_topic, message.body))
        await consumer.ack(message)
    return got


async def comes_nothing(consumer: LiteConsumer, seconds: float = 40.0) -> None:
    with trio.move_on_after(seconds):
        pytest.fail(f"{await anext(consumer)} came")


def by_topic(messages: Sequence[tuple[str | None, bytes]]) -> dict[str | None, list[bytes]]:
    found: dict[str | None, list[bytes]] = {}
    for lite, body in messages:
        found.setdefault(lite, []).append(body)
    return found


@VIRTUAL_TIME
async def test_consumer_subscribes_and_unsubscribes_at_run_time() -> None:
    async with sessions() as (kit, _, producer), LiteConsumer(kit.namesrv, GROUP, PARENT) as consumer:
        await comes_nothing(consumer)
        await sent(producer, "a", b"1", b"2")
        await sent(producer, "b", b"3")
        await consumer.subscribe("a")
        assert await received(consumer, 2) == [("a", b"1"), ("a", b"2")]
        await consumer.subscribe("b", "c")
        assert consumer.lite_topics == frozenset("abc")
        assert await received(consumer, 1) == [("b", b"3")]
        await consumer.unsubscribe("a")
        await sent(producer, "a", b"4")
        await sent(producer, "c", b"5")
        assert await received(consumer, 1) == [("c", b"5")]
        await comes_nothing(consumer)
        await consumer.subscribe("a", start=LiteStart.tail(2))
        assert await received(consumer, 2) == [("a", b"2"), ("a", b"4")]


@VIRTUAL_TIME
async def test_lite_messages_are_redelivered_in_order_without_blocking_other_lite_topics() -> None:
    async with sessions() as (kit, _, producer):
        await sent(producer, "a", b"1", b"2", b"3")
        async with LiteConsumer(kit.namesrv, GROUP, PARENT, lite_topics=["a", "b"], invisible=30.0) as consumer:
            first = await anext(consumer)
            assert (first.body, first.reconsume_times, first.queue_offset) == (b"1", 0, 0)
            await sent(producer, "b", b"other")
            assert await received(consumer, 1) == [("b", b"other")], "a waits for its first message"
            await consumer.nack(first)
            again = await anext(consumer)
            assert (again.body, again.reconsume_times) == (b"1", 1)
            await consumer.ack(again)
            assert await received(consumer, 2) == [("a", b"2"), ("a", b"3")]
            await comes_nothing(consumer)


@VIRTUAL_TIME
async def test_failover_preserves_offsets_and_order_within_one_long_poll() -> None:
    names = [f"s{number}" for number in range(20)]
    async with (
        sessions(replicas=3) as (kit, _, producer),
        LiteConsumer(kit.namesrv, GROUP, PARENT, lite_topics=names, invisible=30.0) as consumer,
    ):
        for name in names:
            await sent(producer, name, b"1", b"2")
        before = await received(consumer, 25)
        lost = await kit.lose_leader()
        for name in names:
            await sent(producer, name, b"3")
        began = trio.current_time()
        after = await received(consumer, 3 * len(names) - len(before))
        assert trio.current_time() < began + 35.0, "the invisible time of what was popped, and a moment"
        assert by_topic([*before, *after]) == {name: [b"1", b"2", b"3"] for name in names}
        await comes_nothing(consumer)
        await kit.restore(lost)


@VIRTUAL_TIME
async def test_exclusive_subscriber_takes_a_lite_topic_from_a_shared_subscriber() -> None:
    events: list[ClientEvent] = []
    async with sessions(model="Exclusive") as (kit, _, producer):
        former = LiteConsumer(kit.namesrv, GROUP, PARENT, lite_topics=["a", "b"], on_event=events.append)
        async with former, LiteConsumer(kit.namesrv, GROUP, PARENT) as later:
            await sent(producer, "a", b"1")
            assert await received(former, 1) == [("a", b"1")]
            await later.subscribe("a")
            await sent(producer, "a", b"2")
            await sent(producer, "b", b"3")
            assert await received(later, 1) == [("a", b"2")]
            assert await received(former, 1) == [("b", b"3")]
            assert former.lite_topics == frozenset("b")
            assert [event.subject for event in events if event.kind == "revoked"] == ["a"]


@VIRTUAL_TIME
async def test_exclusive_member_takes_a_lite_topic_from_its_owner() -> None:
    revoked = trio.Event()

    def note(event: ClientEvent) -> None:
        if event.kind == "revoked":
            revoked.set()

    async with sessions(model="Exclusive") as (kit, _, producer):
        former = LiteConsumer(kit.namesrv, GROUP, PARENT, lite_topics=["a", "b"], on_event=note)
        async with former:
            await sent(producer, "a", b"1")
            assert await received(former, 1) == [("a", b"1")]
            async with LiteConsumer(kit.namesrv, GROUP, PARENT, lite_topics=["a"]) as later:
                with trio.fail_after(30):
                    await revoked.wait()
                assert former.lite_topics == frozenset("b")
                await sent(producer, "a", b"2")
                assert await received(later, 1) == [("a", b"2")]


@VIRTUAL_TIME
async def test_suspended_lite_topic_rests_and_its_messages_are_not_counted() -> None:
    async with sessions() as (kit, _, producer):
        await sent(producer, "a", b"1", b"2")
        async with LiteConsumer(kit.namesrv, GROUP, PARENT, lite_topics=["a", "b"], invisible=30.0) as consumer:
            for _ in range(3):
                message = await anext(consumer)
                assert (message.body, message.reconsume_times) == (b"1", 0)
                await consumer.suspend(message, 100.0)
                await sent(producer, "b", b"other")
                assert await received(consumer, 1) == [("b", b"other")]
                await comes_nothing(consumer, 95.0)
            await consumer.ack(await anext(consumer))
            last = await anext(consumer)
            assert (last.body, last.reconsume_times) == (b"2", 0)
            with pytest.raises(ValueError, match="allowed: 0 to"):
                await consumer.suspend(last, -1.0)
            await consumer.ack(last)
            await comes_nothing(consumer)


@VIRTUAL_TIME
async def test_consumers_of_a_wildcard_group_share_all_lite_topics() -> None:
    async with sessions(wildcard="*") as (kit, _, producer):
        await sent(producer, "before", b"0")
        options: dict[str, Any] = {"lite_topics": None, "ahead": 1}
        async with (
            LiteConsumer(kit.namesrv, GROUP, PARENT, **options) as one,
            LiteConsumer(kit.namesrv, GROUP, PARENT, **options) as two,
        ):
            for number in range(8):
                await sent(producer, f"n{number}", b"%d" % number)
            got: list[tuple[str | None, bytes]] = []

            async def read(consumer: LiteConsumer) -> None:
                while True:
                    got.extend(await received(consumer, 1))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, one)
                nursery.start_soon(read, two)
                await kit.advance_until(lambda: len(got) == 9, timeout=40.0)
                nursery.cancel_scope.cancel()
            assert sorted(got) == sorted([("before", b"0"), *((f"n{n}", b"%d" % n) for n in range(8))])
            with pytest.raises(ValueError, match="reads all lite topics"):
                await one.subscribe("a")


@VIRTUAL_TIME
async def test_lite_topic_expires_after_its_last_message_and_can_restart() -> None:
    async with (
        sessions(expiration=10) as (kit, _, producer),
        LiteConsumer(kit.namesrv, GROUP, PARENT, lite_topics=["old", "live"]) as consumer,
    ):

        async def offset_of_next(lite: str, body: bytes) -> int:
            await sent(producer, lite, body)
            message = await anext(consumer)
            assert (message.lite_topic, message.body) == (lite, body)
            await consumer.ack(message)
            return message.queue_offset

        assert [await offset_of_next(lite, b"1") for lite in ("old", "live", "old")] == [0, 0, 1]
        await kit.advance(minutes=9)
        assert await offset_of_next("live", b"2") == 1
        await kit.advance(minutes=2)
        await trio.sleep(5)  # the leader looks at all lite topics
        assert await offset_of_next("live", b"3") == 2, "it stays"
        assert await offset_of_next("old", b"4") == 0, "it has begun again, also for a group that had read it"


def test_threads_read_lite_topics_as_well() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic(PARENT, queues=2, attributes={"message.type": "LITE"})
        admin.put_consumer_group(lite_group())
        with SyncProducer(kit.namesrv, PARENT) as producer, SyncLiteConsumer(kit.namesrv, GROUP, PARENT) as consumer:
            consumer.subscribe("a")
            producer.send(Message(PARENT, b"1", lite_topic="a"))
            message = consumer.receive(timeout=30.0)
            assert message is not None
            assert (message.lite_topic, message.body) == ("a", b"1")
            consumer.ack(message)
            consumer.unsubscribe("a")
            assert consumer.lite_topics == frozenset()


@pytest.mark.parametrize(
    "message",
    [
        Message(PARENT, b"x", lite_topic=""),
        Message(PARENT, b"x", lite_topic="a" * 65),
        Message(PARENT, b"x", lite_topic="a/b"),
        Message(PARENT, b"x", lite_topic="a", sharding_key="k"),
        Message(PARENT, b"x", lite_topic="a", delay=5.0),
    ],
)
@VIRTUAL_TIME
async def test_producer_refuses_messages_unsuitable_for_lite_topics(message: Message) -> None:
    async with sessions() as (_, _, producer):
        with pytest.raises(MessageRefused):
            await producer.send(message)
        with pytest.raises(MessageRefused):
            await producer.send_batch([Message(PARENT, b"1", lite_topic="a"), Message(PARENT, b"2")])


@VIRTUAL_TIME
async def test_refused_subscription_is_reported_to_the_consumer() -> None:
    async with (
        sessions(quota=2) as (kit, _, producer),
        LiteConsumer(kit.namesrv, GROUP, PARENT, lite_topics=["a"]) as consumer,
    ):
        with pytest.raises(BrokerError) as refused:
            await consumer.subscribe("b", "c")
        assert refused.value.code == 2018
        assert consumer.lite_topics == frozenset("a")
        await sent(producer, "a", b"1")
        assert await received(consumer, 1) == [("a", b"1")]
        with pytest.raises(NameRefused):
            await consumer.subscribe("a b")
