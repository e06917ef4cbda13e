"""What the tests of consumers share: a topic with messages, a consumer that is quick to retry."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from mq.client import PushConsumer, ReceivedMessage, RemotingSettings
from mq.client.limits import TEST_MIN
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.fake_messages import StoredMessage


def stored(body: bytes, tags: str | None = None) -> StoredMessage:
    properties = f"UNIQ_KEY\x01{body.decode()}\x02" + (f"TAGS\x01{tags}\x02" if tags else "")
    return StoredMessage(body, properties, sys_flag=0, flag=0, born_timestamp_ms=1_600_000_000_000)


def fill(cluster: FakeCluster, count: int, topic: str = "T", queues: int = 1) -> list[bytes]:
    bodies = [b"%03d" % number for number in range(count)]
    for number, body in enumerate(bodies):
        cluster.group.append(topic, number % queues, stored(body))
    return bodies


IMPATIENT = RemotingSettings(limits=TEST_MIN)
"""It warns at once of what it waits for."""


def consumer_of(cluster: FakeCluster, group: str = "cg", **options: Any) -> PushConsumer[Any]:
    options.setdefault("consume_from", "first")
    options.setdefault("retry_delay", 0.02)
    return PushConsumer(cluster.namesrv, group, **options)


@asynccontextmanager
async def filled(count: int, *, queues: int = 1) -> AsyncGenerator[FakeCluster]:
    """A cluster whose topic T has `count` messages."""
    async with FakeCluster.start(topics={"T": queues}) as cluster:
        fill(cluster, count, queues=queues)
        yield cluster


@asynccontextmanager
async def consuming(
    count: int = 0, *, queues: int = 1, replicas: int = 1, **options: Any
) -> AsyncGenerator[tuple[FakeCluster, PushConsumer[Any]]]:
    """A cluster whose topic T has `count` messages, and a consumer with these `options` that subscribes to it."""
    async with (
        FakeCluster.start(replicas=replicas, topics={"T": queues}) as cluster,
        consumer_of(cluster, **options) as consumer,
    ):
        fill(cluster, count, queues=queues)
        consumer.subscribe("T")
        yield cluster, consumer


@asynccontextmanager
async def running(consumer: PushConsumer[Any]) -> AsyncGenerator[None]:
    async with consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.run)
        yield
        consumer.stop()


async def take(consumer: PushConsumer[Any], count: int) -> list[ReceivedMessage]:
    """The next `count` messages; the last one stays unacknowledged."""
    taken: list[ReceivedMessage] = []
    with anyio.fail_after(60):
        async for message in consumer:
            taken.append(message)
            if len(taken) == count:
                break
    return taken


def offset_of(cluster: FakeCluster, queue_id: int = 0, group: str = "cg") -> int | None:
    return cluster.group.offsets.get((group, "T", queue_id))
