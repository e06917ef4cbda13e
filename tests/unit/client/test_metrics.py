"""Metrics of clients: what is counted, that it ends with the client, and that it costs nothing if nobody wants it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from prometheus_client import CollectorRegistry

from mq.client import (
    DeadLetter,
    Message,
    MessageRefused,
    OpenTelemetryMetrics,
    PrometheusMetrics,
    PullConsumer,
    ReceivedMessage,
    SendRejected,
    Skip,
)
from mq.client.metrics.families import ALL, Family
from mq.client.metrics.recorder import ClientMetrics, LabelBook
from mq.client.sync import SyncProducer
from tests.support.producing import producer_of
from tests.support.waiting import cancelled_when, until
from tests.unit.client.consuming import IMPATIENT, consumer_of, consuming, fill, filled
from tests.unit.client.fake_cluster import FakeCluster, Misdeed
from tests.unit.client.sending import sending

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).parents[3] / "docs" / "monitoring.md"
BEGIN, END = "<!-- client metrics -->", "<!-- end of client metrics -->"
PRODUCER = {"client": "1", "kind": "producer", "client_group": "raftmq_python"}
CONSUMER = {"client": "1", "kind": "push_consumer", "client_group": "cg"}


class Registry(CollectorRegistry):
    """A registry, and what tests ask of it."""

    def value(self, name: str, common: dict[str, str], **labels: str) -> float | None:
        return self.get_sample_value(f"raftmq_client_{name}", {**common, **labels})

    def series(self) -> set[tuple[str, tuple[str, ...]]]:
        return {(sample.name, tuple(sample.labels.values())) for family in self.collect() for sample in family.samples}


@pytest.fixture
def registry() -> Registry:
    return Registry()


async def test_sends_are_counted_by_their_outcome(cluster: FakeCluster, registry: Registry) -> None:
    async with producer_of(cluster, metrics=PrometheusMetrics(registry), retries=0) as producer:
        await producer.send(Message("T", b"12345"))
        await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
        cluster.leader.misdeeds = [Misdeed("refuse", code=13, remark="body too long")]
        with pytest.raises(SendRejected):
            await producer.send(Message("T", b"x"))
        with pytest.raises(MessageRefused):
            await producer.send(Message("T", b""))
        cluster.leader.misdeeds = [Misdeed("silence")]
        await cancelled_when(lambda: not cluster.leader.misdeeds, lambda: producer.send(Message("T", b"x")))
        await producer.send_oneway(Message("T", b"x"))
        counts = {
            outcome: registry.value("messages_sent_total", PRODUCER, topic="T", outcome=outcome)
            for outcome in ("stored", "oneway", "not_stored", "cancelled")
        }
        assert counts == {"stored": 3, "oneway": 1, "not_stored": 2, "cancelled": 1}
        assert registry.value("send_seconds_count", PRODUCER, topic="T", outcome="stored") == 2
        assert (registry.value("sent_bytes_total", PRODUCER, topic="T") or 0) > 7, "those of a batch with its frames"
        assert registry.value("sends_in_flight", PRODUCER) == 0
        assert (registry.value("open_connections", PRODUCER) or 0) > 0
    assert registry.series() == set()


async def test_repeated_attempt_has_a_reason(registry: Registry) -> None:
    async with sending(metrics=PrometheusMetrics(registry)) as (cluster, producer):
        await producer.send(Message("T", b"first"))
        assert not [each for each in registry.series() if "send_retries" in each[0]], "it waited for its first route"
        cluster.leader.misdeeds = [Misdeed("hang_up")]
        await producer.send(Message("T", b"again"))
        assert registry.value("send_retries_total", PRODUCER, topic="T", reason="connection_lost") == 1
        assert registry.value("reconnects_total", PRODUCER) == 1
        assert registry.value("events_total", PRODUCER, event="lost") == 1
        assert registry.value("messages_sent_total", PRODUCER, topic="T", outcome="stored") == 2


async def test_metrics_count_deliveries_by_outcome(registry: Registry) -> None:
    async with filled(4) as cluster:
        consumer = consumer_of(cluster, metrics=PrometheusMetrics(registry), on_error={KeyError: Skip})
        seen: list[tuple[bytes, int]] = []

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            seen.append((message.body, message.attempt))
            assert registry.value("handlers_running", CONSUMER) == 1
            if message.body == b"001" and message.attempt == 1:
                raise ValueError
            if message.body == b"002":
                raise KeyError
            if message.body == b"003":
                raise DeadLetter("bad")

        async with consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run)
            await until(lambda: registry.value("messages_settled_total", CONSUMER, topic="T", outcome="dead_letter"))
            counts = {
                outcome: registry.value("messages_settled_total", CONSUMER, topic="T", outcome=outcome)
                for outcome in ("done", "retried", "skipped", "dead_letter")
            }
            assert counts == {"done": 2, "retried": 1, "skipped": 1, "dead_letter": 1}
            assert registry.value("messages_received_total", CONSUMER, topic="T") == 5
            assert registry.value("messages_redelivered_total", CONSUMER, topic="T") == 1
            assert registry.value("received_bytes_total", CONSUMER, topic="T") == 15
            assert registry.value("end_to_end_seconds_count", CONSUMER, topic="T") == 4
            assert registry.value("handler_seconds_count", CONSUMER, topic="T", outcome="failed") == 3
            assert registry.value("handlers_running", CONSUMER) == 0
            assert registry.value("oldest_handler_seconds", CONSUMER) == 0
            consumer.stop()
    assert registry.series() == set()


async def test_unsettled_delivery_is_included_in_work(registry: Registry) -> None:
    async with consuming(1, metrics=PrometheusMetrics(registry)) as (_, consumer):
        with anyio.fail_after(60):
            delivery = await anext(consumer.deliveries())
        assert registry.value("handlers_running", CONSUMER) == 1
        assert (registry.value("oldest_handler_seconds", CONSUMER) or 0) > 0
        delivery.nack()
        assert registry.value("messages_settled_total", CONSUMER, topic="T", outcome="retried") == 1
        assert registry.value("handlers_running", CONSUMER) == 0


async def test_lag_of_a_topic_sums_its_queues(registry: Registry) -> None:
    pull = {"client": "1", "kind": "pull_consumer", "client_group": "G"}
    async with (
        FakeCluster.start(topics={"T": 2}) as cluster,
        PullConsumer(
            cluster.namesrv, "G", consume_from="first", metrics=PrometheusMetrics(registry), remoting=IMPATIENT
        ) as consumer,
    ):
        fill(cluster, 5, queues=2)
        await consumer.assign(await consumer.queues("T"))
        await until(lambda: registry.value("lag_messages", pull, topic="T") == 5)
        while len(await consumer.poll(timeout=0.5)):
            pass
        await until(lambda: registry.value("lag_messages", pull, topic="T") == 0)
        assert registry.value("messages_received_total", pull, topic="T") == 5


async def test_clients_of_a_group_have_different_reusable_numbers(cluster: FakeCluster, registry: Registry) -> None:
    first = await producer_of(cluster, metrics=PrometheusMetrics(registry)).open()
    second = await producer_of(cluster, metrics=PrometheusMetrics(registry)).open()
    await first.send(Message("T", b"x"))
    await second.send_batch([Message("T", b"x")] * 2)
    sent = {"topic": "T", "outcome": "stored"}
    assert registry.value("messages_sent_total", PRODUCER, **sent) == 1
    assert registry.value("messages_sent_total", PRODUCER | {"client": "2"}, **sent) == 2
    await first.aclose()
    assert registry.value("messages_sent_total", PRODUCER, **sent) is None
    await first.open()
    await first.send(Message("T", b"x"))
    assert registry.value("messages_sent_total", PRODUCER, **sent) == 1
    await first.aclose()
    await second.aclose()


async def test_topics_beyond_the_limit_share_a_metric_label(registry: Registry) -> None:
    names = [f"T{number}" for number in range(9)]
    async with FakeCluster.start(topics=dict.fromkeys(names, 1)) as cluster:
        for _ in range(2):
            async with producer_of(cluster, metrics=PrometheusMetrics(registry, topics_max=2)) as producer:
                for name in names:
                    await producer.send(Message(name, b"x"))
                counts = {
                    topic: registry.value("messages_sent_total", PRODUCER, topic=topic, outcome="stored")
                    for topic in ("T0", "T1", "T2", "other")
                }
                assert counts == {"T0": 1, "T1": 1, "T2": None, "other": 7}


def test_registry_has_the_options_of_its_first_object() -> None:
    registry = CollectorRegistry()
    PrometheusMetrics(registry, topics_max=5)
    PrometheusMetrics(registry, topics_max=5)
    with pytest.raises(ValueError, match="different options"):
        PrometheusMetrics(registry, topics_max=6)
    with pytest.raises(ValueError, match="topics_max is 0"):
        PrometheusMetrics(CollectorRegistry(), topics_max=0)


def test_registry_is_not_accepted_as_metrics() -> None:
    with pytest.raises(TypeError, match="metrics is a PrometheusMetrics or an OpenTelemetryMetrics"):
        SyncProducer("127.0.0.1:1", metrics=CollectorRegistry())  # type: ignore[arg-type]


class Broken(ClientMetrics):
    """A library that fails."""

    def __init__(self) -> None:
        self.book = LabelBook(10)

    def adder(self, family: Family, values: tuple[str, ...]) -> Any:
        raise ZeroDivisionError

    def gauge(self, family: Family, values: tuple[str, ...], read: Callable[[], float]) -> None:
        raise ZeroDivisionError

    def remove(self, family: Family, values: tuple[str, ...]) -> None:
        raise ZeroDivisionError

    def sample(self) -> None:
        raise ZeroDivisionError


async def test_messages_pass_if_metrics_fail(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.client.metrics.recorder._never_raises.warn_at", float("-inf"))
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        producer_of(cluster, metrics=Broken()) as producer,
        consumer_of(cluster, metrics=Broken()) as consumer,
    ):
        await producer.send(Message("T", b"x"))
        consumer.subscribe("T")
        with anyio.fail_after(60):
            async for message in consumer:
                assert message.body == b"x"
                break
    assert caplog.text.count("metrics_failed") == 1


def points(reader: InMemoryMetricReader) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Values of counters and gauges, counts of histograms."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    attributes = tuple(sorted((name, str(value)) for name, value in (point.attributes or {}).items()))
                    value = point.value if isinstance(point, NumberDataPoint) else point.count
                    found[metric.name, attributes] = value
    return found


@pytest.mark.parametrize("opt_in", ["", "messaging", "http,messaging/dup"])
async def test_metric_names_follow_the_opentelemetry_opt_in(opt_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        async with producer_of(cluster, metrics=OpenTelemetryMetrics(meter)) as producer:
            await producer.send(Message("T", b"x"))
            found = points(reader)
            own = (*sorted(PRODUCER.items()), ("outcome", "stored"), ("topic", "T"))
            semantic = (
                ("messaging.destination.name", "T"),
                ("messaging.operation.name", "send"),
                ("messaging.system", "rocketmq"),
            )
            is_old, is_new = opt_in != "messaging", opt_in != ""
            assert (found.get(("raftmq.client.messages_sent", own)) == 1) is is_old
            assert (found.get(("raftmq.client.send_seconds", own)) == 1) is is_old
            assert (found.get(("messaging.client.sent.messages", semantic)) == 1) is is_new
            assert (found.get(("messaging.client.operation.duration", semantic)) == 1) is is_new
            assert found["raftmq.client.sends_in_flight", tuple(sorted(PRODUCER.items()))] == 0
        assert not [name for name, _ in points(reader) if name.endswith(("in_flight", "connections"))], "it is closed"


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return done.stdout.strip()


IMPORTS = """
import sys
{before}
from mq.client import OpenTelemetryMetrics, PrometheusMetrics
print("prometheus_client" in sys.modules, "opentelemetry.metrics" in sys.modules)
for each in (PrometheusMetrics, OpenTelemetryMetrics):
    try:
        each()
    except ImportError as error:
        print(error)
"""


def test_missing_metric_libraries_name_the_remedy() -> None:
    lines = python(
        IMPORTS.format(before="for name in ('prometheus_client', 'opentelemetry'): sys.modules[name] = None")
    ).splitlines()
    assert lines == [
        "True False",  # None is there
        "PrometheusMetrics needs prometheus_client: pip install 'raftmq[prometheus]'",
        "OpenTelemetryMetrics needs OpenTelemetry: pip install 'raftmq[otel]'",
    ]
    assert python(IMPORTS.format(before="")) == "False False"


PREFORK = """
import os
import anyio
from prometheus_client import CollectorRegistry, multiprocess
from mq.client import PrometheusMetrics
from mq.client.metrics.recorder import open_recorder

metrics = PrometheusMetrics()
async def client(number):
    async with open_recorder(metrics, "producer", "G", lambda: 3) as recorder:
        recorder.not_awaited("T", "oneway", 10 + number)
        recorder._sample()
        if number:
            os._exit(0)  # without closing

for number in range(2):
    if (child := os.fork()) == 0:
        anyio.run(client, number)
        os._exit(0)
    os.waitpid(child, 0)
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
labels = {"client": "1", "kind": "producer", "client_group": "G"}
print(registry.get_sample_value("raftmq_client_messages_sent_total", labels | {"topic": "T", "outcome": "oneway"}))
print(registry.get_sample_value("raftmq_client_open_connections", labels))
"""


def test_metrics_of_forked_processes_add_up(tmp_path: Path) -> None:
    assert python(PREFORK, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)).splitlines() == ["21.0", "3.0"]


def test_client_metric_names_differ_from_server_metrics() -> None:
    names = {family.name for family in ALL}
    assert names.isdisjoint({"connections", "connections_refused", "connections_dropped"}), "metrics of brokers"
    assert len(names) == len(ALL)


def shown(family: Family) -> str:
    return f"raftmq_client_{family.name}{'_total' if family.kind == 'counter' else ''}"


def test_guide_has_every_metric_and_asks_for_no_other() -> None:
    """With REWRITE=1 the table is written anew."""
    rows = [
        f"| `{shown(family)}` | {', '.join(f'`{label}`' for label in family.labels) or ' '} | {family.text} |"
        for family in ALL
    ]
    table = "\n".join(("| metric | labels | |", "|---|---|---|", *rows))
    text = GUIDE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    if os.environ.get("REWRITE"):
        GUIDE.write_text(f"{text[:begin]}\n\n{table}\n\n{text[end:]}")
    text = GUIDE.read_text()
    assert text[begin:].startswith(f"\n\n{table}\n\n{END}"), "docs/monitoring.md: REWRITE=1"
    asked = set(re.findall(r"\b(raftmq_client_[a-z_]+)[{)\[]", text[text.index(END) :]))
    assert len(asked) >= 4
    assert asked <= {shown(family) for family in ALL}
