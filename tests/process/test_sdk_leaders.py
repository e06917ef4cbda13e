"""The SDK while leadership moves: it goes to the new leader at once, and pull consumers read and commit on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mq.client import Admin, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from mq.local_cluster import DevCluster, Ports
from tests.support.real_groups import transfer
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

QUEUES = 2


@asynccontextmanager
async def a_cluster(directory: Path) -> AsyncGenerator[tuple[DevCluster, Admin]]:
    """With topic T and two minutes for the test."""
    with trio.fail_after(120):
        async with (
            DevCluster.open(directory, ports=Ports.free(3), group="broker-a") as cluster,
            Admin(cluster.namesrv) as admin,
        ):
            await admin.create_topic("T", QUEUES)
            yield cluster, admin


async def forwarded(admin: Admin, address: str) -> int:
    """How many sends and others the replica has handed to its leader."""
    table = await admin.broker_runtime(address)
    return int(table["raftmq.forwardedSends"]) + int(table["raftmq.forwardedOffsets"])


async def the_route_leads_to_the_leader(cluster: DevCluster, admin: Admin) -> bool:
    """On a busy machine, an election may follow the transfer."""
    route = await admin.route("T")
    return route.leader_address("broker-a") == cluster.address(await cluster.leader())


async def test_answer_after_a_transfer_names_the_new_leader(tmp_path: Path) -> None:
    received: list[ReceivedMessage] = []

    async def note(message: ReceivedMessage) -> None:
        received.append(message)

    async with a_cluster(tmp_path) as (cluster, admin), Producer(cluster.namesrv) as producer:
        consumer = PushConsumer(cluster.namesrv, "G", consume_from="first", commit_seconds=0.1)
        consumer.subscribe("T")
        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, note)
            results = [await producer.send(Message("T", b"x")) for _ in range(10)]
            old = await cluster.leader()
            new = next(node for node in ("n0", "n1", "n2") if node != old)
            await transfer(cluster, new)
            results += [await producer.send(Message("T", b"x")) for _ in range(10)]
            await until(lambda: the_route_leads_to_the_leader(cluster, admin))
            # Producer and consumer look at the routes again after a pause, and offsets are stored later.
            with trio.fail_after(60):
                asked = True
                while asked:
                    before = await forwarded(admin, cluster.address(old))
                    for _ in range(25):
                        results.append(await producer.send(Message("T", b"x")))
                        await trio.sleep(0.02)
                    asked = await forwarded(admin, cluster.address(old)) != before
            await until(lambda: len({message.message_id for message in received}) >= len(results))
            consumer.stop()
        assert not any(result.maybe_duplicated for result in results)
        assert {message.message_id for message in received} == {result.message_id for result in results}


async def test_pull_consumer_reads_and_commits_over_the_death_of_a_leader(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as (cluster, _), Producer(cluster.namesrv, timeout=30) as producer:
        sent = [(await producer.send(Message("T", b"%d" % number))).message_id for number in range(100)]
        async with PullConsumer(cluster.namesrv, "G", consume_from="first", timeout=30) as consumer:
            queues = await consumer.queues("T")
            await consumer.assign(queues)
            read = await consumer.poll(50, timeout=30)
            cluster.kill(await cluster.leader())
            await consumer.commit()
            at = consumer.positions
            assert {queue: await consumer.committed(queue) for queue in queues} == at
            sent += [(await producer.send(Message("T", b"after"))).message_id for _ in range(10)]
            while len({message.message_id for message in read}) < 110:
                read += await consumer.poll(timeout=30)
            for queue in queues:
                offsets = [message.queue_offset for message in read if message.queue == queue]
                assert offsets == list(range(len(offsets))), "nothing twice, nothing left out"
        assert {message.message_id for message in read} == set(sent)
        async with PullConsumer(cluster.namesrv, "G", timeout=30) as consumer:
            await consumer.assign(queues)
            assert consumer.positions == at, "the offsets are those that were committed"
