"""OpenTelemetry spans of the SDK: a name server and a broker, real sockets, spans kept in memory."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mq.client import Message, PopConsumer, Producer, PullConsumer, PushConsumer, ReceivedMessage, TransactionProducer
from mq.client.sync import SyncPopConsumer, SyncProducer, SyncPushConsumer
from tests.support.name_server_and_broker import cluster
from tests.support.running_broker import SECONDS_MAX
from tests.support.waiting import until_found

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorded:
    """Spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.all(name)
        return span

    async def wait(self, name: str) -> Sequence[ReadableSpan]:
        return await until_found(lambda: self.all(name))


@pytest.fixture
def spans() -> Recorded:
    return Recorded()


def linked(span: ReadableSpan) -> set[int]:
    """The spans that one links to."""
    return {link.context.span_id for link in span.links}


def own_id(span: ReadableSpan) -> int:
    return int(span.context.span_id)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(json.loads(span.to_json())["attributes"])


async def test_handler_continues_the_trace_of_the_producer(tmp_path: Path, spans: Recorded) -> None:
    seen: list[ReceivedMessage] = []
    async with cluster(tmp_path) as namesrv, Producer(namesrv, "P", otel=spans.provider) as producer:
        consumer = PushConsumer(namesrv, "G", consume_from="first", otel=spans.provider)

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            with spans.tracer.start_as_current_span("bill"):
                seen.append(message)

        with spans.tracer.start_as_current_span("order"):
            result = await producer.send(Message("T", b"hello", tags="new", keys=["k1", "k2"]))
        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run)
            [processed] = await spans.wait("process T")
            nursery.cancel_scope.cancel()
        order, sent, bill = spans.one("order"), spans.one("send T"), spans.one("bill")
        assert sent.parent == order.get_span_context()
        assert linked(processed) == {own_id(sent)}
        assert processed.parent is not None
        assert processed.parent.span_id == own_id(sent)
        assert bill.parent == processed.get_span_context()
        assert {span.context.trace_id for span in (order, sent, processed, bill)} == {order.context.trace_id}
        assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert sent.end_time <= processed.start_time  # type: ignore[operator]

        # Clients in other languages find it among the properties.
        context = sent.context
        assert seen[0].properties["traceparent"] == (
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        )
        host, _, port = f"{seen[0].store_host.ip}:{seen[0].store_host.port}".rpartition(":")
        assert attributes(sent) == {
            "messaging.system": "rocketmq",
            "messaging.client.id": producer.client_id,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": "T",
            "messaging.destination.partition.id": "broker-a/0",
            "messaging.message.id": result.message_id,
            "messaging.message.body.size": 5,
            "messaging.rocketmq.message.tag": "new",
            "messaging.rocketmq.message.keys": ["k1", "k2"],
            "messaging.rocketmq.message.type": "normal",
            "server.address": host,
            "server.port": int(port),
            "raftmq.stored": "yes",
            "raftmq.send.attempts": 1,
        }
        assert attributes(processed) == {
            "messaging.system": "rocketmq",
            "messaging.client.id": consumer.client_id,
            "messaging.consumer.group.name": "G",
            "messaging.rocketmq.consumption_model": "clustering",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "T",
            "messaging.destination.partition.id": "broker-a/0",
            "messaging.message.id": result.message_id,
            "messaging.message.body.size": 5,
            "messaging.rocketmq.message.tag": "new",
            "messaging.rocketmq.message.keys": ["k1", "k2"],
        }


async def test_spans_show_failed_handlers_and_returned_messages(namesrv: str, spans: Recorded) -> None:
    async with Producer(namesrv, otel=spans.provider) as producer:
        consumer = PushConsumer(namesrv, "G", consume_from="first", ordered=False, otel=spans.provider)

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            raise ValueError("no money")

        await producer.send(Message("T", b"hello"))
        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run)
            [settled] = await spans.wait("nack T")
            nursery.cancel_scope.cancel()
        processed, sent = spans.one("process T"), spans.one("send T")
        assert (processed.status.status_code, processed.status.description) == (StatusCode.ERROR, "no money")
        assert attributes(processed)["error.type"] == "builtins.ValueError"
        assert [event.name for event in processed.events] == ["exception"]
        assert linked(settled) == {own_id(sent)}
        assert (settled.kind, attributes(settled)["messaging.operation.type"]) == (SpanKind.CLIENT, "settle")


async def test_spans_of_deliveries_end_when_settled(namesrv: str, spans: Recorded) -> None:
    async with (
        Producer(namesrv, otel=spans.provider) as producer,
        PushConsumer(namesrv, "G", consume_from="first", otel=spans.provider) as consumer,
    ):
        consumer.subscribe("T")
        sent = [await producer.send(Message("T", b"%d" % number)) for number in range(4)]
        deliveries = consumer.deliveries()
        with trio.fail_after(SECONDS_MAX):
            with await anext(deliveries), spans.tracer.start_as_current_span("in the block"):
                pass
            assert not trace.get_current_span().get_span_context().is_valid
            (await anext(deliveries)).ack()
            with pytest.raises(ValueError, match="no"), await anext(deliveries):
                raise ValueError("no")
            stream = aiter(consumer)
            assert (await anext(stream)).body in (b"2", b"3")
            assert len(spans.all("process T")) == 3
            await anext(stream)
        found = spans.all("process T")
        assert spans.one("in the block").parent == found[0].get_span_context()
        outcomes = [attributes(span)["raftmq.delivery.outcome"] for span in found]
        assert outcomes == ["acknowledged", "acknowledged", "given back", "acknowledged"]
        assert [attributes(span)["messaging.message.id"] for span in found[:3]] == [
            each.message_id for each in sent[:3]
        ]


async def test_receiving_spans_link_to_the_single_span_of_a_batch(namesrv: str, spans: Recorded) -> None:
    async with (
        Producer(namesrv, otel=spans.provider) as producer,
        PullConsumer(namesrv, "G", consume_from="first", otel=spans.provider) as consumer,
    ):
        await producer.send_batch([Message("T", b"%d" % number) for number in range(3)], properties={"a": "b"})
        await producer.send(Message("T", b"x", sharding_key="s"))
        batch, single = spans.all("send T")
        assert attributes(batch)["messaging.batch.message_count"] == 3
        assert attributes(single)["messaging.rocketmq.message.type"] == "fifo"
        await consumer.assign(await consumer.queues("T"))
        messages: list[ReceivedMessage] = []
        with trio.fail_after(SECONDS_MAX):
            while len(messages) < 4:
                messages += await consumer.poll(timeout=5)
        assert await consumer.poll(timeout=0) == []
        received = spans.all("poll T")
        assert sum(attributes(span)["messaging.batch.message_count"] for span in received) == 4
        assert set().union(*map(linked, received)) == {own_id(batch), own_id(single)}
        assert {attributes(span)["messaging.operation.type"] for span in received} == {"receive"}
        await consumer.commit()
        assert attributes(spans.one("commit T"))["messaging.operation.type"] == "settle"

        handler = PushConsumer(namesrv, "H", consume_from="first", otel=spans.provider)

        @handler.on("T", batch=10)
        async def handle(messages: list[ReceivedMessage]) -> None: ...

        async with handler, trio.open_nursery() as nursery:
            nursery.start_soon(handler.run)
            processed = await spans.wait("process T")
            nursery.cancel_scope.cancel()
        assert attributes(processed[0])["messaging.batch.message_count"] >= 1
        assert linked(processed[0]) <= {own_id(batch), own_id(single)}


async def test_pops_are_received_and_settled(namesrv: str, spans: Recorded) -> None:
    async with (
        Producer(namesrv, otel=spans.provider) as producer,
        PopConsumer(namesrv, "G", "T", consume_from="first", otel=spans.provider) as consumer,
    ):
        await producer.send_many([Message("T", b"1"), Message("T", b"2")])
        with trio.fail_after(SECONDS_MAX):
            await consumer.ack(await anext(consumer))
            await consumer.nack(await anext(consumer), delay=3600)
        sent = {own_id(span) for span in spans.all("send T")}
        popped = spans.all("pop T")
        assert {link for span in popped for link in linked(span)} == sent
        settled = [spans.one("ack T"), spans.one("nack T")]
        assert [linked(span) for span in settled] == [linked(span) for span in popped]
        assert {span.kind for span in settled} == {SpanKind.CLIENT}
        assert popped[0].end_time <= settled[0].start_time  # type: ignore[operator]


async def test_transactions_and_their_ends(namesrv: str, spans: Recorded) -> None:
    async with (
        TransactionProducer(namesrv, "P", check=lambda message: None, otel=spans.provider) as producer,
    ):
        async with producer.transaction(Message("T", b"half")):
            pass
        assert attributes(spans.one("send T"))["messaging.rocketmq.message.type"] == "transaction"
        assert attributes(spans.one("commit T"))["messaging.destination.name"] == "T"
        with pytest.raises(ValueError, match="no"):
            async with producer.transaction(Message("T", b"half")):
                raise ValueError("no")
        assert spans.one("rollback T").status.status_code is StatusCode.UNSET


async def test_send_span_links_to_the_trace_context_of_the_application(namesrv: str, spans: Recorded) -> None:
    async with (
        Producer(namesrv, otel=spans.provider) as producer,
        PullConsumer(namesrv, "G", consume_from="first") as consumer,
    ):
        await producer.send(Message("T", b"x", properties={"traceparent": TRACEPARENT}))
        assert {f"{span_id:016x}" for span_id in linked(spans.one("send T"))} == {TRACEPARENT.split("-")[2]}
        await consumer.assign(await consumer.queues("T"))
        [message] = await consumer.poll(timeout=SECONDS_MAX)
        assert message.properties["traceparent"] == TRACEPARENT
        assert [span.name for span in spans._exporter.get_finished_spans()] == ["send T"], "a client without otel"


async def test_clients_for_threads(tmp_path: Path, spans: Recorded) -> None:
    def use(namesrv: str) -> None:
        with SyncProducer(namesrv, otel=spans.provider) as producer, spans.tracer.start_as_current_span("order"):
            producer.send(Message("T", b"1"))
            producer.submit(Message("T", b"2")).result(SECONDS_MAX)
        with SyncPopConsumer(namesrv, "P", "T", consume_from="first", otel=spans.provider) as popping:
            message = popping.receive(timeout=SECONDS_MAX)
            assert message is not None
            popping.ack(message)
        with SyncPushConsumer(namesrv, "G", consume_from="first", otel=spans.provider) as consumer:
            consumer.subscribe("T")
            with next(consumer.deliveries()), spans.tracer.start_as_current_span("in the block"):
                pass
            assert not trace.get_current_span().get_span_context().is_valid
        handling = SyncPushConsumer(namesrv, "H", consume_from="first", otel=spans.provider)

        @handling.on("T")
        def handle(message: ReceivedMessage) -> None:
            with spans.tracer.start_as_current_span("in the handler"):
                pass
            handling.stop()

        with handling:
            handling.run()

    async with cluster(tmp_path) as namesrv:
        await trio.to_thread.run_sync(functools.partial(use, namesrv))
    order = spans.one("order")
    assert [span.parent for span in spans.all("send T")] == [order.get_span_context()] * 2
    assert len(spans.all("pop T")) == len(spans.all("ack T")) == 1
    processed = {own_id(span): span for span in spans.all("process T")}
    for name in ("in the block", "in the handler"):
        parent = spans.all(name)[0].parent
        assert parent is not None
        assert processed[parent.span_id].context.trace_id == order.context.trace_id
