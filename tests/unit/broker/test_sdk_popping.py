"""The SDK's pop consumer: a name server and a broker, real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mq.client import Message, PopConsumer, Producer, TopicNotFound
from tests.unit.broker.test_sdk_lookups import cluster

pytestmark = pytest.mark.trio


async def test_popped_messages_are_acknowledged_or_come_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as namesrv, Producer(namesrv) as producer:
        for number in range(60):
            await producer.send(Message("T", b"%d" % number, tags="a"))
        await producer.send(Message("T", b"other", tags="b"))
        seen: list[bytes] = []
        with trio.fail_after(20):
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


async def test_what_nobody_acknowledges_comes_to_somebody_else(tmp_path: Path) -> None:
    async with cluster(tmp_path) as namesrv, Producer(namesrv) as producer:
        await producer.send(Message("T", b"x"))
        with trio.fail_after(20):
            async with PopConsumer(namesrv, "G", "T", invisible=0.3, consume_from="first") as first:
                message = await anext(first)
                assert message.reconsume_times == 0
            async with PopConsumer(namesrv, "G", "T", invisible=30) as second:
                message = await anext(second)
                assert (message.body, message.reconsume_times) == (b"x", 1)
                await second.ack(message)


async def test_what_cannot_be_popped_is_said(tmp_path: Path) -> None:
    async with cluster(tmp_path) as namesrv:
        with pytest.raises(TopicNotFound):
            async with PopConsumer(namesrv, "G", "Nowhere"):
                pass
        for wrong in ({"invisible": 0}, {"consume_from": "now"}, {"ahead": 0}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                PopConsumer(namesrv, "G", "T", **wrong)  # type: ignore[arg-type]
