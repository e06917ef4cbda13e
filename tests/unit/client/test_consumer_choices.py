"""What a consumer asks for by an expression, and which replica it asks."""

from __future__ import annotations

import json

import anyio
import pytest

from mq.client import PullSettings, SubscriptionError, sql
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, fill, stored, take
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio

PULL = 11
HEARTBEAT = 34


async def test_messages_are_chosen_by_an_expression() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, consumer_of(cluster) as consumer:
        for number in range(20):
            message = stored(b"%d" % number, tags="odd" if number % 2 else "even")
            message.properties += f"n\x01{number}\x02"
            cluster.group.append("T", 0, message)
        consumer.subscribe("T", sql("n > 14 AND TAGS = 'odd'"))
        assert [message.body for message in await take(consumer, 3)] == [b"15", b"17", b"19"]
        pulls = [request.ext for request in cluster.leader.received if request.code == PULL]
        assert {pull["expressionType"] for pull in pulls} == {"SQL92"}
        await until(lambda: cluster.leader.count(HEARTBEAT) > 0)
        beats = [json.loads(request.body) for request in cluster.leader.received if request.code == HEARTBEAT]
        [subscribed] = beats[-1]["consumerDataSet"][0]["subscriptionDataSet"]
        assert subscribed["expressionType"] == "SQL92"
        assert subscribed["subString"] == "n > 14 AND TAGS = 'odd'"
        assert subscribed["tagsSet"] == subscribed["codeSet"] == []


async def test_wrong_expression_is_refused_when_subscribing() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(SubscriptionError, match="character 5"):
            consumer.subscribe("T", sql("n > 'x'"))
        with pytest.raises(SubscriptionError, match="names no tag"):
            consumer.subscribe("T", "||")


async def test_consumer_follows_redirection_to_a_replica_and_back() -> None:
    small = PullSettings(batch_max=32)
    async with FakeCluster.start(topics={"T": 1}, replicas=3) as cluster, consumer_of(cluster, pull=small) as consumer:
        leader, follower = cluster.group.replicas[0], cluster.group.replicas[2]
        leader.suggests = follower.suggests = "3"
        bodies = fill(cluster, 500)
        consumer.subscribe("T")
        assert [message.body for message in await take(consumer, 400)] == bodies[:400]
        assert leader.count(PULL) == 1
        assert follower.count(PULL) >= 10
        follower.suggests = leader.suggests = "0"
        await take(consumer, 90)
        cluster.group.append("T", 0, stored(b"ends the held pull"))
        await until(lambda: leader.count(PULL) >= 2)


@pytest.mark.parametrize("unknown", ["9", "-1", str(2**62)])
async def test_consumer_ignores_a_suggested_replica_outside_the_route(unknown: str) -> None:
    async with FakeCluster.start(topics={"T": 1}, replicas=2) as cluster, consumer_of(cluster) as consumer:
        cluster.leader.suggests = unknown
        bodies = fill(cluster, 200)
        consumer.subscribe("T")
        assert [message.body for message in await take(consumer, 200)] == bodies


async def test_leader_serves_after_the_suggested_replica_dies() -> None:
    async with FakeCluster.start(topics={"T": 1}, replicas=3) as cluster, consumer_of(cluster) as consumer:
        leader, follower = cluster.group.replicas[0], cluster.group.replicas[2]
        leader.suggests = follower.suggests = "3"
        bodies = fill(cluster, 64)
        consumer.subscribe("T")
        assert [message.body for message in await take(consumer, 64)] == bodies
        cluster.group.append("T", 0, stored(b"more"))  # ends the pull that is held
        assert [message.body for message in await take(consumer, 1)] == [b"more"]
        await until(lambda: follower.count(PULL) >= 2)
        await follower.stop()
        leader.suggests = "0"
        cluster.group.append("T", 0, stored(b"after"))
        with anyio.fail_after(60):
            assert [message.body for message in await take(consumer, 1)] == [b"after"]
