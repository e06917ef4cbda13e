"""Administration through the wire."""

from __future__ import annotations

import datetime as dt

import pytest

from mq.client import Admin, BrokerError, Message, MessageQueue, NoRoute, Producer, PushConsumer, TopicNotFound
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.namesrv import ClusterInfo
from tests.unit.client.consuming import IMPATIENT
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio


async def test_created_topic_exists_on_every_group_on_return() -> None:
    async with FakeCluster.start(groups=2) as cluster, Admin(cluster.namesrv) as admin:
        route = await admin.create_topic("T", queues=3)
        assert [group.topics for group in cluster.groups.values()] == [{"T": 3}, {"T": 3}]
        assert len(route.write_queues) == 6
        assert await admin.topics() == ["T"]
        assert await admin.route("T") == route


async def test_topic_may_be_created_on_one_group() -> None:
    async with FakeCluster.start(groups=2) as cluster, Admin(cluster.namesrv) as admin:
        route = await admin.create_topic("T", queues=1, broker="b-1")
        assert route.write_queues == (MessageQueue("T", "b-1", 0),)


async def test_creating_needs_a_leader_in_each_group() -> None:
    async with FakeCluster.start(groups=2) as cluster, Admin(cluster.namesrv, remoting=IMPATIENT) as admin:
        cluster.groups["b-1"].leader = None
        with pytest.raises(NoRoute, match="b-1 has no leader"):
            await admin.create_topic("T")
        with pytest.raises(NoRoute, match="no broker group matches"):
            await admin.create_topic("T", cluster="other")


async def test_creating_waits_for_the_election_of_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeCluster.start(groups=2) as cluster, Admin(cluster.namesrv) as admin:
        group = cluster.groups["b-1"]
        elected, group.leader = group.leader, None
        seen: list[ClusterInfo] = []

        async def elect_after_two_answers() -> ClusterInfo:
            seen.append(await Admin.cluster_info(admin))
            if len(seen) == 2:
                group.leader = elected
            return seen[-1]

        monkeypatch.setattr(admin, "cluster_info", elect_after_two_answers)
        await admin.create_topic("T", queues=3)
        assert len(seen) == 3
        assert group.topics == {"T": 3}


async def test_topic_creation_is_sent_to_the_new_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the moment of a failover: name servers still know the leader that has just died."""
    async with FakeCluster.start(replicas=2) as cluster, Admin(cluster.namesrv) as admin:
        old, group = cluster.leader, cluster.group
        info = Admin.cluster_info
        asked = 0

        async def told_later() -> ClusterInfo:
            nonlocal asked
            asked += 1
            group.leader = old if asked <= 2 else group.replicas[1]
            return await info(admin)

        await cluster.kill(old)
        monkeypatch.setattr(admin, "cluster_info", told_later)
        await admin.create_topic("T", queues=3)
        assert group.topics == {"T": 3}
        assert asked == 3


async def test_creating_waits_for_a_leader_that_does_not_serve_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeCluster.start() as cluster, Admin(cluster.namesrv) as admin:
        cluster.leader.fail_codes[17] = ResponseCode.SERVICE_NOT_AVAILABLE
        info, asked = Admin.cluster_info, list[str]()

        async def serves_later() -> ClusterInfo:
            asked.append("who leads?")
            if len(asked) == 3:
                del cluster.leader.fail_codes[17]
            return await info(admin)

        monkeypatch.setattr(admin, "cluster_info", serves_later)
        await admin.create_topic("T")
        assert "T" in cluster.group.topics
        assert len(asked) == 3


async def test_creating_does_not_wait_for_an_election_for_ever() -> None:
    async with FakeCluster.start() as cluster, Admin(cluster.namesrv, remoting=IMPATIENT) as admin:
        cluster.leader.fail_codes[17] = ResponseCode.SERVICE_NOT_AVAILABLE
        with pytest.raises(BrokerError) as refused:
            await admin.create_topic("T")
        assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_error_before_the_first_registration_suggests_waiting() -> None:
    async with FakeCluster.start(groups=1) as cluster, Admin(cluster.namesrv, remoting=IMPATIENT) as admin:
        cluster.groups.clear()
        with pytest.raises(NoRoute, match="no broker is registered at the name servers yet"):
            await admin.create_topic("T")


async def test_deleted_topic_is_gone() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, Admin(cluster.namesrv) as admin:
        await admin.delete_topic("T")
        with pytest.raises(TopicNotFound):
            await admin.route("T")


async def test_offsets_of_a_queue_and_of_a_group() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, Admin(cluster.namesrv) as admin:
        queue = MessageQueue("T", "b-0", 0)
        async with Producer(cluster.namesrv) as producer:
            await producer.send_many(Message("T", b"x") for _ in range(5))
        cluster.group.min_offsets["T", 0] = 2
        assert await admin.min_offset(queue) == 2
        assert await admin.max_offset(queue) == 5
        assert await admin.offset(queue, dt.datetime.fromtimestamp(0, tz=dt.UTC)) == 0
        assert await admin.group_offset("cg", queue) is None
        cluster.group.offsets["cg", "T", 0] = 4
        assert await admin.group_offset("cg", queue) == 4


async def test_offsets_are_asked_of_the_new_leader_after_a_failover() -> None:
    async with FakeCluster.start(replicas=2, topics={"T": 1}) as cluster, Admin(cluster.namesrv) as admin:
        queue = MessageQueue("T", "b-0", 0)
        assert await admin.max_offset(queue) == 0
        await cluster.kill(cluster.leader)
        cluster.group.leader = cluster.group.replicas[1]
        assert await admin.max_offset(queue) == 0


async def test_cluster_and_its_brokers() -> None:
    async with FakeCluster.start(replicas=3) as cluster, Admin(cluster.namesrv) as admin:
        info = await admin.cluster_info()
        assert dict(info.brokers["b-0"].broker_addrs) == {
            0: cluster.group.replicas[0].address,
            2: cluster.group.replicas[1].address,
            3: cluster.group.replicas[2].address,
        }
        runtime = await admin.broker_runtime(cluster.leader.address)
        assert runtime["brokerVersionDesc"] == "V4_9_8"


async def test_members_of_a_group_are_returned() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, Admin(cluster.namesrv) as admin:
        assert await admin.consumers("cg", "T") == []
        async with PushConsumer(cluster.namesrv, "cg") as consumer:
            consumer.subscribe("T")
            await consumer.wait_assigned()
            assert await admin.consumers("cg", "T") == [consumer.client_id]


async def test_refusal_is_typed() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, Admin(cluster.namesrv) as admin:
        cluster.leader.fail_codes[17] = 16
        with pytest.raises(BrokerError) as refused:
            await admin.create_topic("T")
        assert (refused.value.code, refused.value.address) == (16, cluster.leader.address)
