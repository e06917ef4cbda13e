"""The broker for Dramatiq: real actors, Dramatiq's own workers, real brokers in memory."""

from __future__ import annotations

import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import pytest
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from mq.client.sync import SyncAdmin, SyncProducer
from mq.protocol.codes import ResponseCode
from mq.tasks.names import queue_topic
from raftmq import Message, MessageRefused
from raftmq.dramatiq import RaftmqBroker
from raftmq.testing import running_kit
from tests.support.waiting import wait_until

SECONDS_MAX = 8.0
JOIN_MS = int(SECONDS_MAX * 1000)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def kit() -> Iterator[Any]:
    with running_kit() as kit:
        yield kit


@pytest.fixture
def namespace() -> str:
    return f"tasks{next(_numbers)}"


@contextmanager
def opened(kit: Any, namespace: str, **given: Any) -> Iterator[RaftmqBroker]:
    broker = RaftmqBroker(kit.namesrv, namespace=namespace, **given)
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture
def broker(kit: Any, namespace: str) -> Iterator[RaftmqBroker]:
    with opened(kit, namespace) as broker:
        yield broker


@contextmanager
def working(broker: RaftmqBroker, threads: int = 2, prefetch: int | None = None) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_threads=threads, worker_timeout=20)
    if prefetch is not None:
        worker.queue_prefetch = prefetch
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def join(broker: RaftmqBroker, queue: str = "default") -> None:
    broker.join(queue, interval=10, timeout=JOIN_MS)


def wait(condition: Callable[[], object]) -> None:
    """For what a worker does. The brokers' clock is not put ahead meanwhile: it would overtake what workers hold."""
    wait_until(condition, seconds=SECONDS_MAX)


def dead_letters(kit: Any, namespace: str, queue: str = "default") -> Any:
    return kit.dead_letters(queue_topic(namespace, queue))


def test_several_processes_execute_each_message_once_and_return_results(kit: Any, namespace: str) -> None:
    done: list[int] = []
    with opened(kit, namespace) as one, opened(kit, namespace) as two:
        backend = StubBackend()
        for broker in (one, two):
            results: Any = Results  # its constructor has no types
            broker.add_middleware(results(backend=backend))

            def double(number: int) -> int:
                done.append(number)
                return 2 * number

            dramatiq.actor(broker=broker, store_results=True, actor_name="double")(double)
        sent = [one.enqueue(one.get_actor("double").message(number)) for number in range(40)]  # before any worker
        with working(one), working(two):
            join(one)
            assert [backend.get_result(each, block=True, timeout=JOIN_MS) for each in sent] == list(range(0, 80, 2))
        assert sorted(done) == list(range(40))


def test_delayed_message_waits_in_the_broker(kit: Any, broker: RaftmqBroker) -> None:
    done: list[str] = []
    note = dramatiq.actor(broker=broker, actor_name="note")(done.append)
    with working(broker):
        note.send_with_options(args=("later",), delay=39 * 86_400_000)
        note.send("now")
        # An acknowledgement that the clock overtook would let the first one come again.
        wait(lambda: done == ["now"] and [each.kind for each in kit.pending()] == ["delayed"])
        kit.advance(days=38)
        assert done == ["now"]
        assert [each.kind for each in kit.pending()] == ["delayed"]  # no worker holds it
        kit.advance(days=1)
        wait(lambda: done == ["now", "later"])
    with pytest.raises(ValueError, match="the delay is 3456000001 ms; allowed: 0 to 3456000000, which are 40 days"):
        note.send_with_options(args=("never",), delay=40 * 86_400_000 + 1)


def test_failing_messages_become_dead_letters_after_retries(kit: Any, broker: RaftmqBroker, namespace: str) -> None:
    attempts: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=2)  # after 15 s to 120 s
    def fail() -> None:
        attempts.append(len(attempts))
        raise LookupError(f"attempt {len(attempts)}")

    with working(broker):
        fail.send()
        for attempt in range(2):
            wait(lambda: len(attempts) == attempt + 1 and [each.kind for each in kit.pending()] == ["delayed"])
            kit.advance(minutes=3)
        wait(lambda: dead_letters(kit, namespace))
    assert attempts == [0, 1, 2]
    [letter] = dead_letters(kit, namespace)
    assert letter.properties["RAFTMQ_FAILURE"] == "LookupError: attempt 3"
    assert dramatiq.Message.decode(letter.body).options["retries"] == 2


def test_highest_priority_runs_first_although_sent_last(kit: Any, namespace: str) -> None:
    with opened(kit, namespace, max_priority=9) as broker:
        done: list[int] = []
        actor = dramatiq.actor(broker=broker, actor_name="note")(done.append)
        for priority in range(10):
            actor.send_with_options(args=(priority,), broker_priority=priority)
        with working(broker, threads=1, prefetch=1):
            join(broker)
        assert done == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
        for bad in (10, -1, "high"):
            with pytest.raises(ValueError, match=f"the broker_priority of note is {bad!r}, this broker has 0 to 9"):
                actor.send_with_options(args=(1,), broker_priority=bad)


@pytest.mark.parametrize("sent", [b"not JSON", dramatiq.Message("default", "unknown", (), {}, {}).encode()])
def test_undecodable_message_becomes_a_dead_letter(kit: Any, broker: RaftmqBroker, namespace: str, sent: bytes) -> None:
    done: list[str] = []
    actor = dramatiq.actor(broker=broker, actor_name="note")(done.append)
    actor.send("first")  # creates the topic
    with SyncProducer(kit.namesrv) as producer:
        producer.send(Message(queue_topic(namespace, "default"), sent))
    actor.send("last")
    with working(broker, threads=1):
        join(broker)
    assert done == ["first", "last"]
    assert [each.body for each in dead_letters(kit, namespace)] == [sent]


def test_flush_drops_waiting_and_delayed_messages(kit: Any, broker: RaftmqBroker) -> None:
    done: list[str] = []
    actor = dramatiq.actor(broker=broker, actor_name="note")(done.append)
    actor.send("waits")
    actor.send_with_options(args=("later",), delay=60_000)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", interval=10, timeout=50)
    broker.flush_all()
    join(broker)
    kit.advance(minutes=2)
    with working(broker):
        actor.send("new")
        join(broker)
    assert done == ["new"]
    for refused in (lambda: broker.join("missing"), lambda: broker.consume("missing")):
        with pytest.raises(QueueNotFound):
            refused()


def test_message_is_redelivered_if_its_retry_cannot_be_sent(kit: Any, broker: RaftmqBroker) -> None:
    """Dramatiq logs the failure, and would acknowledge the message."""
    attempts: list[int] = []

    @dramatiq.actor(broker=broker, min_backoff=100, max_backoff=100)
    def work() -> None:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            kit.faults.refuse(ResponseCode.NO_PERMISSION, "not now")
            raise LookupError

    with working(broker):
        work.send()
        wait(lambda: len(attempts) == 2)
        join(broker)
    assert kit.faults.pending == 0


def test_stopping_worker_returns_messages_not_begun(kit: Any, namespace: str) -> None:
    begun, may_end = threading.Event(), threading.Event()
    done: list[str] = []
    with opened(kit, namespace) as one, opened(kit, namespace) as two:

        def work(name: str) -> None:
            begun.set()
            assert may_end.wait(SECONDS_MAX)
            done.append(name)

        actors = [dramatiq.actor(broker=broker, actor_name="work")(work) for broker in (one, two)]
        for name in ("a", "b", "c"):
            actors[0].send(name)
        first = dramatiq.Worker(one, worker_threads=1, worker_timeout=20)
        first.start()
        assert begun.wait(SECONDS_MAX)
        stopping = threading.Thread(target=first.stop)
        stopping.start()
        may_end.set()
        stopping.join(SECONDS_MAX)
        left = 3 - len(done)
        assert left >= 1
        with working(two):
            join(two)
        assert sorted(done) == ["a", "b", "c"]


def test_workers_continue_after_disconnections_and_topic_deletion(
    kit: Any, broker: RaftmqBroker, namespace: str
) -> None:
    done: list[str] = []
    actor = dramatiq.actor(broker=broker, actor_name="note")(done.append)

    def until(expected: list[str]) -> None:
        wait(lambda: done == expected)

    with working(broker):
        actor.send("one")
        until(["one"])
        kit.break_connections()
        actor.send("two")
        until(["one", "two"])
        with SyncAdmin(kit.namesrv) as admin:
            admin.delete_topic(queue_topic(namespace, "default"))
        actor.send("three")
        until(["one", "two", "three"])


def test_poisonous_message_is_given_up_after_some_deliveries(kit: Any, namespace: str) -> None:
    with opened(kit, namespace, max_deliveries=2) as broker:
        done: list[str] = []
        dramatiq.actor(broker=broker, actor_name="note")(done.append).send("poison")
        for _ in range(2):  # two workers that take it and end
            consumer = broker.consume("default", timeout=JOIN_MS)
            held = next(consumer)
            assert held is not None
            consumer.close()
            consumer.requeue([held])  # only now: otherwise the same consumer might get it again
        with working(broker):
            join(broker)
        assert done == []
        [letter] = dead_letters(kit, namespace)
        assert letter.properties["RAFTMQ_FAILURE"] == "delivered 2 times, and never acknowledged"


def test_messages_of_other_brokers_are_not_settled(kit: Any, broker: RaftmqBroker) -> None:
    broker.declare_queue("default")
    consumer = broker.consume("default", timeout=1)
    foreign = dramatiq.MessageProxy(dramatiq.Message("default", "note", (), {}, {}))
    consumer.ack(foreign)
    consumer.nack(foreign)
    consumer.requeue([foreign])
    assert next(consumer) is None
    consumer.close()


def test_dramatiq_broker_refuses_wrong_options_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, kit: Any, namespace: str
) -> None:
    def refused(match: str, make: Callable[[], object], kind: type[Exception] = ValueError) -> None:
        with pytest.raises(kind, match=match):
            make()

    refused("not an address of the form host:port: 'redis://localhost'", lambda: RaftmqBroker("redis://localhost"))
    refused("at least one name server address", lambda: RaftmqBroker(""))
    refused("max_priority is 32; allowed: 1 to 31", lambda: RaftmqBroker(kit.namesrv, max_priority=32))
    refused("visibility 0.5", lambda: RaftmqBroker(kit.namesrv, visibility=0.5))
    message: dramatiq.Message[None] = dramatiq.Message("default", "note", (), {}, {})
    with opened(kit, namespace, create_topics=False) as broker:
        refused(queue_topic(namespace, "default"), lambda: broker.enqueue(message), ConnectionClosed)
    with opened(kit, namespace) as broker:
        large = message.copy(options={"x": "y" * 5_000_000})
        refused("4", lambda: broker.enqueue(large), MessageRefused)
    nobody = RaftmqBroker("127.0.0.1:1", send_timeout=0.1)
    refused("no name server answered: 127.0.0.1:1", lambda: nobody.enqueue(message), ConnectionClosed)
    nobody.close()
    patched = types.SimpleNamespace(is_module_patched=lambda name: name == "threading")
    monkeypatch.setitem(sys.modules, "gevent.monkey", patched)
    with opened(kit, namespace) as broker:
        refused("raftmq does not run under gevent", lambda: broker.enqueue(message), RuntimeError)
