"""Several tasks that wait for messages of one consumer, and a consumer that is left while they do."""

from __future__ import annotations

import anyio
import pytest

from mq.client import ClientClosed, PullConsumer, ReceivedMessage
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, consuming, fill
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio

SECONDS = 60


async def test_every_waiting_task_gets_a_delivery() -> None:
    async with consuming() as (cluster, consumer):
        await consumer.wait_assigned()
        seen: list[bytes] = []

        async def take_one_and_hold_it() -> None:
            delivery = await anext(consumer.deliveries())
            seen.append(delivery.message.body)
            await anyio.sleep_forever()

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(take_one_and_hold_it)
                await anyio.wait_all_tasks_blocked()
                bodies = fill(cluster, 3)
                await until(lambda: len(seen) == 3)
                tasks.cancel_scope.cancel()
        assert sorted(seen) == bodies


async def test_every_task_that_polls_gets_something() -> None:
    async with (
        FakeCluster.start(topics={"T": 2}) as cluster,
        PullConsumer(cluster.namesrv, "G", consume_from="first") as consumer,
    ):
        await consumer.assign(await consumer.queues("T"))
        seen: list[bytes] = []

        async def poll() -> None:
            [message] = await consumer.poll(1)
            seen.append(message.body)

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(poll)
                await anyio.wait_all_tasks_blocked()
                bodies = fill(cluster, 3, queues=2)
        assert sorted(seen) == bodies


async def test_every_waiting_task_is_notified_of_assigned_queues() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, consumer_of(cluster) as consumer:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(consumer.wait_assigned)
                await anyio.wait_all_tasks_blocked()
                consumer.subscribe("T")


async def handle(_: ReceivedMessage) -> None:
    raise AssertionError("there is no message")


@pytest.mark.parametrize("way", ["messages", "deliveries", "run", "poll", "wait_assigned"])
async def test_waiting_calls_fail_when_the_consumer_is_closed(way: str) -> None:
    raised: list[str] = []
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        pushed, polled = consumer_of(cluster), PullConsumer(cluster.namesrv, "G")
        if way != "wait_assigned":
            pushed.on("T")(handle)
        consumer = polled if way == "poll" else pushed

        async def wait() -> None:
            try:
                match way:
                    case "messages":
                        await anext(aiter(pushed))
                    case "deliveries":
                        await anext(pushed.deliveries())
                    case "run":
                        await pushed.run()
                    case "wait_assigned":
                        await pushed.wait_assigned()
                    case _:
                        await polled.poll(timeout=600)
            except ClientClosed as error:
                raised.append(str(error))

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks, consumer:
                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
            await wait()  # not entered any more
        assert [text.endswith("is closed") for text in raised] == [True] * (1 if way == "run" else 2)
