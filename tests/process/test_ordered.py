"""Ordered consumption by real processes' brokers, while leaders die: one owner per queue, offsets never go back."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from mq.client import Admin, ClientError, Message, MessageQueue, Producer, PushConsumer, ReceivedMessage
from mq.local_cluster import DevCluster, Ports
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.running_broker import Client
from tests.support.waiting import until, until_accepted, until_found

pytestmark = [pytest.mark.process, pytest.mark.slow]

QUEUES = 4
MESSAGES = 500
HANDLING_SECONDS = 0.003
LONG_HANDLING_SECONDS = 0.4
LONG_EVERY = 5
"""One message in so many takes long: then queues change hands while a handler is at work."""


class Handled(NamedTuple):
    """One run of a handler."""

    begun: float
    ended: float
    who: str
    offset: int


class Watch:
    """What handlers did and which offsets were stored, queue by queue."""

    def __init__(self) -> None:
        self.handled: dict[MessageQueue, list[Handled]] = defaultdict(list)
        self.stored: dict[int, list[int]] = defaultdict(list)
        self.bodies: set[bytes] = set()

    async def handle(self, who: str, message: ReceivedMessage) -> None:
        begun = trio.current_time()
        try:
            is_long = message.queue_offset % LONG_EVERY == LONG_EVERY - 1
            await trio.sleep(LONG_HANDLING_SECONDS if is_long else HANDLING_SECONDS)
        finally:
            ended = trio.current_time()
            self.handled[message.queue].append(Handled(begun, ended, who, message.queue_offset))
        self.bodies.add(message.body)

    async def ask_forever(self, cluster: DevCluster, node: str) -> None:
        """Which offsets are stored, again and again, as one replica tells them."""
        host, _, port = cluster.address(node).partition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            client = Client(stream)
            while True:
                for queue_id in range(QUEUES):
                    ext = {"consumerGroup": "G", "topic": "T", "queueId": queue_id, "setZeroIfNotFound": False}
                    opaque = await client.post(RequestCode.QUERY_CONSUMER_OFFSET, ext)
                    with trio.move_on_after(3):  # a replica that cannot know is silent
                        answer = await client.answer(opaque)
                        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
                        self.stored[queue_id].append(int(answer.ext.get("offset", -1)))
                await trio.sleep(0.02)

    def check_owners(self) -> None:
        """No two members were ever at work on one queue at the same time, and each went on in order."""
        for queue, runs in self.handled.items():
            runs.sort()
            for before, after in itertools.pairwise(runs):
                assert before.ended <= after.begun, (queue, before, after)
                if before.who == after.who:
                    # A message is repeated only where a queue was taken anew, never out of the middle.
                    assert after.offset <= before.offset + 1, (queue, before, after)
            seen = -1
            for run in runs:
                assert run.offset <= seen + 1, f"{queue}: offset {run.offset} was handled before {seen + 1}"
                seen = max(seen, run.offset)

    def check_offsets(self) -> None:
        for queue_id, offsets in self.stored.items():
            assert offsets == sorted(offsets), f"queue {queue_id}: stored offsets went back"
            assert len(set(offsets)) > 3, f"queue {queue_id}: nothing was seen"


@asynccontextmanager
async def consumer(cluster: DevCluster, watch: Watch, who: str) -> AsyncGenerator[PushConsumer]:
    """An exclusive member of the group, at work."""
    member = PushConsumer(
        cluster.namesrv, "G", exclusive=True, consume_from="first", commit_seconds=0.2, rebalance_seconds=2.0
    )
    member.subscribe("T")

    async def handle(message: ReceivedMessage) -> None:
        await watch.handle(who, message)

    async with member, trio.open_nursery() as nursery:
        nursery.start_soon(member.run, handle)
        yield member
        member.stop()


async def produce(cluster: DevCluster) -> None:
    async with Producer(cluster.namesrv) as producer:
        for number in range(MESSAGES):
            message = Message("T", b"%d" % number, sharding_key=str(number % 16))
            await until_accepted(partial(producer.send, message), ClientError)


async def test_queues_have_one_owner_despite_member_and_leader_changes(tmp_path: Path) -> None:
    watch = Watch()
    async with DevCluster.open(tmp_path, ports=Ports.free(3)) as cluster:
        with trio.fail_after(180):
            async with Admin(cluster.namesrv) as admin:
                await admin.create_topic("T", QUEUES)
            first = await cluster.leader()
            asked = next(node for node in cluster.node_ids if node != first)
            async with trio.open_nursery() as nursery:
                watching = trio.CancelScope()

                async def watch_offsets() -> None:
                    with watching:
                        await watch.ask_forever(cluster, asked)

                nursery.start_soon(watch_offsets)
                nursery.start_soon(produce, cluster)
                async with consumer(cluster, watch, "a") as one:
                    await one.wait_assigned()
                    async with consumer(cluster, watch, "b") as two:
                        await two.wait_assigned()
                        await trio.sleep(0.5)  # both work for a while
                        cluster.kill(first)
                        await leader_other_than(cluster, first)
                        came_and_went = False
                        while not came_and_went or len(watch.bodies) < MESSAGES // 2:
                            async with consumer(cluster, watch, "c") as three:
                                await three.wait_assigned()
                                await trio.sleep(0.3)
                            came_and_went = True
                            await trio.sleep(0.3)
                        # c has come and gone, and given its queues back each time.
                    await cluster.start(first)
                    await cluster.wait_ready()
                    await until(lambda: len(watch.bodies) >= MESSAGES, seconds=180)
                await trio.sleep(0.5)  # the others have the queues again for a while
                watching.cancel()
        watch.check_owners()
        watch.check_offsets()
        assert {run.who for runs in watch.handled.values() for run in runs} == {"a", "b", "c"}


async def test_lock_and_its_fence_outlive_the_leader(tmp_path: Path) -> None:
    """Whoever lost its queue before the failover commits nothing after it either."""
    async with DevCluster.open(tmp_path, ports=Ports.free(3)) as cluster:
        with trio.fail_after(60):
            async with Admin(cluster.namesrv) as admin:
                await admin.create_topic("T", 1)
            watch = Watch()
            async with consumer(cluster, watch, "a") as owner:
                await owner.wait_assigned()
                first = await cluster.leader()
                cluster.kill(first)
                new = await leader_other_than(cluster, first)
                host, _, port = cluster.address(new).partition(":")
                async with await trio.open_tcp_stream(host, int(port)) as stream:
                    client = Client(stream)
                    await client.heartbeat("other", "G")
                    body = b'{"clientId":"other","consumerGroup":"G","mqSet":[%s]}' % (
                        b'{"brokerName":"broker-a","queueId":0,"topic":"T"}'
                    )
                    answer = await client.request(RequestCode.LOCK_BATCH_MQ, body=body)
                    assert answer.body == b'{"lockOKMQSet":[]}', answer
                    ext = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 7}
                    answer = await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
                    assert answer.code == ResponseCode.NO_PERMISSION, answer
            # The owner has left, and its queue is free at once.
            async with consumer(cluster, watch, "b") as heir:
                with trio.fail_after(30):
                    await heir.wait_assigned()


async def leader_other_than(cluster: DevCluster, dead: str) -> str:
    async def look() -> str | None:
        node = await cluster.leader()
        return node if node != dead else None

    return await until_found(look)
