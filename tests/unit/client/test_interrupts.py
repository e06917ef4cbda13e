"""Ctrl-C while a thread waits for a synchronous client: no message counts as handled that the thread did not get."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio.from_thread
import pytest

from mq.client import ClientClosed, ClientError, Message
from mq.client.sync import SyncPopConsumer, SyncProducer, SyncPullConsumer, SyncPushConsumer, SyncTransactionProducer
from mq.client.sync.facade import Facade, _close_at_exit
from tests.support.waiting import until, wait_until
from tests.unit.client.consuming import IMPATIENT, fill
from tests.unit.client.fake_cluster import FakeCluster, Misdeed, check_back
from tests.unit.client.popping import popped_message


@contextmanager
def interrupted(client: Facade[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next call of this thread ends in the event loop, and ctrl-C comes before the thread learns of it."""
    thread = client._open_thread()
    start = thread.portal.start_task_soon

    def start_interrupted(*args: Any) -> Any:
        monkeypatch.undo()
        future = start(*args)
        result = future.result

        def interrupt(*rest: Any) -> None:
            result(60)
            raise KeyboardInterrupt

        monkeypatch.setattr(future, "result", interrupt)
        return future

    monkeypatch.setattr(thread.portal, "start_task_soon", start_interrupted)
    with pytest.raises(KeyboardInterrupt):
        yield


def test_receive_keeps_a_message_of_an_interrupted_call(threads: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(threads, 3)
    with SyncPushConsumer(threads.namesrv, "cg", consume_from="first") as consumer:
        consumer.subscribe("T")
        first = consumer.receive(timeout=10)
        with interrupted(consumer, monkeypatch):
            consumer.receive(timeout=10)
        assert list(consumer.positions.values()) == [1], "the message of the interrupted call is acknowledged"
        following = [consumer.receive(timeout=10) for _ in range(2)]
        assert [each and each.body for each in [first, *following]] == [b"000", b"001", b"002"]


def test_interrupted_receive_is_never_acknowledged(threads: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(threads, 3)
    with SyncPushConsumer(threads.namesrv, "cg", consume_from="first") as consumer:
        consumer.subscribe("T")
        consumer.receive(timeout=10)
        with interrupted(consumer, monkeypatch):
            consumer.receive(timeout=10)
    assert threads.group.offsets["cg", "T", 0] == 1


def test_pop_consumer_keeps_an_interrupted_message(threads: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with SyncPopConsumer(threads.namesrv, "G", "T") as consumer:
        inbox = consumer._client._inbox
        consumer._call_now(lambda: inbox.put([popped_message(0, 1), popped_message(1, 1)]))
        with interrupted(consumer, monkeypatch):
            consumer.receive(timeout=10)
        bodies = [each.body for each in (consumer.receive(timeout=10), consumer.receive(timeout=10)) if each]
        assert bodies == [b"0", b"1"]


def test_delivery_of_an_interrupted_call_is_repeated(threads: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(threads, 2)
    with SyncPushConsumer(threads.namesrv, "cg", consume_from="first", exclusive=True) as consumer:
        consumer.subscribe("T")
        consumer.wait_assigned()
        stream = consumer.deliveries()
        with next(stream) as message:
            assert message.body == b"000"
        with interrupted(consumer, monkeypatch):
            next(stream)
        again = consumer.receive(timeout=10)
        assert again is not None, "it is neither delivered again nor acknowledged"
        assert again.body == b"001"


def test_commit_omits_messages_of_an_interrupted_poll(threads: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(threads, 6)
    with SyncPullConsumer(threads.namesrv, "cg", consume_from="first") as consumer:
        [queue] = consumer.queues("T")
        consumer.assign([queue])
        assert [message.body for message in consumer.poll(2, timeout=60)] == [b"000", b"001"]
        with interrupted(consumer, monkeypatch):
            consumer.poll(2, timeout=60)
        consumer.commit()
        assert threads.group.offsets["cg", "T", 0] == 2
        assert [message.body for message in consumer.poll(2, timeout=60)] == [b"002", b"003"]


def test_ctrl_c_ends_a_waiting_receive(threads: FakeCluster) -> None:
    with SyncPushConsumer(threads.namesrv, "cg", consume_from="first") as consumer:
        consumer.subscribe("T")
        board = consumer._client._board

        def press() -> None:
            consumer._call(until, lambda: board._offer_event.statistics().tasks_waiting == 1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        thread = threading.Thread(target=press)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            consumer.receive(timeout=10)
        thread.join()
        with SyncProducer(threads.namesrv) as producer:
            producer.send(Message("T", b"x"))
        assert getattr(consumer.receive(timeout=10), "body", None) == b"x"


def test_closing_consumer_warns_of_a_running_handler(threads: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    fill(threads, 1)
    consumer = SyncPushConsumer(threads.namesrv, "cg", consume_from="first", remoting=IMPATIENT)
    begun, go_on = threading.Event(), threading.Event()

    @consumer.on("T")
    def handle(message: object) -> None:
        begun.set()
        assert go_on.wait(60)

    consumer.open()
    runner = threading.Thread(target=consumer.run)
    runner.start()
    assert begun.wait(60)
    _close_and_hear(consumer, go_on, caplog)
    runner.join(60)


def test_closing_producer_warns_of_a_running_check(caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on = threading.Event(), threading.Event()
    refused: list[ClientError] = []

    def check(message: object) -> None:
        try:
            producer.close()  # would wait for itself
        except ClientError as error:
            refused.append(error)
        begun.set()
        assert go_on.wait(60)

    with (
        anyio.from_thread.start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(FakeCluster.start(topics={"T": 1})) as cluster,
    ):
        producer = SyncTransactionProducer(cluster.namesrv, "pg", check=check, remoting=IMPATIENT).open()
        producer.send(Message("T", b"x"))
        [connection] = cluster.leader.connections
        portal.call(connection.send, check_back(cluster))
        assert begun.wait(60)
        assert "cannot close its client" in str(refused[0])
        _close_and_hear(producer, go_on, caplog)


def _close_and_hear(client: Any, go_on: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    closer = threading.Thread(target=client.close)
    closer.start()
    wait_until(lambda: "close_waits" in caplog.text)
    go_on.set()
    closer.join(60)
    assert not closer.is_alive()


def test_callback_cannot_close_its_producer(threads: FakeCluster) -> None:
    producer = SyncProducer(threads.namesrv, attempt_timeout=0.5).open()
    threads.leader.misdeeds = [Misdeed("silence")]  # so that the send is under way when the callback is added
    raised: list[BaseException] = []

    def close(_: object) -> None:
        try:
            producer.close()
        except ClientError as error:
            raised.append(error)

    future = producer.submit(Message("T", b"x"))
    future.add_done_callback(close)
    future.result(60)
    producer.send(Message("T", b"y"))  # it is still open
    assert len(raised) == 1
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(Message("T", b"z"))


def test_program_that_exits_accepts_only_earlier_messages(threads: FakeCluster) -> None:
    """Threads that do not end with it may send for ever."""
    producer = SyncProducer(threads.namesrv, attempt_timeout=1.5).open()
    producer.send(Message("T", b"x"))
    threads.leader.misdeeds = [Misdeed("silence")]
    earlier = producer.submit(Message("T", b"y"))
    end = threading.Thread(target=_close_at_exit)
    end.start()

    def send_for_ever() -> None:
        while True:
            producer.send(Message("T", b"z"))

    with pytest.raises(ClientClosed):
        send_for_ever()
    assert not earlier.done()
    assert earlier.result(60).attempts == 2
    end.join(60)
    producer.close()
