"""Broadcast consumers, allocation strategies and resets of consumers at work, against a real broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mq.client import Admin, Message, Producer, PushConsumer, ReceivedMessage
from mq.client.consume.allocation import allocate_in_circle
from mq.client.errors import OffsetsFileDamaged
from mq.local_cluster import DevCluster, Ports
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.wire import fastjson
from tests.support.running_broker import Client
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

QUEUES = 4


@asynccontextmanager
async def cluster_with(directory: Path, count: int) -> AsyncGenerator[tuple[DevCluster, list[bytes]]]:
    """A broker with messages in all queues of the topic T."""
    async with DevCluster.open(directory, ports=Ports.free(1)) as cluster:
        with trio.fail_after(60):
            async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
                await admin.create_topic("T", QUEUES)
                bodies = [b"%d" % number for number in range(count)]
                for body in bodies:
                    await producer.send(Message("T", body))
            yield cluster, bodies


@asynccontextmanager
async def raw_client(cluster: DevCluster) -> AsyncGenerator[Client]:
    host, _, port = cluster.address(await cluster.leader()).partition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        yield Client(stream)


@asynccontextmanager
async def working(consumer: PushConsumer, seen: list[ReceivedMessage]) -> AsyncGenerator[None]:
    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(message)

    consumer.subscribe("T")
    async with consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handle)
        yield
        consumer.stop()


async def seen_all(seen: list[ReceivedMessage], bodies: list[bytes]) -> None:
    await until(lambda: {message.body for message in seen} >= set(bodies))


async def test_broadcast_consumers_get_every_message_and_resume(tmp_path: Path) -> None:
    async with cluster_with(tmp_path / "cluster", 40) as (cluster, bodies):
        files = [tmp_path / "here" / f"{number}.json" for number in range(2)]

        def consumer(file: Path) -> PushConsumer:
            return PushConsumer(cluster.namesrv, "B", broadcast=file, consume_from="first")

        one: list[ReceivedMessage] = []
        two: list[ReceivedMessage] = []
        async with working(consumer(files[0]), one), working(consumer(files[1]), two):
            await seen_all(one, bodies)
            await seen_all(two, bodies)
            async with raw_client(cluster) as client:
                answer = await client.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "B"})
                assert b'"messageModel":"BROADCASTING"' in answer.body
        assert len(one) == len(two) == len(bodies)
        table = fastjson.parse(files[0].read_bytes())["offsetTable"]
        assert sum(table.values()) == len(bodies)
        async with raw_client(cluster) as client:  # nothing of it is the broker's business
            assert await client.committed("B", setZeroIfNotFound=False) is None

        async with Producer(cluster.namesrv) as producer:
            await producer.send(Message("T", b"new"))
        again: list[ReceivedMessage] = []
        async with working(consumer(files[0]), again):
            await seen_all(again, [b"new"])
        assert [message.body for message in again] == [b"new"]

        files[0].write_bytes(b'{"offsetTable":{{"topic":')
        with pytest.raises(OffsetsFileDamaged, match=r"0\.json"):
            async with consumer(files[0]):
                pass


async def test_members_share_the_queues_by_the_given_allocation(tmp_path: Path) -> None:
    async with cluster_with(tmp_path, 0) as (cluster, _):
        members = [PushConsumer(cluster.namesrv, "G", allocate=allocate_in_circle) for _ in range(2)]
        for member in members:
            member.subscribe("T")
        async with members[0], members[1]:
            await until(lambda: all(len(member.assignment) == QUEUES // 2 for member in members))
            first, second = sorted(sorted(queue.queue_id for queue in member.assignment) for member in members)
            assert (first, second) == ([0, 2], [1, 3])


@pytest.mark.parametrize("exclusive", [False, True])
async def test_running_consumer_is_reset_by_time(tmp_path: Path, exclusive: bool) -> None:
    async with cluster_with(tmp_path, 40) as (cluster, bodies):
        seen: list[ReceivedMessage] = []
        consumer = PushConsumer(cluster.namesrv, "G", consume_from="first", exclusive=exclusive, commit_seconds=0.05)
        async with working(consumer, seen):
            await seen_all(seen, bodies)
            await consumer.commit()
            middle = sorted(seen, key=lambda message: message.stored_at)[20].stored_at
            later = {message.body for message in seen if message.stored_at >= middle}
            seen.clear()
            async with raw_client(cluster) as client:
                ext = {"topic": "T", "group": "G", "timestamp": round(middle.timestamp() * 1000), "isForce": True}
                answer = await client.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
                assert answer.code == ResponseCode.SUCCESS, answer
                await seen_all(seen, sorted(later))
                assert {message.body for message in seen} == later

                status = await client.request(
                    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "G"}
                )
                ((client_id, table),) = fastjson.parse(status.body)["consumerTable"].items()
                assert (client_id, len(table)) == (consumer.client_id, QUEUES)
                ext = {"consumerGroup": "G", "clientId": client_id, "jstackEnable": False}
                info = fastjson.parse((await client.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)).body)
                assert len(info["mqTable"]) == QUEUES
                assert {row["locked"] for row in info["mqTable"].values()} == {exclusive}
                assert [each["topic"] for each in info["subscriptionSet"]] == ["T"]
