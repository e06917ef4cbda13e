"""Queues added while a group is away, with more in them than is taken for young: the group reads them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.client import MessageQueue, PullConsumer, PushConsumer
from mq.protocol.codes import RequestCode
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.popping import popped
from tests.support.running_broker import Client, broker_client, running
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def nothing_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if more had come since than is in memory."""
    monkeypatch.setattr("mq.broker.consume.follower_reads.FollowerReads.in_memory", lambda self, position: False)


async def commit(client: Client, offset: int, group: str = "G") -> None:
    ext = {"consumerGroup": group, "topic": "T", "queueId": 0, "commitOffset": offset}
    assert (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


async def grown(client: Client) -> None:
    """A topic with one queue whose group G has an offset, then a second queue with messages."""
    await client.create_topic("T", 1)
    await client.fill(3)
    await commit(client, 3)
    await client.create_topic("T", 2)
    for number in range(4):
        assert (await client.send(body=b"%d" % number, e=1)).code == 0


async def queues_of(namesrv: str) -> list[MessageQueue]:
    """The queues of T, once the name server knows both."""
    async with PullConsumer(namesrv, "Other") as consumer:

        async def are_known() -> bool:
            return len(await consumer.queues("T")) == 2

        await until(are_known)
        return await consumer.queues("T")


async def test_query_for_younger_queue_is_answered_with_its_start(tmp_path: Path) -> None:
    async with broker_client(tmp_path) as client:
        await grown(client)
        for flag in (None, True, False):  # that of stock clients, and of a proxy
            assert await client.committed(queue_id=1, setZeroIfNotFound=flag) == 0
        assert await client.committed("New", queue_id=1) is None
        assert await client.committed("G", queue_id=2) is None
    async with running(tmp_path) as broker:
        assert await (await broker.connect()).committed(queue_id=1) == 0


async def test_pop_from_end_reads_younger_queue_from_start(client: Client) -> None:
    await grown(client)
    at_end: dict[str, Any] = {"initMode": 1, "queueId": 1}
    assert [each.body for each in await popped(client, consumerGroup="New", **at_end)] == [b"3"]
    assert [each.body for each in await popped(client, **at_end)] == [b"0", b"1", b"2", b"3"]
    assert await client.committed(queue_id=1) == 4


@pytest.mark.parametrize("ordered", [False, True])
async def test_members_read_younger_queue_from_start(tmp_path: Path, ordered: bool) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, broker):
        client = await broker.connect()
        await grown(client)
        await queues_of(namesrv)
        pushed: list[bytes] = []
        async with PushConsumer(namesrv, "G", consume_from="last", ordered=ordered) as consumer:
            consumer.subscribe("T")
            async for message in consumer:
                pushed.append(message.body)
                if len(pushed) == 4:
                    break
        assert sorted(pushed) == [b"0", b"1", b"2", b"3"]


async def test_pull_consumer_reads_younger_queue_from_start(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, broker):
        await grown(await broker.connect())
        queues = await queues_of(namesrv)
        async with PullConsumer(namesrv, "G", consume_from="last") as consumer:
            await consumer.assign(queues)
            found = await consumer.poll(timeout=10.0)
        assert [message.body for message in found] == [b"0", b"1", b"2", b"3"]


async def test_broadcast_member_reads_younger_queue_from_start(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path / "broker") as (namesrv, broker):
        client = await broker.connect()
        await client.fill(3)
        file = tmp_path / "offsets.json"
        async with PushConsumer(namesrv, "B", consume_from="first", broadcast=file) as consumer:
            consumer.subscribe("T")
            async for _ in consumer:
                break
        assert file.exists()
        await client.create_topic("T", 2)
        await client.fill(4, queue_id=1)
        await queues_of(namesrv)
        got: list[int] = []
        async with PushConsumer(namesrv, "B", consume_from="last", broadcast=file) as consumer:
            consumer.subscribe("T")
            async for message in consumer:
                if message.queue.queue_id == 1:
                    got.append(message.queue_offset)
                if len(got) == 4:
                    break
        assert got == [0, 1, 2, 3]


async def test_member_stores_its_first_position_in_empty_queue(tmp_path: Path) -> None:
    """So that its group reads everything that comes while it is away."""
    async with cluster_and_broker(tmp_path) as (namesrv, broker):
        client = await broker.connect()

        async def is_stored() -> bool:
            return await client.committed(setZeroIfNotFound=False) == 0

        async with PushConsumer(namesrv, "G", consume_from="last", commit_seconds=0.05) as consumer:
            consumer.subscribe("T")
            await until(is_stored)
