"""Members of a group: shared fairly, resumed where it ended, through new leaders and departures of every kind."""

from __future__ import annotations

import asyncio
import json

import anyio
import pytest

from mq.client import MessageQueue, ReceivedMessage, RemotingSettings
from tests.support.waiting import until
from tests.unit.client.consuming import IMPATIENT, consumer_of, consuming, fill, filled, offset_of, stored, take
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio

PULL = 11
UPDATE_OFFSET = 15
UNREGISTER = 35


# The group.


async def test_leaving_member_returns_its_share_of_the_queues() -> None:
    async with FakeCluster.start(topics={"T": 4}) as cluster, consumer_of(cluster) as first:
        first.subscribe("T")
        await until(lambda: len(first.assignment) == 4)
        async with consumer_of(cluster) as second:
            second.subscribe("T")
            await until(lambda: len(first.assignment) == len(second.assignment) == 2)
            assert first.assignment | second.assignment == {MessageQueue("T", "b-0", number) for number in range(4)}
        await until(lambda: len(first.assignment) == 4)


async def test_handover_stores_the_offsets_and_loses_nothing() -> None:
    async with FakeCluster.start(topics={"T": 4}) as cluster, consumer_of(cluster) as first:
        fill(cluster, 40, queues=4)
        first.subscribe("T")
        stream = first.deliveries()
        for _ in range(40):
            (await anext(stream)).ack()
        async with consumer_of(cluster) as second:
            second.subscribe("T")
            await until(lambda: len(second.assignment) == 2)
            lost = second.assignment
            await until(lambda: all(offset_of(cluster, queue.queue_id) == 10 for queue in lost))
            assert all(second.positions[queue] <= 10 for queue in lost)


async def test_queues_are_spread_over_all_broker_groups() -> None:
    async with FakeCluster.start(groups=2, topics={"T": 2}) as cluster, consumer_of(cluster) as consumer:
        for group in cluster.groups.values():
            for number in range(2):
                group.append("T", number, stored(b"x"))
        consumer.subscribe("T")
        messages = await take(consumer, 4)
        assert {message.queue for message in messages} == consumer.assignment
        assert len(consumer.assignment) == 4


async def test_unsubscribing_gives_the_queues_up_and_stores_their_offsets() -> None:
    async with consuming(3) as (cluster, consumer):
        stream = consumer.deliveries()
        for _ in range(2):
            (await anext(stream)).ack()
        consumer.unsubscribe("T")
        await until(lambda: not consumer.assignment and offset_of(cluster) == 2)


async def test_offsets_are_stored_from_time_to_time() -> None:
    async with consuming(3, commit_seconds=0.02) as (cluster, consumer):
        stream = consumer.deliveries()
        (await anext(stream)).ack()
        await until(lambda: offset_of(cluster) == 1)
        updates = [request for request in cluster.leader.received if request.code == 15]
        assert not any(request.oneway for request in updates)
        stored_offsets = [int(request.ext["commitOffset"]) for request in updates]
        assert stored_offsets == sorted(set(stored_offsets)), "an offset that did not change was stored again"


async def test_pulls_declare_forward_only_offsets() -> None:
    """Else a broker takes a new owner that begins before the former one's last commit for one that has gone back."""
    async with consuming(3) as (cluster, consumer):
        await take(consumer, 3)
        pulls = [request.ext for request in cluster.leader.received if request.code == 11]
        assert {ext.get("forwardOnly") for ext in pulls} == {"true"}


async def test_refused_offset_update_is_retried() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        consumer_of(cluster, commit_seconds=0.01) as consumer,
    ):
        fill(cluster, 3)
        cluster.leader.fail_codes[UPDATE_OFFSET] = 1
        consumer.subscribe("T")
        await take(consumer, 3)
        await until(lambda: cluster.leader.count(UPDATE_OFFSET) >= 3)
        assert offset_of(cluster) is None
        del cluster.leader.fail_codes[UPDATE_OFFSET]
        await until(lambda: offset_of(cluster) == 2)


async def test_offset_commits_find_a_new_leader_while_followers_serve_pulls() -> None:
    """Followers serve pulls, so nothing fails when the known route has no leader; offsets must still get through."""
    async with consuming(2, replicas=2, commit_seconds=0.02) as (cluster, consumer):
        stream = consumer.deliveries()
        (await anext(stream)).ack()
        await until(lambda: offset_of(cluster) == 1)
        leader, cluster.group.leader = cluster.leader, None
        assert consumer._core is not None
        route = await consumer._core.route("T", refresh=True)
        assert route.leader_address(cluster.group.name) is None
        cluster.group.leader = leader
        (await anext(stream)).ack()
        with anyio.fail_after(15):  # the route is refreshed by itself every 30 s
            await until(lambda: offset_of(cluster) == 2)


async def test_leaving_consumer_unregisters(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("T")
        await consumer.wait_assigned()
        assert list(cluster.leader.members["cg"]) == [consumer.client_id]
    assert not cluster.leader.members["cg"]


async def test_cancelled_consumer_stores_offsets_and_unregisters() -> None:
    async with filled(6, queues=2) as cluster:
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if len(seen) == 6:
                consumed.set()

        async def consume() -> None:
            async with consumer_of(cluster) as consumer:
                consumer.subscribe("T")
                await consumer.run(handle)

        consumed = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            with anyio.fail_after(60):
                await consumed.wait()
            tasks.cancel_scope.cancel()
        assert (offset_of(cluster, 0), offset_of(cluster, 1)) == (3, 3)
        assert cluster.leader.count(UNREGISTER) == 1
        assert not cluster.leader.members["cg"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_ctrl_c_under_asyncio_stores_the_offsets() -> None:
    """It cancels the main task by asyncio's own means, which know nothing of cancel scopes."""
    async with filled(3) as cluster:

        async def consume() -> None:
            async with consumer_of(cluster) as consumer:
                consumer.subscribe("T")
                async for message in consumer:
                    if message.queue_offset == 2:
                        at_the_last.set()

        at_the_last = anyio.Event()
        main = asyncio.create_task(consume())
        await at_the_last.wait()
        main.cancel()
        with pytest.raises(asyncio.CancelledError):
            await main
        assert offset_of(cluster) == 3
        assert not cluster.leader.members["cg"]


@pytest.mark.slow
async def test_leaving_an_unresponsive_broker_takes_seconds_at_most() -> None:
    async with filled(1) as cluster:
        async with consumer_of(cluster, remoting=IMPATIENT) as consumer:
            consumer.subscribe("T")
            await take(consumer, 1)
            cluster.leader.mute = True
            begun = anyio.current_time()
        assert anyio.current_time() - begun < 30


# Failover.


async def test_new_leader_is_followed_without_loss() -> None:
    async with FakeCluster.start(replicas=2, topics={"T": 1}) as cluster, consumer_of(cluster) as consumer:
        bodies = fill(cluster, 50)
        consumer.subscribe("T")
        stream = consumer.deliveries()
        seen = []
        for _ in range(50):
            delivery = await anext(stream)
            seen.append(delivery.message.body)
            delivery.ack()
        old, new = cluster.group.replicas
        await cluster.kill(old)
        cluster.group.leader = new
        cluster.group.append("T", 0, stored(b"after"))
        with anyio.fail_after(60):
            delivery = await anext(stream)
        assert seen == bodies
        assert delivery.message.body == b"after"
        assert delivery.message.queue_offset == 50
        delivery.ack()
        await consumer.commit()
        assert offset_of(cluster) == 51


async def test_pull_waiting_at_a_deposed_leader_moves_to_its_successor() -> None:
    """A stopped process keeps its connections open; only the route tells that it does not lead any more."""
    async with consuming(replicas=2, remoting=RemotingSettings(route_refresh_seconds=0.02)) as (cluster, _):
        old, new = cluster.group.replicas
        await until(lambda: old.count(PULL) == 1)
        cluster.group.leader = new
        await until(lambda: new.count(PULL) == 1)


async def test_consumers_repeat_their_heartbeats() -> None:
    async with (
        FakeCluster.start(replicas=2, topics={"T": 1}) as cluster,
        consumer_of(cluster, remoting=RemotingSettings(heartbeat_seconds=0.02)) as consumer,
    ):
        consumer.subscribe("T", "A || B")
        await until(lambda: all(broker.count(34) >= 3 for broker in cluster.group.replicas))
        beat = json.loads([request for request in cluster.leader.received if request.code == 34][-1].body)
        [subscription] = beat["consumerDataSet"][0]["subscriptionDataSet"]
        assert (subscription["topic"], subscription["subString"]) == ("T", "A || B")
        assert subscription["codeSet"] == [65, 66]


async def test_new_member_that_the_broker_has_forgotten_keeps_its_queues() -> None:
    async with consuming(rebalance_seconds=0.02) as (cluster, consumer):
        queues = await consumer.wait_assigned()
        connection = cluster.leader.members["cg"].pop(consumer.client_id)
        cluster.leader.members["cg"]["somebody else"] = connection
        lists = cluster.leader.count(38)
        await until(lambda: consumer.client_id in cluster.leader.members["cg"])
        assert consumer.assignment == queues
        assert cluster.leader.count(38) > lists


async def test_consumer_resumes_pulling_from_a_restarted_broker() -> None:
    async with consuming() as (cluster, consumer):
        await consumer.wait_assigned()
        broker = cluster.leader
        await cluster.kill(broker)
        await cluster.start_broker(broker)
        cluster.group.leader = broker
        fill(cluster, 1)
        assert [message.body for message in await take(consumer, 1)] == [b"000"]


async def test_offset_below_the_first_kept_message_moves_up() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 10)
        cluster.group.offsets["cg", "T", 0] = 2
        cluster.group.min_offsets["T", 0] = 6
        consumer.subscribe("T")
        assert [message.queue_offset for message in await take(consumer, 4)] == [6, 7, 8, 9]


async def test_member_without_queues_refreshes_the_route_when_its_leader_is_gone() -> None:
    """Nothing but rebalancing looks at the route of a topic of which no queue is ours."""
    async with (
        FakeCluster.start(replicas=2, topics={"T": 1}) as cluster,
        consumer_of(cluster, remoting=RemotingSettings(route_refresh_seconds=3600)) as consumer,
    ):
        fill(cluster, 1)
        old, new = cluster.group.replicas
        old.fail_codes[14] = 1
        consumer.subscribe("T")
        await until(lambda: old.count(14) > 0)
        await cluster.kill(old)
        cluster.group.leader = new
        assert [message.body for message in await take(consumer, 1)] == [b"000"]


async def test_route_that_cannot_be_refreshed_is_still_used() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 1)
        cluster.leader.fail_codes[14] = 1
        consumer.subscribe("T")
        await until(lambda: cluster.leader.count(14) > 0)
        await cluster.name_servers[0].stop()
        del cluster.leader.fail_codes[14]
        assert [message.body for message in await take(consumer, 1)] == [b"000"]
