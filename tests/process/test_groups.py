"""Several broker groups: `raftmq dev --groups`, and producers that use all of them without being told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio

from mq.client import Admin, Message, Producer, PullConsumer, SendResult
from mq.local_cluster import DevCluster, Ports
from mq.local_cluster.groups import count_groups, open_groups

pytestmark = [pytest.mark.process, pytest.mark.slow]

QUEUES = 2


async def send(producer: Producer, count: int) -> list[SendResult]:
    return [await producer.send(Message("T", b"%d" % number)) for number in range(count)]


def by_group(results: list[SendResult]) -> Counter[str]:
    return Counter(result.queue.broker_name for result in results)


async def wait_routes(producer: Producer, groups: int) -> None:
    """Until the producer is told of a topic in so many groups."""
    while len({queue.broker_name for queue in await producer.queues("T")}) < groups:  # noqa: ASYNC110
        await trio.sleep(0.05)


async def test_producer_uses_all_groups_and_survives_losing_one(tmp_path: Path) -> None:
    with trio.fail_after(120):
        async with open_groups(tmp_path, 3, nodes=1, ports=Ports.free(1, groups=3)) as clusters:
            namesrv = clusters[0].namesrv
            async with Admin(namesrv) as admin:
                await admin.create_topic("T", QUEUES)
            async with Producer(namesrv, timeout=20) as producer:
                await wait_routes(producer, 3)
                # One connection is up before the others, and messages do not wait for those.
                while len(by_group(await send(producer, 6))) < 3:
                    pass
                sent = await send(producer, 60)
                assert by_group(sent) == {"broker-a": 20, "broker-b": 20, "broker-c": 20}
                clusters[1].kill("n0")
                while_down = await send(producer, 60)
                assert set(by_group(while_down[10:])) == {"broker-a", "broker-c"}
                await clusters[1].start_all()
                await clusters[1].wait_ready()
                while "broker-b" not in by_group(await send(producer, 6)):  # noqa: ASYNC110
                    await trio.sleep(0.1)
            assert len(await read_all(clusters, sent + while_down)) >= 120


async def test_just_killed_replica_is_restarted_after_its_exit(tmp_path: Path) -> None:
    async with DevCluster.open(tmp_path, nodes=1, ports=Ports.free(1)) as cluster:
        killed = cluster.pid("n0")
        cluster.kill("n0")
        await cluster.start_all()
        await cluster.wait_ready()
        assert cluster.pid("n0") != killed


async def read_all(clusters: list[DevCluster], sent: list[SendResult]) -> set[str]:
    """The ids of everything in the topic, which has at least what was ``sent``."""
    wanted = {result.message_id for result in sent}
    seen = set[str]()
    async with PullConsumer(clusters[0].namesrv, "G", consume_from="first", timeout=30) as consumer:
        queues = await consumer.queues("T")
        assert len(queues) == QUEUES * len(clusters)
        await consumer.assign(queues)
        while not wanted <= seen:
            seen |= {message.message_id for message in await consumer.poll(timeout=30)}
    return seen


async def test_directory_reopens_its_groups_and_accepts_more(tmp_path: Path) -> None:
    ports = Ports.free(1, groups=2)
    with trio.fail_after(120):
        async with open_groups(tmp_path, 1, nodes=1, ports=ports) as [cluster], Admin(cluster.namesrv) as admin:
            await admin.create_topic("T", QUEUES)
        async with open_groups(tmp_path, 2, nodes=1) as clusters, Admin(clusters[0].namesrv) as admin:
            await admin.create_topic("T", QUEUES)
            async with Producer(clusters[0].namesrv, timeout=20) as producer:
                await wait_routes(producer, 2)
                sent = await send(producer, 10)
                while len(by_group(sent)) < 2:
                    sent += await send(producer, 2)
        assert count_groups(tmp_path) == 2
        async with open_groups(tmp_path, nodes=1) as clusters:
            assert [cluster.group for cluster in clusters] == ["broker-a", "broker-b"]
            assert clusters[1].ports == ports.of_group(1)
            await read_all(clusters, sent)
