"""A consumer that lags reads from a follower, and comes back: three real replicas."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from mq.client import Admin, Message, Producer, PushConsumer
from mq.local_cluster import DevCluster, Ports
from mq.protocol.codes import ResponseCode
from tests.support.real_groups import connected
from tests.support.running_broker import SECONDS_MAX, Answer, Client

pytestmark = [pytest.mark.process, pytest.mark.slow]

MIB = 1024 * 1024
BODY_BYTES = 8000
MESSAGES = 600
SETTINGS = {"slow_consumer_bytes": str(MIB)}


async def fill(cluster: DevCluster) -> None:
    rng = random.Random(1)
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic("T", queues=1)
    async with Producer(cluster.namesrv) as producer:
        for first in range(0, MESSAGES, 100):
            batch = [
                Message("T", rng.randbytes(BODY_BYTES), properties={"n": str(number)})  # nothing to compress
                for number in range(first, first + 100)
            ]
            async with trio.open_nursery() as nursery:
                for message in batch:
                    nursery.start_soon(producer.send, message)


async def level(clients: list[Client]) -> None:
    """Wait until all replicas have applied the same log to its end."""
    with trio.fail_after(SECONDS_MAX):
        while True:
            tables = [await client.info() for client in clients]
            if len({table[name] for table in tables for name in ("raftmq.appliedIndex", "raftmq.lastIndex")}) == 1:
                return
            await trio.sleep(0.05)


async def sent_away(leader: Client) -> Answer:
    """The leader's answer to a pull from the beginning, once it has heard of a follower that can serve the next."""
    with trio.fail_after(SECONDS_MAX):
        while not int((answer := await leader.pull(maxMsgNums=32)).ext["suggestWhichBrokerId"]):  # noqa: ASYNC110
            await trio.sleep(0.05)
    return answer


async def test_follower_serves_the_backlog_and_the_leader_the_rest(tmp_path: Path) -> None:
    async with DevCluster.open(tmp_path, ports=Ports.free(3), settings=SETTINGS) as cluster, AsyncExitStack() as open_:
        await fill(cluster)
        leader = await cluster.leader()
        clients = {
            0 if node_id == leader else int(node_id[1:]) + 1: await open_.enter_async_context(
                connected(cluster, node_id)
            )
            for node_id in cluster.node_ids
        }
        await level(list(clients.values()))
        answer = await sent_away(clients[0])
        offset, broker_id = 0, 0
        seen: set[str] = set()
        asked: list[int] = []
        left: dict[int, int] = {}
        while True:
            asked.append(broker_id)
            assert answer.code == ResponseCode.SUCCESS, answer
            assert [record.queue_offset for record in answer.records] == list(
                range(offset, int(answer.ext["nextBeginOffset"]))
            )
            seen.update(record.properties["n"] for record in answer.records)
            offset = int(answer.ext["nextBeginOffset"])
            broker_id = int(answer.ext["suggestWhichBrokerId"])
            left[broker_id] = MESSAGES - offset
            if offset == MESSAGES:
                break
            answer = await clients[broker_id].pull(offset=offset, maxMsgNums=32)
        assert len(seen) == MESSAGES
        # First the leader says who, then that one serves, and at last the leader again.
        followers = [broker_id for broker_id in asked if broker_id]
        assert len(set(followers)) == 1
        assert asked == [0, *followers, *[0] * (len(asked) - 1 - len(followers))]
        assert len(followers) > MESSAGES // 32 / 2
        assert left[followers[0]] * BODY_BYTES < 0.7 * MIB  # half of the limit, and one answer


async def test_consumer_loses_nothing_when_its_follower_dies(tmp_path: Path) -> None:
    async with DevCluster.open(tmp_path, ports=Ports.free(3), settings=SETTINGS) as cluster:
        await fill(cluster)
        async with connected(cluster, await cluster.leader()) as client:
            serving = int((await sent_away(client)).ext["suggestWhichBrokerId"])
            received: set[str] = set()
            with trio.fail_after(SECONDS_MAX):
                async with PushConsumer(cluster.namesrv, group="G", consume_from="first") as consumer:
                    consumer.subscribe("T")
                    async for message in consumer:
                        received.add(message.properties["n"])
                        if len(received) == 50:
                            cluster.kill(f"n{serving - 1}")
                        if len(received) == MESSAGES:
                            break
            # Nobody is sent to the dead one any more.
            with trio.fail_after(SECONDS_MAX):
                while int((await client.pull(maxMsgNums=1)).ext["suggestWhichBrokerId"]) == serving:  # noqa: ASYNC110
                    await trio.sleep(0.1)
