"""Transactions through a proxy; and what clients and proxies learn of each other by telemetry."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from mq.client import Admin
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.proxy.clients import TelemetryStream
from mq.proxy.grpc import CallRefused, Status
from mq.proxy.grpc.status import BrokenCall
from mq.proxy.wire import messaging_pb2 as pb
from mq.testing import Kit, open_kit
from tests.support.proxies import Call, InMemoryProxy, open_proxy
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME

PRODUCER = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[pb.Resource(name="Payments")]))


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    """Brokers that ask soon about transactions."""
    async with (
        open_kit(transaction_timeout_seconds=6, transaction_check_seconds=6) as kit,
        Admin(kit.namesrv) as admin,
    ):
        await admin.create_topic("Payments", 2, message_type="TRANSACTION")
        yield kit


async def end(
    proxy: InMemoryProxy, transaction_id: str, resolution: pb.TransactionResolution
) -> pb.EndTransactionResponse:
    request = pb.EndTransactionRequest(
        topic=pb.Resource(name="Payments"), message_id="m", transaction_id=transaction_id, resolution=resolution
    )
    return await proxy.ask("EndTransaction", request, pb.EndTransactionResponse)


async def test_producer_ends_its_transaction_through_another_proxy(kit: Kit, proxy: InMemoryProxy) -> None:
    sent = await proxy.send("Payments", "yes", "no, not this one", message_type=pb.TRANSACTION)
    assert sent.status.code == pb.OK
    yes, no = (entry.transaction_id for entry in sent.entries)
    async with open_proxy(kit) as other:
        assert (await end(other, yes, pb.COMMIT)).status.code == pb.OK
    assert (await end(proxy, no, pb.ROLLBACK)).status.code == pb.OK
    assert (await end(proxy, "nonsense", pb.COMMIT)).status.code == pb.INVALID_TRANSACTION_ID
    assert (await end(proxy, "", pb.COMMIT)).status.code == pb.INVALID_TRANSACTION_ID
    await kit.settle()
    assert [each.body for each in kit.messages("Payments")] == [b"yes"]


async def test_new_producer_is_asked_about_an_orphan_once_it_is_due(kit: Kit, proxy: InMemoryProxy) -> None:
    async with proxy.telemetry("p1", PRODUCER) as (stream, answer):
        assert answer.status.code == pb.OK
        await proxy.send("Payments", "orphan", message_type=pb.TRANSACTION)
        began = trio.current_time()
        with trio.fail_after(20):
            command = (await stream.hear()).recover_orphaned_transaction_command
        assert command.message.body == b"orphan"
        assert command.message.system_properties.message_id == "id-orphan"
        assert trio.current_time() - began < 13  # time-out and interval of the checks, and a second
        assert (await end(proxy, command.transaction_id, pb.COMMIT)).status.code == pb.OK
    await kit.settle()
    assert [each.body for each in kit.messages("Payments")] == [b"orphan"]


class NotReading(Call):
    """The call of a client that reads one answer, and then none: as the transport, it gives up after 30 s."""

    unsent = closed = False

    def __init__(self, client_id: str) -> None:
        super().__init__(client_id)
        self.scope = trio.CancelScope()

    async def send(self, message: bytes) -> None:
        if self.closed:
            raise BrokenCall("the client is gone")
        assert not self.unsent, "the last message is not sent"
        self.unsent = True
        if self.answers.statistics().current_buffer_used:
            await trio.sleep(30)  # the transport's limit
            self.closed = True
            self.scope.cancel()
            raise BrokenCall("the client has not read for 30 s")
        await super().send(message)
        self.unsent = False


async def test_producer_with_unread_checks_does_not_affect_others(proxy: InMemoryProxy) -> None:
    call = NotReading("p1")
    await call.to_server.send(pb.TelemetryCommand(settings=PRODUCER).SerializeToString())

    async def serve() -> None:
        with call.scope:
            await proxy.serve("Telemetry", call)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await trio.sleep(1)  # the stream opens
        await proxy.send("Payments", "a", "b", "c", message_type=pb.TRANSACTION)
        await trio.sleep(60)  # questions come every 6 s
        assert call.closed
    async with proxy.telemetry("p2", PRODUCER) as (stream, _):
        with trio.fail_after(40):
            command = (await stream.hear()).recover_orphaned_transaction_command
        assert command.message.body in (b"a", b"b", b"c")


async def test_stream_cut_off_within_a_command_accepts_no_further_command() -> None:
    call = NotReading("p1")
    await call.send(b"settings")
    stream = TelemetryStream(call, "p1", 0)
    with trio.move_on_after(1):  # as at a drain
        await stream.send(pb.TelemetryCommand())
    with pytest.raises(BrokenCall, match="cut off"):
        await stream.send(pb.TelemetryCommand())


async def test_telemetry_settings_contain_the_limits_of_servers(proxy: InMemoryProxy, admin: Admin) -> None:
    async with proxy.telemetry("p1", PRODUCER) as (_, answer):
        assert answer.settings.backoff_policy.max_attempts == 3
        assert answer.settings.publishing.validate_message_type
        assert answer.settings.publishing.max_body_size == 4 * 1024 * 1024
        assert not answer.settings.metric.on
    config = SubscriptionGroupConfig(group_name="steps", consume_message_orderly=True, retry_max_times=5)
    await admin.put_consumer_group(config)
    consumer = pb.Settings(
        client_type=pb.SIMPLE_CONSUMER, subscription=pb.Subscription(group=pb.Resource(name="steps"))
    )
    async with proxy.telemetry("c1", consumer) as (_, answer):
        assert answer.status.code == pb.OK
        assert answer.settings.subscription.fifo
        assert answer.settings.subscription.receive_batch_size == 32
        assert answer.settings.subscription.long_polling_timeout.seconds == 20
        assert answer.settings.backoff_policy.max_attempts == 6
        assert answer.settings.backoff_policy.customized_backoff.next[0].seconds == 10
    lite = pb.Settings(
        client_type=pb.LITE_PUSH_CONSUMER, subscription=pb.Subscription(group=pb.Resource(name="agents"))
    )
    async with proxy.telemetry("c2", lite) as (_, answer):
        assert answer.status.code == pb.OK
        assert answer.settings.subscription.fifo
        assert answer.settings.subscription.lite_subscription_quota == 2000
        assert answer.settings.subscription.max_lite_topic_size == 64


async def test_stopping_proxy_ends_telemetry_streams(proxy: InMemoryProxy) -> None:
    call = Call("p1")
    await call.to_server.send(pb.TelemetryCommand(settings=PRODUCER).SerializeToString())

    async def expect_unavailable() -> None:
        with pytest.raises(CallRefused) as caught:
            await proxy.serve("Telemetry", call)
        assert caught.value.status is Status.UNAVAILABLE

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_unavailable)
        assert pb.TelemetryCommand.FromString(await call.answers.receive()).HasField("settings")
        proxy.drain_event.set()
