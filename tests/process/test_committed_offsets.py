"""What a consumer commits, forwards or back, is where the next one begins, also after all replicas stopped at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mq.client import Admin, Message, MessageQueue, Producer, PullConsumer, SendResult
from mq.local_cluster import DevCluster, Ports

pytestmark = [pytest.mark.process, pytest.mark.slow]

MESSAGES = 100
QUEUE = MessageQueue("T", "broker-a", 0)


def consumer_of(cluster: DevCluster) -> PullConsumer:
    return PullConsumer(cluster.namesrv, "G", consume_from="last", timeout=30)


async def restart_all(cluster: DevCluster, *, kill: bool) -> None:
    """No replica runs at the moment when the first of them starts again."""
    if kill:
        for node_id in cluster.node_ids:
            cluster.kill(node_id)
    async with trio.open_nursery() as nursery:
        for node_id in cluster.node_ids:
            nursery.start_soon(cluster.stop, node_id)
    for node_id in cluster.node_ids:
        await cluster.start(node_id)
    await cluster.wait_ready()


async def read_from(consumer: PullConsumer, offset: int) -> None:
    """Read one message, which has to be that of ``offset``."""
    while not (messages := await consumer.poll(1)):
        pass
    assert [(each.queue_offset, each.body) for each in messages] == [(offset, b"%d" % offset)]


@pytest.mark.parametrize("kill", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["stopped", "killed"])
async def test_next_consumer_begins_at_the_committed_offset(tmp_path: Path, kill: bool) -> None:
    async with DevCluster.open(tmp_path, ports=Ports.free(3)) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("T", 1)
        async with Producer(cluster.namesrv) as producer:
            outcomes = await producer.send_many(Message("T", b"%d" % n) for n in range(MESSAGES))
            assert all(isinstance(each, SendResult) for each in outcomes)
        committed: int | None = None
        for target in (60, 10, 80, 0, 30):
            with trio.fail_after(120):
                async with consumer_of(cluster) as consumer:
                    assert await consumer.committed(QUEUE) == committed
                    await consumer.assign([QUEUE])
                    if committed is not None:
                        await read_from(consumer, committed)
                    await consumer.seek(QUEUE, target)
                    await read_from(consumer, target)
                    await consumer.commit()
                    committed = target + 1
                    assert await consumer.committed(QUEUE) == committed
                await restart_all(cluster, kill=kill)
        async with consumer_of(cluster) as consumer:
            with trio.fail_after(60):
                await consumer.assign([QUEUE])
                await read_from(consumer, committed or 0)
