"""The facade for threads."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading

import pytest

from mq.client import (
    Admin,
    ClientClosed,
    Message,
    MessageQueue,
    MessageRefused,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
)
from mq.client.sync import SyncAdmin, SyncPopConsumer, SyncProducer, SyncPullConsumer, SyncPushConsumer, loop_thread
from tests.support.waiting import until
from tests.unit.client.fake_cluster import FakeCluster


@pytest.fixture(autouse=True, params=["asyncio", "trio"])
def event_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "event_loop", lambda: request.param)


@pytest.fixture
def cluster(threads: FakeCluster) -> FakeCluster:
    return threads


def test_round_trip_between_threads(cluster: FakeCluster) -> None:
    with SyncProducer(cluster.namesrv) as producer:
        assert producer.send(Message("T", b"0")).queue_offset == 0
        outcomes = producer.send_many(Message("T", b"%d" % number) for number in range(1, 5))
        assert all(isinstance(each, SendResult) for each in outcomes)
    with SyncPushConsumer(cluster.namesrv, "cg", consume_from="first") as consumer:
        consumer.subscribe("T")
        bodies = []
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 5:
                break
        assert consumer.receive(timeout=0.05) is None
    assert bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert cluster.group.offsets["cg", "T", 0] == 5


def test_synchronous_clients_raise_the_original_errors(cluster: FakeCluster) -> None:
    with SyncProducer(cluster.namesrv) as producer, pytest.raises(MessageRefused):
        producer.send(Message("T", b""))
    with SyncProducer(cluster.namesrv) as producer, pytest.raises(MessageRefused, match="only messages that wait for"):
        producer.recall(None)
    with pytest.raises(ClientClosed):
        producer.send(Message("T", b"x"))


NOT_FOR_THREADS = {
    "aclose",  # `close`
    "send_nowait",  # `submit` returns a future, which takes callbacks
    "group",
    "client_id",
    "timeout",
}


@pytest.mark.parametrize(
    ("asynchronous", "blocking"),
    [
        (Producer, SyncProducer),
        (PushConsumer, SyncPushConsumer),
        (PullConsumer, SyncPullConsumer),
        (PopConsumer, SyncPopConsumer),
        (Admin, SyncAdmin),
    ],
)
def test_sync_facade_offers_all_asynchronous_methods(asynchronous: type, blocking: type) -> None:
    names = {name for name in dir(asynchronous) if not name.startswith("_")} - NOT_FOR_THREADS
    assert names <= set(dir(blocking))
    assert inspect.signature(blocking) == inspect.signature(asynchronous)
    for name in names:
        assert getattr(blocking, name).__doc__, f"{name} says nothing"


def test_sends_in_all_forms(cluster: FakeCluster) -> None:
    with SyncProducer(cluster.namesrv, in_flight_max=2) as producer:
        futures = [producer.submit(Message("T", b"%d" % number)) for number in range(10)]
        assert sorted(future.result(60).queue_offset for future in futures) == list(range(10))
        [queue] = producer.queues("T")
        assert producer.send(Message("T", b"10"), queue=queue).queue_offset == 10
        producer.send_oneway(Message("T", b"11"))
        producer.flush()
        assert producer.in_flight == 0
        with pytest.raises(MessageRefused):
            producer.submit(Message("T", b""))


@pytest.mark.parametrize("ordered", [True, False])
def test_handlers_run_in_threads(cluster: FakeCluster, ordered: bool) -> None:
    with SyncProducer(cluster.namesrv) as producer:
        producer.send_many(Message("T", b"%d" % number) for number in range(20))
    consumer = SyncPushConsumer(cluster.namesrv, "cg", consume_from="first", ordered=ordered, concurrency=4)
    handled: list[bytes] = []
    threads: set[str] = set()

    @consumer.on("T")
    def handle(message: ReceivedMessage) -> None:
        threads.add(threading.current_thread().name)
        handled.append(message.body)
        if len(handled) == 10:
            consumer.pause()
            consumer.resume()
        if len(handled) == 20:
            consumer.stop()

    with consumer:
        consumer.run()
    assert sorted(handled) == sorted(b"%d" % number for number in range(20))
    if ordered:
        assert handled == [b"%d" % number for number in range(20)]
    assert threading.current_thread().name not in threads
    assert cluster.group.offsets["cg", "T", 0] == 20


def test_sync_clients_work_within_the_event_loop_of_a_notebook(cluster: FakeCluster) -> None:
    async def cell() -> list[bytes]:
        with SyncProducer(cluster.namesrv) as producer:
            producer.send(Message("T", b"0"))
        consumer = SyncPushConsumer(cluster.namesrv, "cg", consume_from="first", ordered=False)
        handled: list[bytes] = []

        @consumer.on("T")
        def handle(message: ReceivedMessage) -> None:
            handled.append(message.body)
            consumer.stop()

        with consumer:
            consumer.run()
        return handled

    assert asyncio.run(cell()) == [b"0"]


def test_sync_deliveries_are_acknowledged_singly(cluster: FakeCluster) -> None:
    with SyncProducer(cluster.namesrv) as producer:
        producer.send_many(Message("T", b"%d" % number) for number in range(3))
    with SyncPushConsumer(cluster.namesrv, "cg", consume_from="first") as consumer:
        consumer.subscribe("T")
        assert consumer.wait_assigned() == {MessageQueue("T", "b-0", 0)}
        first, second, third = itertools.islice(consumer.deliveries(), 3)
        with second as message:
            assert message.body == b"1"
        with pytest.raises(ZeroDivisionError), third:
            raise ZeroDivisionError
        assert third.finished
        assert list(consumer.positions.values()) == [0]
        first.ack()
        assert list(consumer.positions.values()) == [2]
        consumer.commit()
        assert cluster.group.offsets["cg", "T", 0] == 2


def test_pull_consumer_and_an_admin(cluster: FakeCluster) -> None:
    with SyncProducer(cluster.namesrv) as producer:
        producer.send_many(Message("T", b"%d" % number) for number in range(5))
    with SyncAdmin(cluster.namesrv) as admin, SyncPullConsumer(cluster.namesrv, "cg") as consumer:
        [queue] = consumer.queues("T")
        assert admin.max_offset(queue) == 5
        consumer.assign([queue])
        consumer.seek(queue, 3)
        assert [message.body for message in consumer.poll(timeout=10)] == [b"3", b"4"]
        assert consumer.assignment == {queue}
        assert (consumer.positions, consumer.position(queue)) == ({queue: 5}, 5)
        consumer.pause()
        assert consumer.poll(timeout=0.01) == []
        consumer.resume()
        consumer.commit()
        assert consumer.committed(queue) == admin.group_offset("cg", queue) == 5
        assert admin.topics() == ["T"]
    with pytest.raises(ClientClosed, match="SyncAdmin"):
        admin.topics()


@pytest.mark.parametrize("way", ["receive", "deliveries", "poll"])
def test_waiting_thread_gets_an_error_when_the_client_closes(cluster: FakeCluster, way: str) -> None:
    pushed = SyncPushConsumer(cluster.namesrv, "G")
    polled = SyncPullConsumer(cluster.namesrv, "G")
    raised: list[Exception] = []

    def wait() -> None:
        try:
            match way:
                case "receive":
                    pushed.receive()
                case "deliveries":
                    next(pushed.deliveries())
                case _:
                    polled.poll(timeout=600)
        except Exception as error:
            raised.append(error)

    with polled if way == "poll" else pushed as client:
        thread = threading.Thread(target=wait)
        thread.start()
        board = client._client._board
        client._call(until, lambda: board._offer_event.statistics().tasks_waiting == 1)
    thread.join(60)
    assert [type(error) for error in raised] == [ClientClosed]
