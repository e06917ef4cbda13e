"""The SDK's pop consumer: a name server and a broker, real sockets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from mq.client import Admin, Message, PopConsumer, Producer, TopicNotFound
from mq.client.logs import log
from mq.client.sync import SyncPopConsumer
from mq.protocol import properties as props
from mq.protocol.hashes import tag_code
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.receipts import Receipt
from tests.support.name_server_and_broker import cluster, cluster_and_broker
from tests.support.running_broker import properties
from tests.support.waiting import until
from tests.support.waiting_messages import WallClock


async def test_popped_messages_are_acknowledged_or_redelivered(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        for number in range(60):
            await producer.send(Message("T", b"%d" % number, tags="a"))
        await producer.send(Message("T", b"other", tags="b"))
        seen: list[bytes] = []
        with trio.fail_after(60):
            async with (
                PopConsumer(namesrv, "G", "T", "a", invisible=30, consume_from="first") as consumer,
                trio.open_nursery() as nursery,
            ):
                async for message in consumer:
                    seen.append(message.body)
                    if message.body == b"7" and message.reconsume_times == 0:
                        await consumer.nack(message, delay=0.05)
                    else:
                        nursery.start_soon(consumer.ack, message)
                    if len(seen) == 61:
                        break
            # Acknowledged by then: another one of the group gets nothing but what is new.
            async with PopConsumer(namesrv, "G", "T", "a", invisible=30) as consumer:
                await producer.send(Message("T", b"new", tags="a"))
                message = await anext(consumer)
                assert (message.body, message.topic) == (b"new", "T")
                await consumer.ack(message)
                await consumer.ack(message)  # once more changes nothing
        assert sorted(seen) == sorted([*(b"%d" % number for number in range(60)), b"7"])


@pytest.mark.parametrize("ordered", [False, True])
async def test_tags_with_equal_hash_codes_are_distinguished(tmp_path: Path, ordered: bool) -> None:
    assert tag_code("Aa") == tag_code("BB")
    async with cluster(tmp_path) as namesrv, Producer(namesrv) as producer, Admin(namesrv) as admin:
        [queue] = await producer.queues("T")
        for tag in ("BB", "Aa", "BB", "Aa"):
            await producer.send(Message("T", tag.encode(), tags=tag))
        with trio.fail_after(60):
            async with PopConsumer(
                namesrv, "G", "T", "Aa", ordered=ordered, invisible=30, consume_from="first"
            ) as consumer:
                for _ in range(2):
                    message = await anext(consumer)
                    assert message.body == b"Aa"
                    await consumer.ack(message)

                async def others_are_acknowledged() -> bool:
                    return await admin.group_offset("G", queue) == 4

                await until(others_are_acknowledged)


@pytest.mark.parametrize("ordered", [False, True])
async def test_message_without_codec_does_not_delay_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    errors: list[str] = []
    monkeypatch.setattr(log, "error", lambda event, **fields: errors.append(f"{event} {fields['offset']}"))
    async with cluster(tmp_path) as namesrv, Admin(namesrv) as admin:
        await admin.create_topic("T", 2)
        async with Producer(namesrv, compress="zstd", compress_bytes_min=100) as producer:
            one, two = await producer.queues("T")
            for queue, body in ((one, b"0"), (one, b"1" * 1000), (one, b"2"), (two, b"3"), (two, b"4")):
                await producer.send(Message("T", body), queue=queue)
        with trio.fail_after(60):
            with monkeypatch.context() as without:
                without.setitem(sys.modules, "zstandard", None)
                async with PopConsumer(
                    namesrv, "G", "T", ordered=ordered, invisible=1, consume_from="first"
                ) as consumer:
                    expected = {b"0", b"3", b"4"} | (set() if ordered else {b"2"})
                    seen: set[bytes] = set()
                    async for message in consumer:
                        seen.add(message.body)
                        await consumer.ack(message)
                        if seen == expected:
                            break
                    assert errors == ["body_not_inflated 1"]
            async with PopConsumer(namesrv, "G", "T", ordered=ordered, invisible=30) as consumer:
                async for message in consumer:
                    seen.add(message.body)
                    await consumer.ack(message)
                    if len(seen) == 5:
                        break
        assert b"1" * 1000 in seen


async def test_synchronous_consumer_pops_messages(tmp_path: Path) -> None:
    def pop_all(namesrv: str) -> list[tuple[bytes, int]]:
        seen: list[tuple[bytes, int]] = []
        with SyncPopConsumer(namesrv, "G", "T", invisible=30, consume_from="first") as consumer:
            for message in consumer:
                seen.append((message.body, message.reconsume_times))
                if message.reconsume_times or message.body == b"good":
                    consumer.ack(message)
                else:
                    consumer.nack(message)
                if len(seen) == 3:
                    assert consumer.receive(timeout=0.05) is None
                    return seen
        raise AssertionError("no more messages")

    async with cluster(tmp_path) as namesrv, Producer(namesrv) as producer:
        for body in (b"good", b"bad"):
            await producer.send(Message("T", body))
        with trio.fail_after(60):
            assert await trio.to_thread.run_sync(pop_all, namesrv) == [(b"good", 0), (b"bad", 0), (b"bad", 1)]


async def test_unacknowledged_message_is_redelivered_to_another_consumer(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        await producer.send(Message("T", b"x"))
        with trio.fail_after(60):
            async with PopConsumer(namesrv, "G", "T", invisible=1, consume_from="first") as first:
                message = await anext(first)
                assert message.reconsume_times == 0
            async with PopConsumer(namesrv, "G", "T", invisible=30) as second:
                message = await anext(second)
                assert (message.body, message.reconsume_times) == (b"x", 1)
                await second.ack(message)


async def test_pop_consumer_raises_for_unknown_topics_and_wrong_options(namesrv: str) -> None:
    with pytest.raises(TopicNotFound):
        async with PopConsumer(namesrv, "G", "Nowhere"):
            pass
    for wrong in (
        {"invisible": 0},
        {"consume_from": "now"},
        {"ahead": -1},
        {"ordered": True, "ahead": 0},
        {"renew": True, "ordered": True},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            PopConsumer(namesrv, "G", "T", **wrong)


async def test_invisible_time_starts_when_a_waiting_pop_gets_its_message(namesrv: str) -> None:
    async with (
        Producer(namesrv) as producer,
        PopConsumer(namesrv, "G", "T", invisible=1.5, consume_from="first", hold_seconds=10) as consumer,
    ):
        await trio.sleep(1.8)  # the pop is held for longer than the invisible time
        await producer.send(Message("T", b"late"))
        with trio.fail_after(60):
            message = await anext(consumer)
        assert (message.body, message.reconsume_times) == (b"late", 0)
        await consumer.ack(message)


async def test_receipts_of_the_sdk_equal_those_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(props, "SENT_PROPERTIES_BYTES_MAX", props.PROPERTIES_BYTES_MAX)  # as earlier releases
    forged = [
        str(Receipt(QueueOffset(9), 1, 1, 0, "0", "b", 0, QueueOffset(0)).encode()),
        "no receipt",
        "0 1 1 0 0 b 0 99999999999",
    ]
    async with cluster_and_broker(tmp_path) as (namesrv, broker):
        client = await broker.connect()
        await client.create_topic("F", 1)
        for text in forged:
            assert (await client.send("F", body=text.encode(), i=properties(POP_CK=text))).code == 0
        large = "v" * (props.PROPERTIES_BYTES_MAX - 160)  # no room for a receipt
        assert (await client.send("F", body=b"large", i=properties(n=large))).code == 0
        left = {*(text.encode() for text in forged), b"large"}
        with trio.fail_after(60):
            async with PopConsumer(namesrv, "G", "F", invisible=30, consume_from="first") as consumer:
                again: set[bytes] = set()
                while left:
                    message = await anext(consumer)
                    assert message.topic == "F"
                    if message.reconsume_times == 0:
                        again.add(message.body)
                        await consumer.nack(message)
                    else:
                        await consumer.ack(message)
                        left.discard(message.body)
                assert len(again) == 4
        assert (await client.info())["raftmq.popCheckpoints"] == "0"


async def test_extended_message_stays_hidden_and_can_be_acknowledged(tmp_path: Path, clock: WallClock) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, _), Producer(namesrv) as producer:
        await producer.send(Message("T", b"x"))
        with trio.fail_after(60):
            async with PopConsumer(namesrv, "G", "T", invisible=30, consume_from="first", ahead=0) as consumer:
                message = await anext(consumer)
                for _ in range(3):
                    clock.now_ms += 20_000
                    assert await consumer.extend(message, 30)
                clock.now_ms += 20_000
                await consumer.ack(message)
                assert not await consumer.extend(message, 30)  # nothing is left of it
                await producer.send(Message("T", b"y"))
                message = await anext(consumer)
                assert (message.body, message.reconsume_times) == (b"y", 0)
                assert await consumer.extend(message, 30)
                clock.now_ms += 31_000
                message = await anext(consumer)
                assert (message.body, message.reconsume_times) == (b"y", 1)
                assert await consumer.extend(message, 30)  # in the topic of retries, too
                await consumer.ack(message)


async def test_closing_a_renewing_consumer_returns_its_messages(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        for body in (b"0", b"1", b"2"):
            await producer.send(Message("T", body))
        with trio.fail_after(60):
            async with PopConsumer(namesrv, "G", "T", invisible=3600, renew=True, consume_from="first") as first:
                done, _ = await anext(first), await anext(first)
                await first.ack(done)
            async with PopConsumer(namesrv, "G", "T", invisible=30) as second:
                assert {(await anext(second)).body for _ in range(2)} == {b"0", b"1", b"2"} - {done.body}


async def test_message_extended_twice_at_once_stays_hidden(namesrv: str) -> None:
    """The first extension makes the receipt of the second invalid. So it was with an extension during a renewal."""
    async with Producer(namesrv) as producer:
        await producer.send(Message("T", b"x"))
        with trio.fail_after(60):
            async with PopConsumer(namesrv, "G", "T", invisible=30, renew=True, consume_from="first") as consumer:
                message = await anext(consumer)
                answers: list[bool] = []

                async def extend() -> None:
                    answers.append(await consumer.extend(message, 30))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(extend)
                    nursery.start_soon(extend)
                assert answers == [True, True]
                await consumer.ack(message)


async def test_consumer_that_renews_a_message_prevents_redelivery(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        await producer.send(Message("T", b"x"))
        with trio.fail_after(60):
            async with (
                PopConsumer(namesrv, "G", "T", invisible=0.4, renew=True, consume_from="first", ahead=0) as consumer,
                PopConsumer(namesrv, "G", "T", invisible=30, ahead=0) as other,
            ):
                message = await anext(consumer)
                receipts = {message.receipt}
                while len(receipts) < 5:  # longer than two invisible times
                    await trio.sleep(0.01)
                    receipts.add(message.receipt)
                await consumer.ack(message)
                await producer.send(Message("T", b"y"))
                assert (await anext(other)).body == b"y"
