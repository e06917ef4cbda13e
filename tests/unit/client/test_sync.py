"""The facade for threads."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import anyio.from_thread
import pytest

from mq.client import ClientClosed, Message, MessageRefused, SendResult
from mq.client.sync import SyncConsumer, SyncProducer
from tests.unit.client.fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with (
        anyio.from_thread.start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(FakeCluster.start(topics={"T": 1})) as started,
    ):
        yield started


def test_a_round_trip_between_threads(cluster: FakeCluster) -> None:
    with SyncProducer(cluster.namesrv) as producer:
        assert producer.send(Message("T", b"0")).queue_offset == 0
        outcomes = producer.send_many(Message("T", b"%d" % number) for number in range(1, 5))
        assert all(isinstance(each, SendResult) for each in outcomes)
    with SyncConsumer(cluster.namesrv, "cg", consume_from="first") as consumer:
        consumer.subscribe("T")
        bodies = []
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 5:
                break
        assert consumer.receive(timeout=0.05) is None
    assert bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert cluster.group.offsets["cg", "T", 0] == 5


def test_errors_come_as_themselves(cluster: FakeCluster) -> None:
    with SyncProducer(cluster.namesrv) as producer, pytest.raises(MessageRefused):
        producer.send(Message("T", b""))
    with pytest.raises(ClientClosed):
        producer.send(Message("T", b"x"))
