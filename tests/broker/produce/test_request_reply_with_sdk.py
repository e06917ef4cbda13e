"""Asking and replying with the SDK: a name server and a broker, real sockets."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from mq.client import (
    Admin,
    BrokerError,
    Message,
    MessageRefused,
    NoReply,
    NotARequest,
    PopConsumer,
    Producer,
    ProducerBusy,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    ReplyNotDelivered,
)
from mq.client.sync import SyncProducer, SyncPushConsumer
from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode
from mq.protocol.requests.raft_group import GroupCommand
from mq.protocol.requests.request_reply import PushReplyMessageToClient
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.replies import V2, produces, pushed, reply_ext, three_replicas
from tests.support.running_broker import SUBSCRIPTION, SUSPEND
from tests.support.waiting import until


@asynccontextmanager
async def replying(namesrv: str) -> AsyncIterator[list[ReceivedMessage]]:
    """A consumer that replies to everything but bodies that begin with "silence"; what it saw."""
    seen: list[ReceivedMessage] = []
    consumer = PushConsumer(namesrv, "G", consume_from="first", ordered=False)

    @consumer.on("T")
    async def answer(message: ReceivedMessage) -> None:
        seen.append(message)
        if not message.body.startswith(b"silence"):
            await consumer.reply(message, b"re: " + message.body, properties={"from": "G"})

    async with trio.open_nursery() as nursery, consumer:
        nursery.start_soon(consumer.run)
        await consumer.wait_assigned()
        yield seen
        nursery.cancel_scope.cancel()


async def test_pull_consumer_replies(tmp_path: Path) -> None:
    async with (
        cluster_and_broker(tmp_path) as (namesrv, _),
        Producer(namesrv, "P") as producer,
        PullConsumer(namesrv, "G", consume_from="first") as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.assign(await consumer.queues("T"))

        async def answer() -> None:
            [asked] = await consumer.poll(timeout=60)
            await consumer.reply(asked, b"re: " + asked.body, properties={"from": "G"})

        nursery.start_soon(answer)
        reply = await producer.request(Message("T", b"hello"), timeout=60)
        assert (reply.body, reply.properties["from"]) == (b"re: hello", "G")


async def test_pop_consumer_replies(tmp_path: Path) -> None:
    async with (
        cluster_and_broker(tmp_path) as (namesrv, _),
        Producer(namesrv, "P") as producer,
        PopConsumer(namesrv, "G", "T", consume_from="first") as consumer,
        trio.open_nursery() as nursery,
    ):

        async def answer() -> None:
            asked = await anext(consumer)
            await consumer.reply(asked, b"re: " + asked.body)
            await consumer.ack(asked)

        nursery.start_soon(answer)
        assert (await producer.request(Message("T", b"hello"), timeout=60)).body == b"re: hello"


async def test_request_gets_its_own_reply(tmp_path: Path) -> None:
    async with (
        cluster_and_broker(tmp_path) as (namesrv, _),
        Producer(namesrv, "P") as producer,
        replying(namesrv) as seen,
    ):
        reply = await producer.request(Message("T", b"hello"), timeout=60)
        assert (reply.body, reply.topic, reply.properties["from"]) == (b"re: hello", "DefaultCluster_REPLY_TOPIC", "G")
        (asked,) = seen
        for name in (props.CORRELATION_ID, props.REPLY_TO_CLIENT, props.TTL):
            assert reply.properties[name] == asked.properties[name]
        assert asked.properties[props.REPLY_TO_CLIENT] == producer.client_id
        assert asked.properties[props.TTL] == "60000"
        assert reply.properties[props.MESSAGE_TYPE] == "reply"
        assert int(reply.properties[props.PUSH_REPLY_TIME]) <= int(reply.properties[props.ARRIVE_TIME])
        assert reply.born_host.ip == "127.0.0.1"

        replies: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            body = b"%d" % number + b"x" * 200 * number
            replies[number] = (await producer.request(Message("T", body), timeout=60)).body[:8].split(b"x")[0]

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(ask, number)
        assert replies == {number: b"re: %d" % number for number in range(40)}
        assert producer.dropped_replies == 0


async def test_unanswered_request_times_out_and_late_replies_are_dropped(tmp_path: Path) -> None:
    async with (
        cluster_and_broker(tmp_path) as (namesrv, broker),
        replying(namesrv) as seen,
        Producer(namesrv, "P", in_flight_max=1) as producer,
    ):
        with pytest.raises(NoReply) as caught:
            await producer.request(Message("T", b"silence"), timeout=1)
        await until(lambda: len(seen) == 1)
        assert caught.value.message_id == seen[0].message_id
        late = reply_ext(producer.client_id, seen[0].properties[props.CORRELATION_ID])
        client = await broker.connect()
        assert (await client.request(V2, late, b"too late")).code == 0
        without = late | {"i": props.encode({props.REPLY_TO_CLIENT: producer.client_id})}
        assert (await client.request(V2, without, b"whose?")).code == 1
        await until(lambda: producer.dropped_replies == 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_no_reply, producer)
            await until(lambda: len(seen) == 2)
            with pytest.raises(ProducerBusy):
                await producer.request(Message("T", b"one too many"))
        assert (await producer.request(Message("T", b"again"), timeout=30)).body == b"re: again"


async def _expect_no_reply(producer: Producer) -> None:
    with pytest.raises(NoReply):
        await producer.request(Message("T", b"silence 2"), timeout=3)


async def test_reply_raises_for_messages_without_request(tmp_path: Path) -> None:
    async with (
        cluster_and_broker(tmp_path) as (namesrv, broker),
        Producer(namesrv, "P") as producer,
        PushConsumer(namesrv, "G", consume_from="first") as consumer,
    ):
        consumer.subscribe("T")
        deliveries = consumer.deliveries()
        await producer.send(Message("T", b"no request"))
        with pytest.raises(NotARequest):
            await consumer.reply((await anext(deliveries)).message, b"answer")
        with pytest.raises(NoReply):
            await producer.request(Message("T", b"request"), timeout=1)
        asked = (await anext(deliveries)).message
        with pytest.raises(MessageRefused):
            await consumer.reply(asked, b"")
        await consumer.reply(asked, b"late, and there")
        gone = await broker.connect()
        await produces(gone, "gone")
        asked.record.properties[props.REPLY_TO_CLIENT] = "gone"
        await gone.stream.aclose()
        with pytest.raises(ReplyNotDelivered, match="channel of <gone> not found"):
            await consumer.reply(asked, b"for nobody")


async def test_java_program_asks_and_replies(tmp_path: Path) -> None:
    """What Java's producer sends for a request, and what its consumer replies, byte for byte the same properties."""
    async with cluster_and_broker(tmp_path) as (namesrv, broker):
        java = await broker.connect()
        await produces(java, "10.0.0.1@7", "JP")
        async with replying(namesrv):
            asked = props.encode(
                {"CORRELATION_ID": "u-u-i-d", "REPLY_TO_CLIENT": "10.0.0.1@7", "TTL": "3000", "UNIQ_KEY": "A" * 32}
            )
            assert (await java.send("T", b"from Java", i=asked)).code == 0
            question, body = await pushed(java)
            assert isinstance(question, PushReplyMessageToClient)
            got = props.decode(question.ext.properties)
            assert body == b"re: from Java"
            assert {name: got[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "MSG_TYPE")} == {
                "CORRELATION_ID": "u-u-i-d",
                "REPLY_TO_CLIENT": "10.0.0.1@7",
                "TTL": "3000",
                "MSG_TYPE": "reply",
            }
            await java.reply(question)
        async with Producer(namesrv, "P") as producer, trio.open_nursery() as nursery:

            async def reply_as_java() -> None:
                offset = 1
                answer = await java.pull("T", 0, offset, sysFlag=SUSPEND | SUBSCRIPTION)
                [record] = answer.records
                named = {name: record.properties[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")}
                ext = reply_ext() | {"i": props.encode({"MSG_TYPE": "reply"} | named).removesuffix("\x02")}
                assert (await java.request(RequestCode.SEND_REPLY_MESSAGE_V2, ext, b"from Java")).code == 0

            nursery.start_soon(reply_as_java)
            assert (await producer.request(Message("T", b"to Java"), timeout=30)).body == b"from Java"


async def test_requests_are_replied_to_while_leaders_change(tmp_path: Path) -> None:
    settings = NamesrvSettings(listen_host="127.0.0.1", listen_port=0, data_dir=None)
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, settings)
        namesrv = f"{host}:{port}"
        async with three_replicas(tmp_path, namesrv=namesrv) as brokers, Admin(namesrv) as admin:
            await admin.create_topic("T", 2)
            async with replying(namesrv) as seen, Producer(namesrv, "P", timeout=20) as producer:
                terms = 0

                async def change_leaders() -> None:
                    nonlocal terms
                    for _ in range(3):
                        await trio.sleep(0.4)
                        for broker in brokers:
                            with suppress(BrokerError):
                                await admin.manage_group(broker.settings.listen, GroupCommand("transfer"))
                                terms += 1
                                break

                answered = 0
                async with trio.open_nursery() as changing:
                    changing.start_soon(change_leaders)
                    while terms < 3 or answered < 30:
                        body = b"%d" % answered
                        assert (await producer.request(Message("T", body))).body == b"re: " + body
                        answered += 1
                assert {message.body for message in seen} == {b"%d" % number for number in range(answered)}
        nursery.cancel_scope.cancel()


async def test_synchronous_clients_request_and_reply(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, _):

        def program() -> bytes:
            with (
                SyncProducer(namesrv, "P") as producer,
                SyncPushConsumer(namesrv, "G", consume_from="first") as consumer,
            ):
                consumer.subscribe("T")
                consumer.wait_assigned()

                def answer() -> None:
                    message = consumer.receive(timeout=60)
                    assert message is not None
                    consumer.reply(message, message.body.upper())

                thread = threading.Thread(target=answer)
                thread.start()
                reply = producer.request(Message("T", b"hello"), timeout=60)
                thread.join()
                return reply.body

        assert await trio.to_thread.run_sync(program) == b"HELLO"
