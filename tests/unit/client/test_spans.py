"""Spans of sends that fail, what a client that has none imports, and RocketMQ's attributes by opt-in."""

from __future__ import annotations

import subprocess
import sys

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from mq.client import (
    Message,
    MessageRefused,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendOutcomeUnknown,
    SendRejected,
    TopicNotFound,
)
from mq.client.semantic_names import OPT_IN, rename
from tests.support.waiting import cancelled_when, until
from tests.unit.client.fake_cluster import FakeCluster, Misdeed
from tests.unit.client.sending import sending


class Sends:
    """Spans of sends that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def outcome(self) -> tuple[str, str, StatusCode]:
        """Whether the last message may be stored, the kind of its error, the status."""
        span: ReadableSpan = self._exporter.get_finished_spans()[-1]
        self._exporter.clear()
        attributes = span.attributes or {}
        return str(attributes["raftmq.stored"]), str(attributes.get("error.type", "")), span.status.status_code


@pytest.mark.anyio
async def test_send_spans_record_if_the_message_was_stored() -> None:
    sends = Sends()
    async with sending(otel=sends.provider, retries=0, attempt_timeout=1.0) as (cluster, producer):
        await producer.send(Message("T", b"x"))
        assert sends.outcome() == ("yes", "", StatusCode.UNSET)
        cluster.leader.misdeeds = [Misdeed("refuse", code=13, remark="body too long")]
        with pytest.raises(SendRejected):
            await producer.send(Message("T", b"x"))
        assert sends.outcome() == ("no", "mq.client.errors.SendRejected", StatusCode.ERROR)
        cluster.leader.misdeeds = [Misdeed("silence", store=True)]
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message("T", b"x"))
        assert sends.outcome() == ("unknown", "mq.client.errors.SendOutcomeUnknown", StatusCode.ERROR)
        with pytest.raises(MessageRefused):
            await producer.send(Message("T", b""))
        assert sends.outcome() == ("no", "mq.client.errors.MessageRefused", StatusCode.ERROR)
        with pytest.raises(MessageRefused):
            await producer.send_batch([])
        assert sends.outcome() == ("no", "mq.client.errors.MessageRefused", StatusCode.ERROR)
        cluster.leader.misdeeds = [Misdeed("silence")]
        await cancelled_when(lambda: not cluster.leader.misdeeds, lambda: producer.send(Message("T", b"x")))
        assert sends.outcome() == ("unknown", "cancelled", StatusCode.ERROR)
        await producer.send_oneway(Message("T", b"x"))
        assert sends.outcome() == ("unknown", "", StatusCode.UNSET)


@pytest.mark.anyio
async def test_oneway_send_without_a_leader_is_an_error() -> None:
    sends = Sends()
    async with sending(otel=sends.provider, auto_create_topics=False) as (_, producer):
        with pytest.raises(TopicNotFound):
            await producer.send_oneway(Message("Missing", b"x"))
        assert sends.outcome() == ("no", "mq.client.errors.TopicNotFound", StatusCode.ERROR)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


CLIENTS = """
import sys
{before}
from mq.client import PopConsumer, Producer, PullConsumer, PushConsumer
from mq.client.sync import SyncProducer
try:
    for make in (Producer, SyncProducer, PullConsumer, PushConsumer):
        make("127.0.0.1:1", "G"{option})
    PopConsumer("127.0.0.1:1", "G", "T"{option})
except ImportError as error:
    print(error)
print("opentelemetry.trace" in sys.modules)
"""


def test_clients_import_opentelemetry_only_on_request() -> None:
    assert python(CLIENTS.format(before="", option="")) == "False"
    assert python(CLIENTS.format(before="", option=", otel=True")) == "True"


def test_missing_open_telemetry_error_names_the_package() -> None:
    said = python(CLIENTS.format(before="sys.modules['opentelemetry'] = None", option=", otel=True"))
    assert said == "otel=... needs OpenTelemetry: pip install 'raftmq[otel]'\nFalse"


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
    assert rename(OLD, opt_in) == attributes
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
