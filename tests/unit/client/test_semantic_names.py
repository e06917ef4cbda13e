"""The names of RocketMQ's attributes in spans, by OpenTelemetry's opt-in."""

from __future__ import annotations

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mq.client import Message, Producer, PushConsumer, ReceivedMessage
from mq.client.semantic_names import OPT_IN, named
from tests.support.waiting import until
from tests.unit.client.fake_cluster import FakeCluster

OLD = {"messaging.system": "rocketmq", "messaging.rocketmq.message.tag": "a"}
NEW = {"messaging.system": "rocketmq", "rocketmq.message.tag": "a"}


@pytest.mark.parametrize(
    ("opt_in", "attributes"),
    [
        (None, OLD),
        ("", OLD),
        ("http", OLD),
        ("Messaging", OLD),
        ("messaging/other", OLD),
        ("messaging", NEW),
        ("http/dup, messaging ,database", NEW),
        ("messaging/dup", OLD | NEW),
        ("messaging,messaging/dup", OLD | NEW),
        (",,", OLD),
    ],
)
def test_opt_in_chooses_the_names(opt_in: str | None, attributes: dict[str, str]) -> None:
    assert named(OLD, opt_in) == attributes
    assert set(OLD) == {"messaging.system", "messaging.rocketmq.message.tag"}, "the argument stays as it was"


@pytest.mark.anyio
@pytest.mark.parametrize(("opt_in", "prefixes"), [("messaging", ["rocketmq."]), ("", ["messaging.rocketmq."])])
async def test_spans_get_the_chosen_semantic_names(
    monkeypatch: pytest.MonkeyPatch, opt_in: str, prefixes: list[str]
) -> None:
    monkeypatch.setenv(OPT_IN, opt_in)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        async with Producer(cluster.namesrv, otel=provider) as producer:
            await producer.send(Message("T", b"x", tags="a", keys=["k"], sharding_key="s", delay_level=2))
        consumer = PushConsumer(cluster.namesrv, "G", consume_from="first", otel=provider)

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            consumer.stop()

        async with consumer:
            with anyio.fail_after(60):
                await consumer.run()
        await until(lambda: len(exporter.get_finished_spans()) == 2)
    names = {
        span.name: {name for name in span.attributes or {} if "rocketmq." in name}
        for span in exporter.get_finished_spans()
    }
    [prefix] = prefixes
    assert names == {
        "send T": {prefix + name for name in ("message.tag", "message.keys", "message.type", "message.group")}
        | {prefix + "message.delay_time_level"},
        "process T": {prefix + name for name in ("message.tag", "message.keys", "consumption_model")},
    }
