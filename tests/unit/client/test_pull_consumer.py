"""A consumer that is told what to read."""

from __future__ import annotations

import datetime as dt
from typing import Any

import anyio
import pytest

from mq.client import (
    BrokerError,
    ClientClosed,
    MessageQueue,
    NoRoute,
    PullConsumer,
    SubscriptionError,
    TopicNotFound,
    sql,
)
from tests.support.producing import ROUTE
from tests.support.waiting import until
from tests.unit.client.consuming import fill, offset_of, stored
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio

PULL = 11
COMMIT = 15
GET_ROUTE = 105
Q0, Q1 = (MessageQueue("T", "b-0", number) for number in range(2))


def puller_of(cluster: FakeCluster, **options: Any) -> PullConsumer:
    options.setdefault("consume_from", "first")
    return PullConsumer(cluster.namesrv, "cg", **options)


async def poll_all(consumer: PullConsumer, count: int, count_max: int = 32) -> list[bytes]:
    """The bodies of the next `count` messages."""
    bodies: list[bytes] = []
    with anyio.fail_after(60):
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.poll(min(count_max, count - len(bodies)))]
    return bodies


async def test_pull_consumer_reads_its_assignment_and_commits_only_on_request() -> None:
    async with FakeCluster.start(topics={"T": 2}) as cluster:
        bodies = fill(cluster, 200, queues=2)
        async with puller_of(cluster) as consumer:
            assert await consumer.queues("T") == [Q0, Q1]
            await consumer.assign([Q0])
            assert await poll_all(consumer, 70, count_max=40) == bodies[:140:2]
            assert consumer.positions == {Q0: 70}
            assert await consumer.committed(Q0) is None
            await poll_all(consumer, 30)  # pulls go on and tell nothing
            assert await consumer.poll(timeout=0) == []
            assert offset_of(cluster) is None
            await consumer.commit({Q0: 70})
            assert (await consumer.committed(Q0), offset_of(cluster)) == (70, 70)
        assert offset_of(cluster) == 70
        async with puller_of(cluster) as consumer:
            await consumer.assign([Q0, Q1])
            assert set(await poll_all(consumer, 130)) == {*bodies[140::2], *bodies[1::2]}
            await consumer.commit()
        assert (offset_of(cluster, 0), offset_of(cluster, 1)) == (100, 100)


async def test_poll_without_assignment_raises() -> None:
    async with FakeCluster.start(topics={"T": 2}) as cluster, puller_of(cluster) as consumer:
        with anyio.fail_after(60), pytest.raises(ValueError, match=r"no queue is assigned: call assign\(\)"):
            await consumer.poll()
        assert await consumer.poll(timeout=0.01) == []


async def test_poll_keeps_the_order_of_each_queue() -> None:
    async with FakeCluster.start(topics={"T": 2}) as cluster, puller_of(cluster) as consumer:
        fill(cluster, 20, queues=2)
        await consumer.assign([Q0, Q1])
        await until(lambda: cluster.leader.count(PULL) == 4)  # both are read ahead, and asked again
        messages = await consumer.poll(count_max=15, timeout=10)
        assert len(messages) == 15
        for queue in (Q0, Q1):
            offsets = [message.queue_offset for message in messages if message.queue == queue]
            assert offsets == list(range(len(offsets)))
        assert [len(await consumer.poll(count_max=15)), await consumer.poll(timeout=0.01)] == [5, []]


async def test_pull_consumer_seeks_to_the_requested_position() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, puller_of(cluster, consume_from="last") as consumer:
        for number in range(50):
            message = stored(b"%d" % number)
            message.born_timestamp_ms += number * 1000
            cluster.group.append("T", 0, message)
        await consumer.assign([Q0])
        assert consumer.position(Q0) == 50
        positions: list[tuple[Any, bytes]] = [
            (17, b"17"),
            ("first", b"0"),
            (dt.datetime.fromtimestamp(1_600_000_033, tz=dt.UTC), b"33"),
        ]
        for position, first in positions:
            await consumer.seek(Q0, position)
            assert await poll_all(consumer, 1) == [first]
        await consumer.seek(Q0, "last")
        assert await consumer.poll(timeout=0.02) == []
        cluster.group.append("T", 0, stored(b"new"))
        assert await poll_all(consumer, 1) == [b"new"]
        await consumer.seek(Q0, 1000)
        await until(lambda: consumer.position(Q0) == 51)  # the broker says that the queue ends there
        wrong: Any
        for wrong in (-1, 2**63, dt.datetime(2026, 1, 1)):  # noqa: DTZ001 - that is what is wrong
            with pytest.raises(ValueError, match=r"negative|above 9223|time zone"):
                await consumer.seek(Q0, wrong)
        with pytest.raises(ValueError, match="not assigned"):
            await consumer.seek(Q1, 0)


async def test_pull_consumer_filters_by_tags_and_expressions() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, puller_of(cluster) as consumer:
        for number in range(20):
            cluster.group.append("T", 0, stored(b"%d" % number, tags="odd" if number % 2 else "even"))
        await consumer.assign([Q0], tags="odd")
        assert await poll_all(consumer, 2) == [b"1", b"3"]
        await consumer.assign([Q0], tags="odd")  # the same goes on
        assert await poll_all(consumer, 1) == [b"5"]
        await consumer.assign([Q0], sql("TAGS = 'even'"))
        assert await poll_all(consumer, 2) == [b"0", b"2"]
        with pytest.raises(SubscriptionError):
            await consumer.assign([Q0], sql("TAGS ="))
        assert consumer.assignment == {Q0}
        await consumer.assign([])
        assert (consumer.assignment, await consumer.poll(timeout=0.01)) == (frozenset(), [])


async def test_ping_waits_for_a_leader_then_raises() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}, replicas=2) as cluster,
        puller_of(cluster, timeout=30) as consumer,
        puller_of(cluster, timeout=0.1) as hasty,
    ):
        fill(cluster, 3)
        await consumer.assign([Q0])
        await poll_all(consumer, 3)
        old, new = cluster.group.replicas
        await cluster.kill(old)
        with pytest.raises(NoRoute):
            await hasty.assign([Q0])
        assert hasty.assignment == frozenset()
        async with anyio.create_task_group() as tasks:
            [name_server] = cluster.name_servers
            asked = name_server.count(ROUTE)
            tasks.start_soon(consumer.commit)
            await until(lambda: name_server.count(ROUTE) > asked)  # in vain
            cluster.group.leader = new
        assert offset_of(cluster) == 3
        cluster.group.append("T", 0, stored(b"after"))
        assert await poll_all(consumer, 1) == [b"after"]


async def test_queue_of_an_unknown_broker_group_is_refused_within_two_seconds() -> None:
    """It was asked for until the timeout, and a consumer with a long one seemed to hang."""
    async with FakeCluster.start(topics={"T": 2}) as cluster:
        fill(cluster, 1)
        async with puller_of(cluster, timeout=3600.0) as consumer:
            await consumer.assign([Q0])
            with anyio.fail_after(2.0), pytest.raises(NoRoute) as raised:
                await consumer.assign([Q0, MessageQueue("T", "b-9", 0)])
            assert str(raised.value) == (
                "no broker for topic T: it is not in broker group 'b-9', only in b-0: "
                "assign those that queues('T') returns"
            )
            with (
                anyio.fail_after(2.0),
                pytest.raises(NoRoute, match="queue 2 cannot be read, only the 2 of b-0: assign"),
            ):
                await consumer.assign([Q0, MessageQueue("T", "b-0", 2)])
            assert consumer.assignment == {Q0}
            assert len(await consumer.poll()) == 1


async def test_refused_commit_is_an_error() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, puller_of(cluster) as consumer:
        await consumer.assign([Q0])
        cluster.leader.fail_codes[COMMIT] = 16
        with pytest.raises(BrokerError) as refused:
            await consumer.commit({Q0: 0})
        assert refused.value.code == 16
        with pytest.raises(TopicNotFound):
            await consumer.queues("Unknown")


async def test_queues_waits_until_name_servers_know_the_topic() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, puller_of(cluster) as consumer:

        async def create_later() -> None:
            await until(lambda: cluster.name_servers[0].count(GET_ROUTE) >= 2)
            cluster.group.topics["%DLQ%cg"] = 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create_later)
            assert await consumer.queues("%DLQ%cg") == [MessageQueue("%DLQ%cg", "b-0", 0)]


async def test_pull_consumer_works_only_within_its_block(cluster: FakeCluster) -> None:
    consumer = puller_of(cluster)
    with pytest.raises(ClientClosed):
        await consumer.poll()
    async with consumer:
        await consumer.assign([Q0])
        await until(lambda: cluster.leader.count(PULL) > 0)
        assert not cluster.leader.members["cg"]
    with pytest.raises(ClientClosed):
        await consumer.assign([Q0])


async def test_paused_queue_returns_nothing_until_resumed() -> None:
    async with FakeCluster.start(topics={"T": 2}) as cluster, puller_of(cluster) as consumer:
        fill(cluster, 10, queues=2)
        await consumer.assign([Q0, Q1])
        consumer.pause(Q0)
        assert await poll_all(consumer, 5) == [b"%03d" % number for number in range(1, 10, 2)]
        assert await consumer.poll(timeout=0.02) == []
        await consumer.seek(Q0, 2)  # which does not end the pause
        assert await consumer.poll(timeout=0.02) == []
        consumer.resume()
        assert await poll_all(consumer, 3) == [b"004", b"006", b"008"]
        consumer.pause()
        fill(cluster, 2, queues=2)
        assert await consumer.poll(timeout=0.02) == []
        consumer.resume(Q1)
        assert await poll_all(consumer, 1) == [b"001"]
