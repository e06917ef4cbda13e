"""Members of a group that do not subscribe to the same: nobody gets what only some of them want."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mq.client import ClientEvent, PushConsumer
from mq.client.limits import TEST_MIN
from mq.client.net.client_core import RemotingSettings
from mq.protocol.codes import RequestCode
from tests.support.name_server_and_broker import cluster, cluster_and_broker
from tests.support.waiting import until

DIFFER = "raftmqSubscriptionsDiffer"


def member_of(namesrv: str, events: list[ClientEvent]) -> PushConsumer[Any]:
    settings = RemotingSettings(limits=TEST_MIN)
    return PushConsumer(namesrv, "G", rebalance_seconds=0.05, ordered=False, remoting=settings, on_event=events.append)


def warned(events: list[ClientEvent]) -> list[str]:
    return [each.reason for each in events if each.kind == "stuck" and each.subject == "G"]


async def test_members_that_want_different_messages_are_warned(tmp_path: Path) -> None:
    """Each took half of the queues and passed over what it did not want, without a word."""
    first, second = list[ClientEvent](), list[ClientEvent]()
    async with cluster(tmp_path) as namesrv, member_of(namesrv, first) as one, member_of(namesrv, second) as other:
        one.subscribe("T", "new || paid")
        other.subscribe("T", "paid||new")  # the same
        await one.wait_assigned()
        await until(lambda: len([each for each in (first, second) if each]) == 2)
        assert not warned(first) + warned(second)
        other.subscribe("T", "lost")
        await until(lambda: warned(first) and warned(second))
        assert "subscribe to different topics or tags" in warned(first)[0]
        other.subscribe("T", "new || paid")
        assert one._member is not None
        assignment = one._member.assignment
        await until(lambda: assignment._differ.reason is None)


async def test_broker_reports_members_with_different_subscriptions(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (_, broker):
        one, other = await broker.connect(), await broker.connect()

        async def differ() -> str | None:
            answer = await one.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
            return answer.ext.get(DIFFER)

        async def agree() -> bool:
            return await differ() is None

        await one.heartbeat("c1", "G")
        assert await agree()
        await other.heartbeat("c2", "G", topics=("T", "U"))
        assert await differ() == "true"
        await one.heartbeat("c1", "G", topics=("U", "T"))
        assert await agree()
        await one.heartbeat("c1", "G", topics=("U",))
        assert await differ() == "true"
        await other.stream.aclose()
        await until(agree)
