"""Lite topics through a proxy; on brokers of the test kit, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from google.protobuf.duration_pb2 import Duration

from mq.client import Admin, LiteConsumer, SubscriptionGroupConfig
from mq.client.net.client_core import RemotingSettings
from mq.client.net.credentials import Credentials
from mq.proxy.wire import messaging_pb2 as pb
from mq.testing import Kit, open_kit
from tests.support.proxies import ENDPOINTS, GATEWAY, InMemoryProxy, open_proxy, signed
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME

PARENT, GROUP = "Sessions", "agents"


async def put_group(admin: Admin, name: str = GROUP, *, retries: int = 16, **attributes: str) -> None:
    bound = {"+lite.bind.topic": PARENT} | {f"+lite.sub.{key}": value for key, value in attributes.items()}
    config = SubscriptionGroupConfig(group_name=name, retry_max_times=retries, attributes=bound)
    await admin.put_consumer_group(config)


@asynccontextmanager
async def sessions(credentials: Credentials | None = None, **settings: Any) -> AsyncIterator[tuple[Kit, Admin]]:
    remoting = None if credentials is None else RemotingSettings(credentials=credentials, tls=None)
    async with open_kit(**settings) as kit, Admin(kit.namesrv, remoting=remoting) as admin:
        await admin.create_topic(PARENT, 2, attributes={"message.type": "LITE"})
        yield kit, admin


@pytest.fixture
def group() -> dict[str, Any]:
    """Attributes of the group; a test gives others by `parametrize`."""
    return {}


@pytest.fixture
async def kit(replicas: int, group: dict[str, Any]) -> AsyncIterator[Kit]:
    """Brokers with the parent topic and the group."""
    async with sessions(replicas=replicas) as (kit, admin):
        await put_group(admin, **group)
        yield kit


async def sync(
    proxy: InMemoryProxy,
    *lites: str,
    action: pb.LiteSubscriptionAction = pb.PARTIAL_ADD,
    client: str = "c1",
    group: str = GROUP,
    topic: str = PARENT,
    **told: Any,
) -> pb.Code:
    """Say what a client subscribes to."""
    request = pb.SyncLiteSubscriptionRequest(
        action=action, topic=pb.Resource(name=topic), group=pb.Resource(name=group), lite_topic_set=lites, **told
    )
    answer = await proxy.ask("SyncLiteSubscription", request, pb.SyncLiteSubscriptionResponse, client=client)
    return answer.status.code


async def send(proxy: InMemoryProxy, lite: str, *bodies: str) -> None:
    for body in bodies:
        sent = await proxy.send(PARENT, body, message_type=pb.LITE, lite_topic=lite)
        assert sent.status.code == pb.OK, sent


async def received(proxy: InMemoryProxy, *, client: str = "c1", **told: Any) -> list[pb.Message]:
    status, messages = await proxy.receive(GROUP, PARENT, client=client, **told)
    assert status.code == (pb.OK if messages else pb.MESSAGE_NOT_FOUND), status
    return messages


def named(messages: list[pb.Message]) -> list[tuple[str, str, int]]:
    """Lite topic, body, attempt."""
    return [
        (each.system_properties.lite_topic, each.body.decode(), each.system_properties.delivery_attempt)
        for each in messages
    ]


def settings(kind: pb.ClientType, group: str = GROUP) -> pb.Settings:
    return pb.Settings(client_type=kind, subscription=pb.Subscription(group=pb.Resource(name=group)))


async def test_client_gets_only_its_subscribed_lite_topics(kit: Kit, proxy: InMemoryProxy) -> None:
    route = await proxy.ask(
        "QueryRoute",
        pb.QueryRouteRequest(topic=pb.Resource(name=PARENT), endpoints=ENDPOINTS),
        pb.QueryRouteResponse,
    )
    assert {tuple(queue.accept_message_types) for queue in route.message_queues} == {(pb.LITE,)}
    assert (await proxy.send(PARENT, "plain")).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert await sync(proxy, "s1", "s2") == pb.OK
    await send(proxy, "s1", "a", "b")
    await send(proxy, "s2", "c")
    await send(proxy, "s3", "d")
    got = await received(proxy)
    assert sorted(named(got)) == [("s1", "a", 1), ("s1", "b", 1), ("s2", "c", 1)]
    told = got[0].system_properties
    assert (told.message_type, got[0].topic.name, told.queue_id, told.queue_offset) == (pb.LITE, PARENT, 0, 0)
    assert "__LITE_TOPIC" not in got[0].user_properties
    assert (await proxy.acknowledge(GROUP, *got)).status.code == pb.OK
    await kit.advance(seconds=60)
    assert await received(proxy) == []
    assert await sync(proxy, "s2", action=pb.PARTIAL_REMOVE) == pb.OK
    await send(proxy, "s2", "e")
    assert await received(proxy) == []
    assert await sync(proxy, "s2", "s3", action=pb.COMPLETE_ADD) == pb.OK
    assert sorted(named(await received(proxy))) == [("s2", "e", 1), ("s3", "d", 1)]


async def test_waiting_receive_gets_new_lite_messages(kit: Kit, proxy: InMemoryProxy) -> None:
    await sync(proxy, "s1")
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            began = trio.current_time()
            assert named(await received(proxy, long_polling_timeout=Duration(seconds=20))) == [("s1", "a", 1)]
            assert trio.current_time() - began < 4

        nursery.start_soon(wait)
        await trio.sleep(2)  # the receive waits at the broker
        await send(proxy, "s1", "a")
    # Another group reads all messages of the parent, as any topic; a client says what it is.
    async with proxy.telemetry("c2", settings(pb.SIMPLE_CONSUMER, "auditors")):
        await proxy.receive("auditors", PARENT, client="c2")
        await send(proxy, "s2", "b")
        [got] = [each for each in (await proxy.receive("auditors", PARENT, client="c2"))[1] if each.body == b"b"]
        assert got.system_properties.lite_topic == "s2"
        assert (await proxy.acknowledge("auditors", got, client="c2")).status.code == pb.OK
        await kit.advance(seconds=60)
        assert b"b" not in [each.body for each in (await proxy.receive("auditors", PARENT, client="c2"))[1]]
    async with proxy.telemetry("c3", settings(pb.LITE_SIMPLE_CONSUMER, "auditors")):
        status, _ = await proxy.receive("auditors", PARENT, client="c3")
        assert (status.code, "is bound to no topic" in status.message) == (pb.BAD_REQUEST, True)


async def test_unacknowledged_message_is_redelivered_in_place_and_then_dead_lettered(
    kit: Kit, proxy: InMemoryProxy
) -> None:
    await sync(proxy, "s1")
    await send(proxy, "s1", "a", "b")
    [a, b] = await received(proxy)
    assert (await proxy.acknowledge(GROUP, b)).status.code == pb.OK
    await send(proxy, "s1", "c")
    changed = await proxy.ask(
        "ChangeInvisibleDuration",
        pb.ChangeInvisibleDurationRequest(
            group=pb.Resource(name=GROUP),
            topic=a.topic,
            receipt_handle=a.system_properties.receipt_handle,
            invisible_duration=Duration(seconds=90),
            lite_topic="s1",
        ),
        pb.ChangeInvisibleDurationResponse,
    )
    assert changed.status.code == pb.OK
    await kit.advance(seconds=60)
    assert await received(proxy) == []  # hidden for longer now, and those behind it wait
    await kit.advance(seconds=40)
    got = await received(proxy)
    assert named(got)[0] == ("s1", "a", 2)
    assert (await proxy.acknowledge(GROUP, *got)).status.code == pb.OK
    if len(got) == 1:
        got = await received(proxy)
    assert named(got)[-1][1] == "c"
    answer = await proxy.ask(
        "ForwardMessageToDeadLetterQueue",
        pb.ForwardMessageToDeadLetterQueueRequest(
            group=pb.Resource(name=GROUP),
            topic=got[-1].topic,
            receipt_handle=got[-1].system_properties.receipt_handle,
            message_id=got[-1].system_properties.message_id,
            lite_topic="s1",
        ),
        pb.ForwardMessageToDeadLetterQueueResponse,
    )
    assert answer.status.code == pb.OK
    await kit.settle()
    assert [each.body for each in kit.dead_letters(GROUP)] == [b"c"]
    await kit.advance(seconds=60)
    assert await received(proxy) == []


async def test_suspended_lite_topic_is_redelivered_without_counting(kit: Kit, proxy: InMemoryProxy) -> None:
    await sync(proxy, "s1", "s2")
    await send(proxy, "s1", "a")
    for renewed in (False, True):
        [a] = await received(proxy, auto_renew=renewed)
        assert named([a]) == [("s1", "a", 1)]
        answer = await proxy.ask(
            "ChangeInvisibleDuration",
            pb.ChangeInvisibleDurationRequest(
                group=pb.Resource(name=GROUP),
                topic=a.topic,
                receipt_handle=a.system_properties.receipt_handle,
                invisible_duration=Duration(seconds=90),
                lite_topic="s1",
                suspend=True,
            ),
            pb.ChangeInvisibleDurationResponse,
        )
        assert answer.status.code == pb.OK
        await send(proxy, "s2", "b")
        [b] = await received(proxy)  # another lite topic does not wait
        assert (await proxy.acknowledge(GROUP, b)).status.code == pb.OK
        await kit.advance(seconds=80)
        assert await received(proxy) == []
        await kit.advance(seconds=10)
    [a] = await received(proxy)
    assert named([a]) == [("s1", "a", 1)]
    assert (await proxy.acknowledge(GROUP, a)).status.code == pb.OK


async def test_messages_stay_invisible_during_handling_by_a_push_consumer(proxy: InMemoryProxy) -> None:
    async with proxy.telemetry("c1", settings(pb.LITE_PUSH_CONSUMER)) as (_, answer):
        assert answer.settings.subscription.lite_subscription_quota == 2000
        await sync(proxy, "s1")
        await send(proxy, "s1", "a", "b")
        got = await received(proxy, auto_renew=True)
        assert named(got) == [("s1", "a", 1), ("s1", "b", 1)]
        await trio.sleep(150)  # it works on them for longer than they are hidden at a time
        await sync(proxy, "s1", action=pb.COMPLETE_ADD)
        assert await received(proxy, auto_renew=True) == []
        assert (await proxy.acknowledge(GROUP, *got)).status.code == pb.OK
        await send(proxy, "s1", "c")
        assert named(await received(proxy, auto_renew=True)) == [("s1", "c", 1)]
    # What it leaves behind is there at once for the next one.
    leave = pb.NotifyClientTerminationRequest(group=pb.Resource(name=GROUP))
    await proxy.ask("NotifyClientTermination", leave, pb.NotifyClientTerminationResponse)
    await sync(proxy, "s1", client="c2")
    assert [body for _, body, _ in named(await received(proxy, client="c2"))] == ["c"]


@pytest.mark.parametrize("group", [{"client.quota": "2"}])
async def test_refusals_have_the_codes_that_clients_know(proxy: InMemoryProxy) -> None:
    assert await sync(proxy, "a b") == pb.ILLEGAL_LITE_TOPIC
    assert await sync(proxy, "x" * 65) == pb.ILLEGAL_LITE_TOPIC
    assert await sync(proxy, "s1", "s2", "s3") == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert await sync(proxy, "s1", "s2") == pb.OK
    assert await sync(proxy, "s3") == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert await sync(proxy, "s1", group="nobody") == pb.CONSUMER_GROUP_NOT_FOUND
    assert await sync(proxy, "s1", topic="Absent") == pb.TOPIC_NOT_FOUND
    assert await sync(proxy, "s1", action=99) == pb.BAD_REQUEST  # type: ignore[arg-type]
    sql = pb.FilterExpression(type=pb.SQL, expression="a = 1")
    status, _ = await proxy.receive(GROUP, PARENT, filter_expression=sql)
    assert status.code == pb.ILLEGAL_FILTER_EXPRESSION
    await send(proxy, "s1", "a")
    [got] = await received(proxy)
    got.system_properties.receipt_handle += " $"
    assert (await proxy.acknowledge(GROUP, got)).status.code == pb.INVALID_RECEIPT_HANDLE
    async with proxy.telemetry("c9", settings(pb.LITE_PUSH_CONSUMER)) as (_, answer):
        assert answer.settings.subscription.lite_subscription_quota == 2


@pytest.mark.parametrize("group", [{"model": "Exclusive"}])
async def test_client_is_notified_when_another_takes_its_lite_topic(proxy: InMemoryProxy) -> None:
    async with proxy.telemetry("c1", settings(pb.LITE_PUSH_CONSUMER)) as (stream, _):
        await sync(proxy, "s1", "s2")
        await sync(proxy, "s1", client="c2")
        with trio.fail_after(5):
            command = await stream.hear()
        assert command.notify_unsubscribe_lite_command.lite_topic == "s1"
        await sync(proxy, "s1", "s2", action=pb.COMPLETE_ADD)  # it had not heard yet
        await send(proxy, "s1", "a")
        await send(proxy, "s2", "b")
        assert named(await received(proxy)) == [("s2", "b", 1)]
        assert named(await received(proxy, client="c2")) == [("s1", "a", 1)]


@pytest.mark.parametrize("replicas", [3])
async def test_proxy_renews_client_subscriptions_after_a_leader_change(kit: Kit, proxy: InMemoryProxy) -> None:
    await sync(proxy, "s1", "s2")
    await send(proxy, "s1", "a", "b")
    got = await received(proxy)
    assert (await proxy.acknowledge(GROUP, *got)).status.code == pb.OK
    await kit.lose_leader()
    await kit.settle()
    await trio.sleep(10)  # another replica leads by then
    await send(proxy, "s1", "c")
    await send(proxy, "s3", "d")
    assert named(await received(proxy)) == [("s1", "c", 1)]


async def test_proxy_waits_until_an_unknown_client_sends_its_subscriptions(proxy: InMemoryProxy) -> None:
    await send(proxy, "s1", "a")
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            assert named(await received(proxy, long_polling_timeout=Duration(seconds=20))) == [("s1", "a", 1)]

        nursery.start_soon(wait)
        await trio.sleep(2)  # the receive waits at the broker
        await sync(proxy, "s1", action=pb.COMPLETE_ADD)


async def test_messages_for_a_client_that_has_gone_are_given_back(proxy: InMemoryProxy) -> None:
    await sync(proxy, "s1")
    with trio.move_on_after(1):
        await received(proxy, long_polling_timeout=Duration(seconds=20))
    await send(proxy, "s1", "a")
    await trio.sleep(5)  # the pop that nobody waits for gets it, and gives it back
    assert named(await received(proxy)) == [("s1", "a", 2)]


async def test_messages_are_shared_with_consumers_of_the_sdk(kit: Kit, proxy: InMemoryProxy) -> None:
    await send(proxy, "s1", "a")
    async with LiteConsumer(kit.namesrv, GROUP, PARENT, lite_topics=["s1"]) as consumer:
        message = await anext(consumer)
        assert (message.lite_topic, message.body) == ("s1", b"a")
        await consumer.ack(message)
    await sync(proxy, "s1")
    await send(proxy, "s1", "b")
    assert named(await received(proxy)) == [("s1", "b", 1)]


async def test_client_reads_lite_topics_as_its_user(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text("""
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: gateway, secretKey: gateway-secret, proxy: true}
- {accessKey: the-agents, secretKey: agent-secret, topicPerms: [Sessions=PUB|SUB], groupPerms: [agents=SUB]}
- {accessKey: the-users, secretKey: user-secret, topicPerms: [Sessions=PUB]}
""")
    async with sessions(Credentials("operator", "operator-secret"), acl_file=file) as (kit, admin):
        await put_group(admin, model="Exclusive")
        async with open_proxy(kit, GATEWAY) as proxy:
            proxy.metadata = signed("the-users", "user-secret", kit.now())
            assert await sync(proxy, "s1") == pb.FORBIDDEN
            await send(proxy, "s1", "a")
            assert (await proxy.receive(GROUP, PARENT))[0].code == pb.FORBIDDEN
            proxy.metadata = signed("the-agents", "agent-secret", kit.now())
            async with proxy.telemetry("c1", settings(pb.LITE_PUSH_CONSUMER)) as (stream, _):
                assert await sync(proxy, "s1") == pb.OK
                [got] = await received(proxy)
                assert (await proxy.acknowledge(GROUP, got)).status.code == pb.OK
                assert await sync(proxy, "s1", client="c2") == pb.OK
                with trio.fail_after(5):
                    command = await stream.hear()
                assert command.notify_unsubscribe_lite_command.lite_topic == "s1"
