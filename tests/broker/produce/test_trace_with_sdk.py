"""Message traces with the SDK and the command line: a name server and a broker, real sockets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from typer.testing import CliRunner

from mq.cli.app import app
from mq.cli.errors import CommandFailed
from mq.client import (
    Admin,
    BrokerError,
    Message,
    MessageRefused,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RemotingSettings,
    TransactionProducer,
)
from mq.client.limits import TEST_MIN
from mq.protocol import properties as props
from mq.protocol.messages.trace import ContextCode, MessageKind, MessageTrace, TraceRecord, decode_trace
from mq.protocol.names import TRACE_TOPIC
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.waiting import until_found


async def story(admin: Admin, message_id: str, done: Callable[[MessageTrace], bool], **given: Any) -> MessageTrace:
    """What is written of a message as soon as it is enough."""

    async def look() -> MessageTrace | None:
        found = await admin.trace(message_id, **given)
        return found if done(found) else None

    return await until_found(look)


@pytest.fixture
def silent() -> Iterator[None]:
    """The broker of this process logs nothing: its lines would be among those of the command."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("silent")
async def test_trace_records_all_steps_of_a_message(tmp_path: Path) -> None:
    async with (
        cluster_and_broker(tmp_path) as (namesrv, broker),
        Admin(namesrv) as admin,
        Producer(namesrv, "P", trace=True) as producer,
        trio.open_nursery() as nursery,
    ):
        consumer = PushConsumer(namesrv, "G", consume_from="first", retry_delay=0.01, trace=True)

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            if message.attempt == 1:
                raise ValueError("the first time")

        async with consumer:
            nursery.start_soon(consumer.run)
            message = Message("T", b"hello", tags="a tag", keys=["k1", "k2"])
            sent = await producer.send(message)
            other = await producer.send(Message("T", b"another"))
            found = await story(admin, sent.message_id, lambda each: len(each.handled) == 2)
            (pub,) = found.sent
            assert pub.success
            assert (pub.group, pub.topic, pub.tags, pub.keys) == ("P", "T", "a tag", "k1 k2")
            assert (pub.message_id, pub.offset_message_id) == (sent.message_id, sent.offset_message_id)
            assert (pub.store_host, pub.body_bytes, pub.region) == (broker.settings.listen, 5, "DefaultRegion")
            assert pub.client_host == "127.0.0.1"
            first, second = found.handled
            assert first.begun.timestamp_ms >= pub.timestamp_ms
            assert first.ended is not None
            assert second.ended is not None
            assert (first.ended.success, first.ended.context_code) == (False, ContextCode.EXCEPTION)
            assert (second.ended.success, second.ended.context_code) == (True, ContextCode.SUCCESS)
            assert (first.begun.group, first.begun.keys, first.begun.region) == ("G", "k1 k2", "DefaultRegion")
            assert first.begun.request_id != second.begun.request_id
            assert (await story(admin, other.message_id, lambda each: bool(each.sent))).sent[0].body_bytes == 7
            assert not (await admin.trace("F" * 32)).found
            by_key = await admin.messages_by_key(TRACE_TOPIC, "k2")
            assert sent.message_id in by_key[0].keys

            result = await trio.to_thread.run_sync(
                partial(CliRunner().invoke, app, ["trace", sent.message_id, "--namesrv", namesrv])
            )
            assert result.exit_code == 0, result
            lines = result.stdout.splitlines()
            assert len(lines) == 4
            assert "P at 127.0.0.1 sent a message of 5 bytes to T at" in lines[0]
            assert ", tags a tag, keys k1 k2" in lines[0]
            assert "G at 127.0.0.1 failed to handle it in" in lines[1]
            assert lines[3] == "G: handled 2 times, once with success"
            result = await trio.to_thread.run_sync(
                partial(CliRunner().invoke, app, ["trace", sent.message_id, "--json", "--namesrv", namesrv])
            )
            assert json.loads(result.stdout)["sent"][0]["message_id"] == sent.message_id
            result = await trio.to_thread.run_sync(
                partial(CliRunner().invoke, app, ["trace", "F" * 32, "--namesrv", namesrv])
            )
            assert isinstance(result.exception, CommandFailed)
            nursery.cancel_scope.cancel()


async def test_traces_of_batches_and_streams_are_sent_to_custom_topics(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, _), Admin(namesrv) as admin:
        async with Producer(namesrv, "P", trace="MyTrace") as producer:
            batch = await producer.send_batch([Message("T", b"1", keys=["one"]), Message("T", b"22", tags="two")])
            pending = await producer.submit(Message("T", b"333"))
            submitted = await pending
        async with PushConsumer(namesrv, "G", consume_from="first", trace="MyTrace") as consumer:
            consumer.subscribe("T")
            deliveries = consumer.deliveries()
            (await anext(deliveries)).ack()
            (await anext(deliveries)).nack(100)
            async for message in consumer:
                assert message.body == b"333"
                break
        first, second = [await admin.trace(each.message_id, topic="MyTrace") for each in batch]
        assert [(each.body_bytes, each.keys, each.tags) for each in (*first.sent, *second.sent)] == [
            (1, "one", None),
            (2, None, "two"),
        ]
        assert [each.sent[0].offset_message_id for each in (first, second)] == [
            each.offset_message_id for each in batch
        ]
        assert first.handled[0].ended is not None
        assert second.handled[0].ended is not None
        assert (first.handled[0].ended.success, second.handled[0].ended.context_code) == (True, ContextCode.FAILED)
        third = await admin.trace(submitted.message_id, topic="MyTrace")
        assert third.handled[0].ended is None  # the stream ended before it was asked for the next message
        assert await admin.messages_by_key(TRACE_TOPIC, submitted.message_id) == []


async def test_trace_contains_delays_and_recalls(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, _), Admin(namesrv) as admin:
        async with Producer(namesrv, "P", trace=True) as producer:
            sent = await producer.send(Message("T", b"later", delay=100))
            assert sent.recall_handle is not None
            assert await producer.recall(sent.recall_handle) == sent.message_id
            with pytest.raises(BrokerError):
                await producer.recall(sent.recall_handle)
            with pytest.raises(MessageRefused):
                await producer.recall("nothing")
        found = await admin.trace(sent.message_id)
        assert [each.kind for each in found.sent] == [MessageKind.DELAY]
        assert [(each.success, each.group, each.topic) for each in found.recalled] == [
            (True, "P", "T"),
            (False, "P", "T"),
        ]


async def test_records_of_stock_clients_are_read(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, broker), Admin(namesrv) as admin:
        java = await broker.connect()
        lines = (
            "Pub|1700000000123|DefaultRegion|JP|T|AB12|null|null|10.0.0.1:10911|5|12|3|OFF|true",
            "SubBefore|1700000000200|null|JG|REQ|AB12|2|null",
            "SubBefore|1700000000200|null|JG|REQ|OTHER|2|null",
            "SubAfter|REQ|AB12|7|false|null|1|1700000000210|JG",
            "EndTransaction|1700000000300|null|JP|T|AB12|null|null|10.0.0.1:10911|2|TX|COMMIT_MESSAGE|true",
            "Recall|1700000000400|null|JP|T|AB12|false",
            "NewKind|\x1b[31m",
        )
        body = "".join(line.replace("|", "\x01") + "\x02" for line in lines).encode()
        sent = await java.send(TRACE_TOPIC, body, i=props.encode({"KEYS": "AB12 OTHER", "UNIQ_KEY": "A" * 32}))
        assert sent.code == 0
        found = await admin.trace("AB12")
        assert (len(found.sent), len(found.handled), len(found.transactions), len(found.recalled)) == (1, 1, 1, 1)
        assert found.unreadable == 1
        result = await trio.to_thread.run_sync(
            partial(CliRunner().invoke, app, ["trace", "AB12", "--namesrv", namesrv])
        )
        texts = [line.partition("  ")[2] for line in result.stdout.splitlines()[:-1]]
        assert texts == [
            "JP at 127.0.0.1 sent a delayed message of 5 bytes to T at 10.0.0.1:10911 in 12 ms",
            "JG at 127.0.0.1 failed to handle it in 7 ms: timeout (delivery 3)",
            "JP ended the transaction: COMMIT_MESSAGE, after a check-back of the broker",
            "JP failed to recall it",
        ]


async def test_failing_traces_are_dropped_and_do_not_fail_sends(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, broker):
        await (await broker.connect()).create_topic("NoTrace", perm=4)
        remoting = RemotingSettings(limits=TEST_MIN)
        async with Producer(namesrv, "P", trace="NoTrace", remoting=remoting) as producer:
            assert len(await producer.send_many([Message("T", b"x") for _ in range(200)])) == 200
            tracer = producer._tracer
            assert tracer is not None
        assert tracer.dropped_count == 200


async def test_trace_finds_each_of_thousands_of_messages(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, _), Admin(namesrv) as admin:
        async with Producer(namesrv, "P", trace=True, in_flight_max=500) as producer:
            keys = ["\u00e9t\u00e9", "k" * 100]
            messages = [Message("T", b"%d" % n, keys=[*keys, f"n{n}"], tags="\u2603 x") for n in range(3000)]
            results = await producer.send_many(messages)
            tracer = producer._tracer
            assert tracer is not None
        assert tracer.dropped_count == 0
        records: list[TraceRecord] = []
        for queue in (await admin.route(TRACE_TOPIC)).read_queues:
            async with PushConsumer(namesrv, "reader", consume_from="first") as consumer:
                consumer.subscribe(TRACE_TOPIC)
                assert queue.queue_id == 0
                async for message in consumer:
                    found, unreadable = decode_trace(message.body.decode())
                    assert unreadable == 0
                    records += found
                    if len(records) >= 3000:
                        break
        assert {each.message_id for each in records} == {each.message_id for each in results}  # type: ignore[union-attr]
        last = results[-1]
        assert not isinstance(last, Exception)
        (pub,) = (await admin.trace(last.message_id)).sent
        assert (pub.keys, pub.tags) == (" ".join([*keys, "n2999"]), "\u2603 x")


async def test_trace_contains_transactions(tmp_path: Path) -> None:
    answers: list[bool | None] = [None, True]

    async def check(message: ReceivedMessage) -> bool | None:
        return answers.pop(0)

    settings = {"transaction_timeout_seconds": 0.2, "transaction_check_seconds": 0.2}
    async with cluster_and_broker(tmp_path, **settings) as (namesrv, broker), Admin(namesrv) as admin:
        async with TransactionProducer(namesrv, "P", check=check, trace=True) as producer:
            async with producer.transaction(Message("T", b"seen", tags="a", keys=["k", "l"])) as good:
                pass
            async with producer.transaction(Message("T", b"never")) as bad:
                bad.rollback()
            async with producer.transaction(Message("T", b"asked", keys=["m"])) as asked:
                asked.leave_open()
            found = await story(admin, asked.message_id, lambda each: len(each.transactions) == 3)
        assert [(each.state, each.from_check) for each in found.transactions] == [
            ("UNKNOW", False),
            ("UNKNOW", True),
            ("COMMIT_MESSAGE", True),
        ]
        assert {(each.group, each.topic, each.keys, each.store_host) for each in found.transactions} == {
            ("P", "T", "m", broker.settings.listen)
        }
        found = await admin.trace(good.message_id)
        assert [(each.kind, each.body_bytes, each.success) for each in found.sent] == [(MessageKind.HALF, 4, True)]
        (ended,) = found.transactions
        assert ended.timestamp_ms >= found.sent[0].timestamp_ms
        assert (ended.group, ended.topic, ended.tags, ended.keys) == ("P", "T", "a", "k l")
        assert (ended.kind, ended.state, ended.transaction_id) == (
            MessageKind.COMMIT,
            "COMMIT_MESSAGE",
            good.message_id,
        )
        assert (ended.store_host, ended.region) == (broker.settings.listen, "DefaultRegion")
        (ended,) = (await admin.trace(bad.message_id)).transactions
        assert (ended.state, ended.from_check) == ("ROLLBACK_MESSAGE", False)


async def test_check_may_answer_with_truthy_or_falsy_values(tmp_path: Path) -> None:
    async def check(message: ReceivedMessage) -> bool | None:
        return ["a row of a table"] if message.body == b"yes" else []  # type: ignore[return-value]

    settings = {"transaction_timeout_seconds": 0.2, "transaction_check_seconds": 0.2}
    async with (
        cluster_and_broker(tmp_path, **settings) as (namesrv, _),
        Admin(namesrv) as admin,
        TransactionProducer(namesrv, "P", check=check, trace=True) as producer,
    ):
        for body, state in ((b"yes", "COMMIT_MESSAGE"), (b"no", "ROLLBACK_MESSAGE")):
            async with producer.transaction(Message("T", body)) as asked:
                asked.leave_open()
            found = await story(admin, asked.message_id, lambda each: len(each.transactions) == 2)
            assert found.transactions[1].state == state


async def test_trace_records_messages_polled_by_a_pull_consumer(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, _), Admin(namesrv) as admin:
        async with Producer(namesrv, "P") as producer:
            sent = [await producer.send(Message("T", b"%d" % n)) for n in range(2)]
        async with PullConsumer(namesrv, "G", consume_from="first", trace=True) as consumer:
            await consumer.assign(await consumer.queues("T"))
            assert [each.body for each in await consumer.poll(1, timeout=60)] == [b"0"]
        found = await admin.trace(sent[0].message_id)
        assert [(each.begun.group, each.ended and each.ended.success) for each in found.handled] == [("G", True)]
        assert not (await admin.trace(sent[1].message_id)).found
