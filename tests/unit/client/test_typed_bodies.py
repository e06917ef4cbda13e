"""Consumers with a codec: values for handlers, loops and results, and what becomes of bodies that are no values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from mq.client import (
    BodyNotDecoded,
    BytesCodec,
    ClientEvent,
    DeadLetter,
    JsonCodec,
    Message,
    MessageRefused,
    OnError,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    Skip,
    StopConsumer,
    TextCodec,
)
from mq.client.sync import SyncProducer, SyncPullConsumer, SyncPushConsumer
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, offset_of, running
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster
from tests.unit.client.fake_messages import StoredMessage
from tests.unit.client.fake_server import FakeConnection, FakeRequest

pytestmark = pytest.mark.anyio

DEAD = "%DLQ%cg"
SEND_BACK = 36
REASON = "BodyNotDecoded: cannot decode the body by JsonCodec(Order): DecodeError: "


@dataclass
class Order:
    number: int


CODEC = JsonCodec(Order)


class Moody:
    """A codec that does not decode a body the first times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, body: bytes) -> bytes:
        if body == b"bad" and self.times:
            self.times -= 1
            raise LookupError("the schema is not here yet")
        return body


def put(cluster: FakeCluster, *bodies: bytes, topic: str = "T") -> None:
    for number, body in enumerate(bodies):
        properties = f"UNIQ_KEY\x01{topic}{number:02}\x02"
        message = StoredMessage(body, properties, sys_flag=0, flag=0, born_timestamp_ms=1_600_000_000_000)
        cluster.group.append(topic, 0, message)


def orders(*numbers: int) -> list[bytes]:
    return [b"bad" if number < 0 else b'{"number":%d}' % number for number in numbers]


class Shop:
    """Notes what its handler got."""

    def __init__(self) -> None:
        self.got: list[Order] = []
        self.batches: list[int] = []
        self.events: list[ClientEvent] = []

    async def bill(self, message: ReceivedMessage[Order]) -> None:
        self.got.append(message.body)

    async def bill_many(self, messages: Sequence[ReceivedMessage[Order]]) -> None:
        self.batches.append(len(messages))
        self.got += [message.body for message in messages]

    @property
    def numbers(self) -> list[int]:
        return [order.number for order in self.got]

    def undecodable(self) -> list[ClientEvent]:
        return [event for event in self.events if event.kind == "undecodable"]


@pytest.mark.parametrize("ordered", [True, False, "key"])
async def test_undecodable_body_becomes_a_dead_letter_and_does_not_delay_others(
    ordered: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        put(cluster, *orders(0, -1, 2))
        shop = Shop()
        consumer = consumer_of(cluster, ordered=ordered, codec=CODEC, on_event=shop.events.append)
        consumer.on("T")(shop.bill)
        async with running(consumer):
            await until(lambda: len(shop.got) == 2)
            await until(lambda: cluster.group.bodies(DEAD) == [b"bad"])
        assert sorted(shop.numbers) == [0, 2]
        assert offset_of(cluster) == 3
        [letter] = cluster.group.queues[DEAD, 0]
        assert REASON in letter.properties
        [event] = shop.undecodable()
        assert event.subject == "T"
        assert REASON.removeprefix("BodyNotDecoded: ") in event.reason
        assert [queue.topic for queue in event.queues] == ["T"]
    assert "body_not_decoded" in caplog.text
    assert "handler_failed" not in caplog.text


async def test_bad_body_leaves_the_rest_of_its_batch(cluster: FakeCluster) -> None:
    put(cluster, *orders(0, 1, -1, 3, -1, -1, 6))
    shop = Shop()
    consumer = consumer_of(cluster, codec=CODEC, on_event=shop.events.append)
    consumer.on("T", batch=10)(shop.bill_many)
    async with running(consumer):
        await until(lambda: len(shop.got) == 4)
    assert shop.numbers == [0, 1, 3, 6]
    assert shop.batches == [2, 1, 1]
    assert cluster.group.bodies(DEAD) == [b"bad"] * 3
    assert len(shop.undecodable()) == 3, "each is told once"
    assert offset_of(cluster) == 7


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    "on_error",
    [{BodyNotDecoded: Skip}, {Exception: Skip("no order")}, {BodyNotDecoded: lambda error: Skip(error.reason)}],
)
async def test_policy_skips_undecodable_bodies(
    ordered: bool, on_error: OnError, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        put(cluster, *orders(0, -1, 2))
        shop, consumer = Shop(), consumer_of(cluster, ordered=ordered, codec=CODEC)
        consumer.on("T", on_error=on_error)(shop.bill)
        with caplog.at_level("INFO", "mq.client"):
            async with running(consumer):
                await until(lambda: len(shop.got) == 2)
        assert offset_of(cluster) == 3
        assert cluster.leader.count(SEND_BACK) == 0
    assert "message_skipped" in caplog.text


@pytest.mark.parametrize("ordered", [True, False])
async def test_policy_retries_until_the_body_can_be_decoded(cluster: FakeCluster, ordered: bool) -> None:
    put(cluster, b"bad", b"good")
    consumer = consumer_of(cluster, ordered=ordered, codec=Moody(2), on_error={BodyNotDecoded: RetryLater(0.01)})
    got: list[tuple[bytes, int]] = []

    @consumer.on("T")
    async def note(message: ReceivedMessage) -> None:
        got.append((message.body, message.attempt))

    async with running(consumer):
        await until(lambda: len(got) == 2)
    assert sorted(got) == [(b"bad", 3), (b"good", 1)]
    assert (offset_of(cluster), cluster.leader.count(SEND_BACK)) == (2, 0)


async def test_policy_stops_the_consumer_and_keeps_the_message(cluster: FakeCluster) -> None:
    put(cluster, *orders(0, -1, 2))
    shop, consumer = Shop(), consumer_of(cluster, codec=CODEC, on_error={BodyNotDecoded: StopConsumer})
    consumer.on("T")(shop.bill)
    async with consumer:
        with anyio.fail_after(60), pytest.raises(BodyNotDecoded) as stopped:
            await consumer.run()
    assert (stopped.value.message.raw_body, stopped.value.message.queue_offset) == (b"bad", 1)
    assert (shop.numbers, offset_of(cluster)) == ([0], 1)
    assert cluster.leader.count(SEND_BACK) == 0


async def test_refused_dead_letter_is_retried(cluster: FakeCluster) -> None:
    put(cluster, *orders(-1, 1))
    cluster.leader.fail_codes[SEND_BACK] = cluster.leader.fail_codes[310] = 1
    shop = Shop()
    consumer = consumer_of(cluster, codec=CODEC, on_event=shop.events.append)
    consumer.on("T")(shop.bill)
    async with running(consumer):
        await until(lambda: len(shop.undecodable()) >= 2)
        assert shop.got == [], "its queue waits"
        cluster.leader.fail_codes.clear()
        await until(lambda: shop.numbers == [1])
    assert cluster.group.bodies(DEAD) == [b"bad"]


async def test_each_topic_may_have_its_codec() -> None:
    async with FakeCluster.start(topics={"T": 1, "U": 1, "V": 1}) as cluster:
        put(cluster, *orders(1))
        put(cluster, b"text", topic="U")
        put(cluster, b"\xff", topic="V")
        got: list[Any] = []
        consumer = consumer_of(cluster, codec=TextCodec())

        @consumer.on("T", codec=CODEC)
        async def order(message: ReceivedMessage[Order]) -> None:
            got.append(message.body)

        @consumer.on("V", codec=BytesCodec())
        async def raw(message: ReceivedMessage) -> None:
            got.append(message.body)

        consumer.subscribe("U")

        async def rest(message: ReceivedMessage[Any]) -> None:
            got.append(message.body)

        async with consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, rest)
            await until(lambda: len(got) == 3)
            consumer.stop()
        assert sorted(got, key=repr) == sorted([Order(1), "text", b"\xff"], key=repr)


async def test_retried_message_is_decoded_again(cluster: FakeCluster) -> None:
    """A handler may change its value before it fails."""
    put(cluster, b'{"left":5}')
    consumer = consumer_of(cluster, codec=JsonCodec(dict[str, int]))
    got: list[int] = []

    @consumer.on("T")
    async def take(message: ReceivedMessage[dict[str, int]]) -> None:
        got.append(message.body.pop("left"))
        if len(got) == 1:
            raise OSError("down")

    async with running(consumer):
        await until(lambda: len(got) == 2)
    assert got == [5, 5]


async def test_message_from_the_retry_topic_has_the_codec_of_its_topic() -> None:
    async with FakeCluster.start(topics={"T": 1, "U": 1}) as cluster:
        put(cluster, *orders(5))
        put(cluster, b"text", topic="U")
        consumer = consumer_of(cluster, ordered=False)
        got: list[tuple[Any, int]] = []

        async def fail_once(message: ReceivedMessage[Any]) -> None:
            got.append((message.body, message.reconsume_times))
            if message.reconsume_times == 0:
                raise OSError("down")

        consumer.on("T", codec=CODEC)(fail_once)
        consumer.on("U", codec=TextCodec())(fail_once)
        async with running(consumer):
            await until(lambda: len(got) == 4)
        assert sorted(got, key=repr) == sorted([(Order(5), 0), (Order(5), 1), ("text", 0), ("text", 1)], key=repr)


@pytest.mark.parametrize("exclusive", [True, False])
async def test_loops_skip_undecodable_messages(cluster: FakeCluster, exclusive: bool) -> None:
    put(cluster, *orders(-1, 1, -1, 3, -1, 5))
    shop = Shop()
    got: list[Order] = []
    async with consumer_of(cluster, codec=CODEC, exclusive=exclusive, on_event=shop.events.append) as consumer:
        consumer.subscribe("T")
        with anyio.fail_after(60):
            async for message in consumer:
                got.append(message.body)
                if len(got) == 3:
                    break
    assert got == [Order(1), Order(3), Order(5)]
    assert cluster.group.bodies(DEAD) == [b"bad"] * 3
    assert len(shop.undecodable()) == 3
    assert offset_of(cluster) == 5
    async with consumer_of(cluster, "other", codec=CODEC, exclusive=exclusive) as consumer:
        consumer.subscribe("T")
        with anyio.fail_after(60):
            async for delivery in consumer.deliveries():
                with delivery as message:
                    got.append(message.body)
                if len(got) == 6:
                    break
    assert got[3:] == [Order(1), Order(3), Order(5)]


async def test_loop_follows_the_other_policies(cluster: FakeCluster) -> None:
    put(cluster, *orders(-1, 1))
    async with consumer_of(cluster, codec=CODEC, on_error={BodyNotDecoded: StopConsumer}) as consumer:
        consumer.subscribe("T")
        with anyio.fail_after(60), pytest.raises(BodyNotDecoded):
            await anext(aiter(consumer))
    assert offset_of(cluster) in (None, 0), "it is delivered again"
    async with consumer_of(cluster, codec=CODEC, on_error={BodyNotDecoded: Skip}) as consumer:
        consumer.subscribe("T")
        with anyio.fail_after(60):
            assert (await anext(aiter(consumer))).body == Order(1)
    async with consumer_of(cluster, "other", codec=Moody(2), on_error={BodyNotDecoded: RetryLater(0.01)}) as consumer:
        consumer.subscribe("T")
        got = set()
        with anyio.fail_after(60):
            async for message in consumer:
                got.add(message.body)
                if len(got) == 2:
                    break
        assert got == {b"bad", *orders(1)}
    assert cluster.leader.count(SEND_BACK) == 0


async def test_pull_consumer_skips_undecodable_messages() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        PullConsumer(cluster.namesrv, "cg", consume_from="first", codec=CODEC) as reader,
    ):
        put(cluster, *orders(-1, 1, 2, -1, -1, 5))
        await reader.assign(await reader.queues("T"))
        got: list[int] = []
        with anyio.fail_after(60):
            while len(got) < 3:
                got += [message.body.number for message in await reader.poll(2)]
            assert got == [1, 2, 5]
            assert list(reader.positions.values()) == [6]
            assert cluster.group.bodies(DEAD) == [b"bad"] * 3
            assert await reader.poll(timeout=0.01) == []
            await reader.seek(next(iter(reader.assignment)), "first")
            again = [message.body.number async for message in await reader.read_to_end()]
        assert again == [1, 2, 5]


async def test_pull_consumer_that_shall_stop_raises_at_the_message() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        PullConsumer(
            cluster.namesrv, "cg", consume_from="first", codec=CODEC, on_error={BodyNotDecoded: StopConsumer}
        ) as reader,
    ):
        put(cluster, *orders(0, 1, -1, 3))
        [queue] = await reader.queues("T")
        await reader.assign([queue])
        with anyio.fail_after(60):
            assert [message.body.number for message in await reader.poll()] == [0, 1]
            for _ in range(2):
                with pytest.raises(BodyNotDecoded) as raised:
                    await reader.poll()
                assert reader.position(queue) == 2
            with pytest.raises(BodyNotDecoded):
                _ = [each async for each in await reader.read_to_end()]
            await reader.seek(queue, raised.value.message.queue_offset + 1)
            assert [message.body.number for message in await reader.poll()] == [3]


async def test_pull_consumer_retries_in_order() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        PullConsumer(
            cluster.namesrv, "cg", consume_from="first", codec=Moody(2), on_error={BodyNotDecoded: RetryLater(0.01)}
        ) as reader,
    ):
        put(cluster, b"0", b"bad", b"2")
        await reader.assign(await reader.queues("T"))
        with anyio.fail_after(60):
            assert [message.body async for message in await reader.read_to_end()] == [b"0", b"bad", b"2"]


@pytest.mark.parametrize("follows", [0, 1])
async def test_poll_cancelled_during_a_dead_letter_loses_nothing(monkeypatch: pytest.MonkeyPatch, follows: int) -> None:
    asked, answers, take_back = anyio.Event(), anyio.Event(), FakeBroker._take_back

    async def slowly(broker: FakeBroker, connection: FakeConnection, request: FakeRequest) -> None:
        asked.set()
        await answers.wait()
        await take_back(broker, connection, request)

    monkeypatch.setattr(FakeBroker, "_take_back", slowly)
    got: list[int] = []
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        PullConsumer(cluster.namesrv, "cg", consume_from="first", codec=CODEC) as reader,
    ):
        put(cluster, *orders(-1, *range(follows)))
        await reader.assign(await reader.queues("T"))

        async def poll(scope: anyio.CancelScope) -> None:
            with scope:
                got.extend(message.body.number for message in await reader.poll())

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll, scope := anyio.CancelScope())
                await asked.wait()
                scope.cancel()
                answers.set()
            put(cluster, *orders(7))
            while 7 not in got:
                got += [message.body.number for message in await reader.poll()]
        assert got == [*range(follows), 7]
        assert cluster.group.bodies(DEAD) == [b"bad"]


async def test_producer_encodes_in_every_form(cluster: FakeCluster) -> None:
    outcomes: list[object] = []
    async with Producer(cluster.namesrv, codec=CODEC, trace=True) as producer:
        await producer.send(Message("T", Order(0)))
        await (await producer.submit(Message("T", Order(1))))
        producer.send_nowait(Message("T", Order(2)), outcomes.append)
        await producer.flush()
        await producer.send_many([Message("T", Order(3))])
        await producer.send_batch([Message("T", Order(4)), Message("T", Order(5))])
        await producer.send_oneway(Message("T", Order(6)))
        await until(lambda: len(cluster.group.bodies("T")) == 7)
    assert cluster.group.bodies("T") == orders(*range(7))
    async with Producer(cluster.namesrv, codec=CODEC, linger=0.01) as producer:
        await producer.send_many(Message("T", Order(number)) for number in range(7, 20))
    assert cluster.group.bodies("T") == orders(*range(20))


async def test_unencodable_value_does_not_use_buffer_space() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        Producer[Any](cluster.namesrv, codec=JsonCodec(), in_flight_max=1) as producer,
    ):
        bad = Message("T", object())
        for _ in range(3):
            for send in (
                lambda: producer.send(bad),
                lambda: producer.submit(bad),
                lambda: producer.send_oneway(bad),
                lambda: producer.send_batch([Message("T", 1), bad]),
                lambda: producer.request(bad, timeout=1),
            ):
                with pytest.raises(MessageRefused):
                    await send()
            with pytest.raises(MessageRefused):
                producer.send_nowait(bad, print)
            [refused] = await producer.send_many([bad])
            assert isinstance(refused, MessageRefused)
        with anyio.fail_after(60):
            await producer.send(Message("T", 1))
        assert cluster.group.bodies("T") == [b"1"]


@pytest.mark.parametrize("make", [lambda _: b"", lambda _: "text", lambda _: bytearray(b"x"), lambda _: None])
async def test_codec_that_does_not_return_a_body_is_refused(make: Callable[[object], Any]) -> None:
    class Strange:
        def encode(self, value: object) -> bytes:
            result: bytes = make(value)
            return result

        def decode(self, body: bytes) -> object:
            return body

    async with FakeCluster.start(topics={"T": 1}) as cluster, Producer(cluster.namesrv, codec=Strange()) as producer:
        with pytest.raises(MessageRefused):
            await producer.send(Message("T", 1))


def test_threads_get_values(threads: FakeCluster) -> None:
    with SyncProducer(threads.namesrv, codec=CODEC) as producer:
        producer.send(Message("T", Order(0)))
        producer.submit(Message("T", Order(1))).result()
        producer.send_many([Message("T", Order(2))])
    with SyncPullConsumer(threads.namesrv, "reader", codec=CODEC, consume_from="first") as reader:
        reader.assign(reader.queues("T"))
        assert [message.body for message in reader.read_to_end()] == [Order(0), Order(1), Order(2)]
    put(threads, *orders(-1, 4))
    consumer = SyncPushConsumer(threads.namesrv, "cg", codec=CODEC, consume_from="first")
    got: list[Order] = []

    @consumer.on("T")
    def bill(message: ReceivedMessage[Order]) -> None:
        got.append(message.body)
        if len(got) == 4:
            consumer.stop()

    with consumer:
        consumer.run()
    assert got == [Order(0), Order(1), Order(2), Order(4)]
    assert threads.group.bodies(DEAD) == [b"bad"]


def test_pure_push_consumer_is_refused_a_dead_letter_policy_without_seconds() -> None:
    with pytest.raises(TypeError, match="say after how many seconds"):
        PullConsumer("a:1", "G", on_error={BodyNotDecoded: RetryLater})  # type: ignore[dict-item]
    assert PushConsumer("a:1", "G", on_error={BodyNotDecoded: DeadLetter}).group == "G"
