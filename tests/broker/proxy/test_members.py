"""gRPC clients as members of consumer groups: brokers show them, and pass questions of operators on to them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mq.client import Admin, BrokerError
from mq.client.net.client_core import ClientCore, RemotingSettings, parse_addresses
from mq.client.net.credentials import Credentials
from mq.inspection.catalogue import CatalogueAdmin
from mq.inspection.members import disagreement, members_of
from mq.protocol.codes import RequestCode
from mq.protocol.incoming.headers import Response
from mq.proxy.services import member_questions
from mq.proxy.wire import messaging_pb2 as pb
from mq.testing import Kit, open_kit
from tests.support.proxies import GATEWAY, InMemoryProxy, Stream, open_proxy, signed
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME

ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: gateway, secretKey: gateway-secret, proxy: true}
- accessKey: orders-service
  secretKey: orders-secret
  topicPerms: [Orders=SUB]
  groupPerms: [billing=SUB]
- accessKey: spying-one
  secretKey: spy-secret
  topicPerms: [Orders=SUB]
"""
OPERATOR = RemotingSettings(credentials=Credentials("operator", "operator-secret"), tls=None)


def consumer(expression: str = "*", kind: pb.ClientType = pb.PUSH_CONSUMER) -> pb.Settings:
    wanted = pb.FilterExpression(type=pb.TAG, expression=expression)
    return pb.Settings(
        client_type=kind,
        user_agent=pb.UA(language=pb.GOLANG, version="5.1.3"),
        subscription=pb.Subscription(
            group=pb.Resource(name="billing"),
            subscriptions=[pb.SubscriptionEntry(topic=pb.Resource(name="Orders"), expression=wanted)],
        ),
    )


@pytest.fixture
async def admin(kit: Kit) -> AsyncIterator[CatalogueAdmin]:
    async with CatalogueAdmin(kit.namesrv) as admin:
        yield admin


async def has_members(admin: Admin, *client_ids: str) -> None:
    async def are_there() -> bool:
        return [each.client_id for each in await admin.group_members("billing")] == sorted(client_ids)

    with trio.fail_after(10):
        while not await are_there():  # noqa: ASYNC110 - nobody tells when a broker has got a heartbeat
            await trio.sleep(0.1)


async def ask(kit: Kit, code: int, **fields: Any) -> tuple[Response, memoryview]:
    """A question of an operator to the leader, as `mqadmin` asks it."""
    remoting = RemotingSettings(credentials=None, tls=None)
    async with ClientCore.open(parse_addresses(kit.namesrv), settings=remoting) as core:
        address = (await core.route("Orders")).leader_address("broker-a")
        assert address is not None
        told = {name: str(value) for name, value in fields.items()}
        return await core.call(address, code, {"consumerGroup": "billing", **told}, timeout=15)


async def test_clients_of_two_proxies_are_group_members_while_connected(
    kit: Kit, proxy: InMemoryProxy, admin: CatalogueAdmin
) -> None:
    async with proxy.telemetry("c1", consumer()), proxy.telemetry("c2", consumer()):
        await has_members(admin, "c1", "c2")
        async with open_proxy(kit) as other, other.telemetry("c3", consumer()):
            await has_members(admin, "c1", "c2", "c3")
        await has_members(admin, "c1", "c2")  # the other proxy has gone, and did not say so
        [one, _] = await admin.group_members("billing")
        assert (one.client_addr, one.language) == ("192.0.2.7:50123", "GO")
    await has_members(admin)


async def test_clients_with_enormous_subscriptions_do_not_hide_the_others(
    proxy: InMemoryProxy, admin: CatalogueAdmin
) -> None:
    """One heartbeat names all clients of a proxy, and brokers refuse one above 2 MiB, with the producers in it."""
    async with AsyncExitStack() as stack:
        for number in range(3):
            await stack.enter_async_context(proxy.telemetry(f"large-{number}", consumer("x" * 1_000_000)))
        await stack.enter_async_context(proxy.telemetry("c1", consumer()))
        await has_members(admin, "c1")


async def test_differing_subscriptions_of_proxied_members_are_reported(
    proxy: InMemoryProxy, admin: CatalogueAdmin
) -> None:
    async with proxy.telemetry("c1", consumer("paid")), proxy.telemetry("c2", consumer("paid")):
        await has_members(admin, "c1", "c2")
        assert disagreement(await members_of(admin, "billing")) == []
        async with proxy.telemetry("c3", consumer("open || paid")):
            await has_members(admin, "c1", "c2", "c3")
            assert disagreement(await members_of(admin, "billing")) == [
                "c1: Orders paid",
                "c2: Orders paid",
                "c3: Orders open || paid",
            ]


async def test_queues_are_not_assigned_to_members_behind_a_proxy(
    kit: Kit, proxy: InMemoryProxy, admin: CatalogueAdmin
) -> None:
    """They pop from all queues; a member that reads queues must not leave some to them."""
    async with proxy.telemetry("c1", consumer()):
        await has_members(admin, "c1")
        with pytest.raises(BrokerError, match="no consumer for this group"):
            await ask(kit, RequestCode.GET_CONSUMER_LIST_BY_GROUP)


async def test_client_supplies_its_stacks_and_the_proxy_the_rest(
    kit: Kit, proxy: InMemoryProxy, admin: CatalogueAdmin
) -> None:
    async def answer(stream: Stream) -> None:
        command = (await stream.hear()).print_thread_stack_trace_command
        trace = pb.ThreadStackTrace(nonce=command.nonce, thread_stack_trace="main: waits")
        wrong = pb.ThreadStackTrace(nonce="77", thread_stack_trace="of another question")
        await stream.say(pb.TelemetryCommand(thread_stack_trace=wrong))
        await stream.say(pb.TelemetryCommand(status=pb.Status(code=pb.OK), thread_stack_trace=trace))

    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    async with proxy.telemetry("c1", consumer("paid")) as (stream, _), trio.open_nursery() as nursery:
        await has_members(admin, "c1")
        _, body = await ask(kit, code, clientId="c1", jstackEnable="false")
        told = json.loads(bytes(body))
        assert (told["jstack"], told["mqTable"]) == ("", {})
        assert [(each["topic"], each["subString"]) for each in told["subscriptionSet"]] == [("Orders", "paid")]
        assert told["properties"]["PROP_CLIENT_VERSION"] == "5.1.3"
        nursery.start_soon(answer, stream)
        _, body = await ask(kit, code, clientId="c1", jstackEnable="true")
        assert json.loads(bytes(body))["jstack"] == "main: waits"
        _, body = await ask(kit, code, clientId="c1", jstackEnable="true")  # does not answer
        assert json.loads(bytes(body))["jstack"] == "the client did not answer"


def result(code: int, nonce: str) -> pb.TelemetryCommand:
    return pb.TelemetryCommand(
        status=pb.Status(code=code),  # type: ignore[arg-type]
        verify_message_result=pb.VerifyMessageResult(nonce=nonce),
    )


def echo(code: int, nonce: str) -> pb.TelemetryCommand:
    """The refusal of the client for Node.js."""
    command = pb.VerifyMessageCommand(nonce=nonce)
    return pb.TelemetryCommand(status=pb.Status(code=code), verify_message_command=command)  # type: ignore[arg-type]


async def test_client_handles_one_message_for_an_operator(
    kit: Kit, proxy: InMemoryProxy, admin: CatalogueAdmin
) -> None:
    [sent] = (await proxy.send("Orders", "this one")).entries
    _, [stored] = await proxy.receive("audit", "Orders")
    assert sent.status.code == pb.OK
    message_id = kit.messages("Orders")[0].record.offset_message_id

    async def answer(stream: Stream, code: int, form: Callable[[int, str], pb.TelemetryCommand]) -> None:
        command = (await stream.hear()).verify_message_command
        assert (command.message.body, command.message.topic.name) == (b"this one", "Orders")
        assert command.message.system_properties.message_id == stored.system_properties.message_id
        await stream.say(form(code, command.nonce))

    async with proxy.telemetry("c1", consumer()) as (stream, _), proxy.telemetry("c2", consumer()):
        await has_members(admin, "c1", "c2")
        for code, form, expected in (
            (pb.OK, result, "CR_SUCCESS"),
            (pb.FAILED_TO_CONSUME_MESSAGE, result, "CR_LATER"),
            (pb.NOT_IMPLEMENTED, result, "CR_THROW_EXCEPTION"),
            (pb.NOT_IMPLEMENTED, echo, "CR_THROW_EXCEPTION"),
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer, stream, code, form)
                _, body = await ask(
                    kit, RequestCode.CONSUME_MESSAGE_DIRECTLY, clientId="c1", msgId=message_id, topic="Orders"
                )
            told = json.loads(bytes(body))
            assert told["consumeResult"] == expected
            assert ("NOT_IMPLEMENTED" in told["remark"]) == (code == pb.NOT_IMPLEMENTED)


async def test_unresponsive_client_gets_a_bounded_number_of_questions(
    kit: Kit, proxy: InMemoryProxy, admin: CatalogueAdmin
) -> None:
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    texts: list[str] = []

    async def stacks() -> None:
        try:
            _, body = await ask(kit, code, clientId="c1", jstackEnable="true")
            texts.append(json.loads(bytes(body))["jstack"])
        except BrokerError as error:
            texts.append(error.remark or "")

    async with proxy.telemetry("c1", consumer()):
        await has_members(admin, "c1")
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(stacks)
        assert texts.count("the client did not answer") == 16
        assert texts.count("16 questions wait for an answer of this client") == 4
    assert member_questions.ANSWER_SECONDS < 10  # what brokers wait


async def test_client_without_read_permission_is_not_a_member(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    async with (
        open_kit(acl_file=file) as kit,
        CatalogueAdmin(kit.namesrv, remoting=OPERATOR) as admin,
        open_proxy(kit, GATEWAY) as proxy,
    ):
        await admin.create_topic("Orders", 1)
        proxy.metadata = signed("spying-one", "spy-secret", kit.now())
        async with proxy.telemetry("s1", consumer()) as (_, answer):
            assert answer.status.code == pb.OK  # its receives are refused
            proxy.metadata = signed("orders-service", "orders-secret", kit.now())
            async with proxy.telemetry("c1", consumer()):
                await has_members(admin, "orders-service/c1")
