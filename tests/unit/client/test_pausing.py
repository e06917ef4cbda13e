"""A push consumer that is told to pause, and streams of one that has its queues for itself."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from mq.client import Delivery, MessageQueue, PushConsumer, ReceivedMessage
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, fill, filled, offset_of, running
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio

PULL = 11
Q0, Q1 = (MessageQueue("T", "b-0", number) for number in range(2))


@pytest.mark.parametrize("ordered", [True, False])
async def test_paused_consumer_only_finishes_its_current_messages(ordered: bool) -> None:
    async with FakeCluster.start(topics={"T": 2}) as cluster:
        bodies = fill(cluster, 40, queues=2)
        consumer = consumer_of(cluster, ordered=ordered, commit_seconds=0.01, concurrency=1)
        handled: list[bytes] = []

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            handled.append(message.body)
            if len(handled) == 7:
                consumer.pause()
            await anyio.lowlevel.checkpoint()

        async with running(consumer):
            await until(lambda: len(handled) == 7)
            fill(cluster, 2, queues=2)  # ends what is held
            await anyio.sleep(0.05)  # pulls that were held have come back
            pulls = cluster.leader.count(PULL)
            fill(cluster, 2, queues=2)
            await anyio.sleep(0.05)  # another pull would be sent by then
            assert len(handled) == 7
            assert cluster.leader.count(PULL) == pulls
            consumer.resume(Q0)  # not enough after a pause of everything
            await anyio.sleep(0.02)  # a handler would be called by then
            assert len(handled) == 7
            consumer.resume()
            await until(lambda: (offset_of(cluster, 0), offset_of(cluster, 1)) == (22, 22))
        assert sorted(handled) == sorted([*bodies, b"000", b"001", b"000", b"001"])


async def test_queue_can_be_paused_before_its_assignment() -> None:
    async with FakeCluster.start(topics={"T": 2}) as cluster:
        consumer = consumer_of(cluster)
        consumer.subscribe("T")
        consumer.pause(Q0)
        fill(cluster, 20, queues=2)
        async with consumer:
            stream = aiter(consumer)
            with anyio.fail_after(60):
                first = [await anext(stream) for _ in range(10)]
            assert {message.queue for message in first} == {Q1}
            consumer.resume(Q0)
            with anyio.fail_after(60):
                assert {(await anext(stream)).queue for _ in range(10)} == {Q0}


async def next_delivery(consumer: PushConsumer, *, seconds: float = 60.0) -> Delivery | None:
    with anyio.move_on_after(seconds):
        return await anext(consumer.deliveries())
    return None


@pytest.mark.parametrize("exclusive", [True, False])
async def test_exclusive_consumer_delivers_one_message_per_queue_at_once(exclusive: bool) -> None:
    async with filled(3) as cluster:
        consumer = consumer_of(cluster, exclusive=exclusive)
        consumer.subscribe("T")
        async with consumer:
            first = await next_delivery(consumer)
            assert first is not None
            assert (await next_delivery(consumer, seconds=0.05) is None) == exclusive
            first.nack(0.01)
            again = await next_delivery(consumer)
            assert again is not None
            if exclusive:
                assert (again.message.queue_offset, again.message.attempt) == (0, 2)
                again.ack()
                following = await next_delivery(consumer)
                assert following is not None
                assert following.message.queue_offset == 1
