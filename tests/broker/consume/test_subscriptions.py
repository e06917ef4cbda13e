"""Subscriptions that differ between members of a group, or are newer than heartbeats told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mq.client import ClientEvent, PushConsumer
from mq.client.limits import TEST_MIN
from mq.client.net.client_core import RemotingSettings
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from tests.support.name_server_and_broker import cluster, cluster_and_broker
from tests.support.running_broker import Client, RunningBroker, broker_client, limited, properties
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


OLD, NEW = 1_700_000_000_000, 1_700_000_001_000


async def heartbeat(client: Client, version: int, expression: str = "a") -> None:
    subscription = SubscriptionData(topic="T", expression=expression, version=version)
    data = HeartbeatData(client_id="c", consumers=[ConsumerData(group="G", subscriptions=[subscription])])
    assert (await client.request(RequestCode.HEART_BEAT, body=data.encode())).code == 0


async def pull_code(client: Client, version: int = NEW) -> int:
    return (await client.pull(sysFlag=0, subVersion=version, subscription=None)).code


async def consumer(client: Client) -> None:
    """A member of group G with an old subscription, and two messages."""
    await client.create_topic("T")
    for tag in ("a", "b"):
        assert (await client.send(i=properties(TAGS=tag))).code == 0
    await heartbeat(client, OLD)


def running_info(*subscriptions: dict[str, object]) -> bytes:
    """The answer of a Java client: objects are keys in it."""
    queues = b'{{"brokerName":"b","queueId":0,"topic":"T"}:{"commitOffset":0,"locked":false}}'
    return b'{"jstack":"","mqTable":%s,"properties":{},"statusTable":{},"subscriptionSet":%s}' % (
        queues,
        json.dumps(subscriptions).encode(),
    )


def subscription(version: int, topic: str = "T", expression: str = "b") -> dict[str, object]:
    return {
        "classFilterMode": False,
        "codeSet": [98],
        "expressionType": "TAG",
        "subString": expression,
        "subVersion": version,
        "tagsSet": [expression],
        "topic": topic,
    }


async def test_reported_newer_subscription_applies(client: Client) -> None:
    await consumer(client)
    assert await pull_code(client) == ResponseCode.SUBSCRIPTION_NOT_LATEST
    question, _ = await client.question()
    assert question.code == RequestCode.GET_CONSUMER_RUNNING_INFO
    assert (question.ext.consumer_group, question.ext.client_id, question.ext.stack) == ("G", "c", False)
    await client.reply(question, body=running_info(subscription(NEW), subscription(NEW, topic="Other")))
    pulled = await client.pull(sysFlag=0, subVersion=NEW, subscription=None)
    assert [record.properties["TAGS"] for record in pulled.records] == ["b"]
    other = await client.pull("Other", sysFlag=0, subscription=None)
    assert other.code == ResponseCode.TOPIC_NOT_EXIST  # it is not created, nor subscribed
    subscribed = await client.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"})
    assert b"Other" not in subscribed.body


async def test_client_is_asked_once_until_its_next_heartbeat(broker: RunningBroker) -> None:
    client, stranger = await broker.connect(), await broker.connect()
    await consumer(client)
    for _ in range(3):
        assert await pull_code(client) == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert await pull_code(stranger) == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert len(client.questions) == 1
    assert stranger.questions == []  # it is not a member: what it says would not count
    await heartbeat(client, OLD)
    assert await pull_code(client) == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert len(client.questions) == 2
    await heartbeat(client, NEW)
    assert await pull_code(client) == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 0),
        (b"[]", 0),
        (b"{", 0),
        (b'{"subscriptionSet":7}', 0),
        (b'{"subscriptionSet":[{"topic":3}]}', 0),
        (running_info(subscription(OLD - 5)), 0),
        (running_info(subscription(NEW, expression="a ||||| b" * 40_000)), 0),
        (running_info(subscription(NEW)), ResponseCode.SYSTEM_ERROR),
    ],
    ids=["empty", "list", "open", "number", "no topic", "older", "long", "failed"],
)
async def test_unusable_answer_about_a_subscription_is_ignored(tmp_path: Path, body: bytes, code: int) -> None:
    async with broker_client(tmp_path, limits=limited(consume={"refresh_pause_seconds": 0.0})) as client:
        await consumer(client)
        assert await pull_code(client) == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await client.reply((await client.question())[0], code, body)
        assert await pull_code(client) == ResponseCode.SUBSCRIPTION_NOT_LATEST
        assert await pull_code(client, OLD) == ResponseCode.SUCCESS
        question, _ = await client.question()
        await client.reply(question, body=running_info(subscription(NEW)))

        async def pulled() -> bool:
            return await pull_code(client) == ResponseCode.SUCCESS

        await until(pulled)
