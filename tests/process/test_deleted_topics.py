"""A topic that is deleted and restored by commands, at real brokers that are killed in between."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mq.client import Admin, Message, MessageQueue, PopConsumer, Producer, PullConsumer, TopicNotFound
from mq.local_cluster import DevCluster, Ports
from tests.support.commands import raftmq
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]


async def command(cluster: DevCluster, *arguments: str) -> str:
    done = await raftmq(*arguments, "--namesrv", cluster.namesrv)
    assert done.code == 0, done
    return done.out


async def bodies(namesrv: str) -> list[bytes]:
    async with PullConsumer(namesrv, "reading", consume_from="first", timeout=30) as consumer:
        await consumer.assign(await consumer.queues("Orders"))
        return sorted([bytes(message.body) async for message in await consumer.read_to_end()])


async def test_deleted_topic_is_restored_after_leaders_were_killed(tmp_path: Path) -> None:
    """With its messages, the progress of a group that popped, and what was sent before and after."""
    async with (
        DevCluster.open(tmp_path, ports=Ports.free(3)) as cluster,
        Admin(cluster.namesrv) as admin,
    ):
        restorable = 7

        async def may_restore() -> bool:
            status = await cluster.status()
            return status is not None and all(
                int(each.figures.get("raftmq.formatLevel", "0")) >= restorable for each in status.replicas
            )

        await until(may_restore)
        await admin.create_topic("Orders", 2)
        async with Producer(cluster.namesrv) as producer:
            for number in range(20):
                await producer.send(Message("Orders", b"%02d" % number), timeout=30)
        popped: set[bytes] = set()
        async with PopConsumer(cluster.namesrv, "billing", "Orders", consume_from="first") as consumer:
            async for message in consumer:
                await consumer.ack(message)
                popped.add(bytes(message.body))
                if len(popped) == 8:
                    break
        identity = await admin.topic_identities("Orders")
        await command(cluster, "topic", "delete", "Orders", "--yes")

        first = await cluster.leader()
        cluster.kill(first)
        await until(lambda: not cluster.is_running(first))
        await cluster.leader()
        with pytest.raises(TopicNotFound):
            await admin.route("Orders")
        assert "Orders" in await command(cluster, "topic", "deleted")
        await command(cluster, "topic", "restore", "Orders")
        await cluster.start(first)
        await cluster.wait_ready()
        second = await cluster.leader()
        cluster.kill(second)
        await until(lambda: not cluster.is_running(second))
        await cluster.start(second)
        await cluster.wait_ready()

        assert await admin.topic_identities("Orders") == identity
        assert await bodies(cluster.namesrv) == [b"%02d" % number for number in range(20)]
        async with Producer(cluster.namesrv) as producer:
            sent = await producer.send(
                Message("Orders", b"20"), queue=MessageQueue("Orders", "broker-a", 0), timeout=30
            )
            assert sent.queue_offset == 10
        rest: set[bytes] = set()
        with trio.fail_after(90):
            async with PopConsumer(cluster.namesrv, "billing", "Orders", consume_from="first") as consumer:
                async for message in consumer:
                    await consumer.ack(message)
                    rest.add(bytes(message.body))
                    if len(rest | popped) == 21:
                        break
        assert not rest & popped, "what was acknowledged stays so"
