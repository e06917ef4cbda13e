"""Clients with a namespace: `namespace%name` to brokers, and the two apart to clients, as with RocketMQ's proxy."""

from __future__ import annotations

import trio
import trio.testing

from mq.client import Admin
from mq.proxy.wire import messaging_pb2 as pb
from mq.testing import open_kit
from tests.support.proxies import ENDPOINTS, InMemoryProxy, message, open_proxy, receive_request
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME

GROUP = pb.Resource(resource_namespace="tenant", name="billing")


def topic(name: str) -> pb.Resource:
    return pb.Resource(resource_namespace="tenant", name=name)


async def send(proxy: InMemoryProxy, name: str, body: str, **told: object) -> pb.SendMessageResponse:
    one = message(name, body, **told)
    one.topic.CopyFrom(topic(name))
    return await proxy.ask("SendMessage", pb.SendMessageRequest(messages=[one]), pb.SendMessageResponse)


async def receive(proxy: InMemoryProxy, name: str) -> list[pb.Message]:
    request = receive_request("billing", name)
    request.group.CopyFrom(GROUP)
    request.message_queue.topic.CopyFrom(topic(name))
    answers = await proxy.stream(
        "ReceiveMessage", request, pb.ReceiveMessageResponse, deadline=trio.current_time() + 30
    )
    assert answers[0].status.code in (pb.OK, pb.MESSAGE_NOT_FOUND), answers[0]
    return [answer.message for answer in answers if answer.HasField("message")]


async def test_clients_of_a_namespace_use_its_topics_and_groups() -> None:
    async with open_kit() as kit, Admin(kit.namesrv) as admin, open_proxy(kit) as proxy:
        await admin.create_topic("tenant%Orders", 1)
        await admin.create_topic("Orders", 1)
        route = await proxy.ask(
            "QueryRoute", pb.QueryRouteRequest(topic=topic("Orders"), endpoints=ENDPOINTS), pb.QueryRouteResponse
        )
        assert {(each.topic.resource_namespace, each.topic.name) for each in route.message_queues} == {
            ("tenant", "Orders")
        }
        assert await receive(proxy, "Orders") == []  # the group begins here
        assert (await send(proxy, "Orders", "theirs")).status.code == pb.OK
        assert (await proxy.send("Orders", "ours")).status.code == pb.OK
        [got] = await receive(proxy, "Orders")
        assert (got.body, got.topic.resource_namespace, got.topic.name) == (b"theirs", "tenant", "Orders")
        told = got.system_properties
        buried = await proxy.ask(
            "ForwardMessageToDeadLetterQueue",
            pb.ForwardMessageToDeadLetterQueueRequest(
                group=GROUP, topic=got.topic, receipt_handle=told.receipt_handle, message_id=told.message_id
            ),
            pb.ForwardMessageToDeadLetterQueueResponse,
        )
        assert buried.status.code == pb.OK
        assert [each.body for each in kit.messages("%DLQ%tenant%billing")] == [b"theirs"]


async def test_orphaned_transaction_of_a_namespace_is_asked_about_and_committed() -> None:
    async with open_kit() as kit, Admin(kit.namesrv) as admin, open_proxy(kit) as proxy:
        await admin.create_topic("tenant%Payments", 1, message_type="TRANSACTION")
        settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[topic("Payments")]))
        async with proxy.telemetry("c1", settings) as (stream, answer):
            assert answer.status.code == pb.OK
            assert await receive(proxy, "Payments") == []  # the group begins here
            sent = await send(proxy, "Payments", "paid", message_type=pb.TRANSACTION)
            assert sent.status.code == pb.OK
            with trio.fail_after(120):
                asked = (await stream.hear()).recover_orphaned_transaction_command
            assert (asked.message.topic.resource_namespace, asked.message.topic.name) == ("tenant", "Payments")
            end = pb.EndTransactionRequest(
                topic=asked.message.topic,
                message_id=asked.message.system_properties.message_id,
                transaction_id=asked.transaction_id,
                resolution=pb.COMMIT,
                source=pb.SOURCE_SERVER_CHECK,
            )
            ended = await proxy.ask("EndTransaction", end, pb.EndTransactionResponse)
            assert ended.status.code == pb.OK
            [got] = await receive(proxy, "Payments")
            assert got.body == b"paid"
