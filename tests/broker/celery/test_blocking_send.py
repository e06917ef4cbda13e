"""Messages that the publishing thread sends itself; brokers of the test kit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kombu
import pytest

import raftmq.celery  # noqa: F401 - makes the URLs known
from mq.celery import blocking_send
from mq.celery.session import Session
from mq.client.errors import SendOutcomeUnknown
from mq.testing import running_kit

QUEUE = kombu.Queue("work")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_kit() as kit:
        yield f"raftmq://{kit.namesrv}"


class Publishing:
    """A connection with an empty queue, which counts what goes the long way."""

    def __init__(self, connection: kombu.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connection = connection
        self.queue = QUEUE(connection.default_channel)
        self.queue.declare()
        self.producer = connection.Producer()
        self.long_way = 0
        send = Session._send

        async def counted(session: Session, *args: Any, **options: Any) -> None:
            self.long_way += 1
            await send(session, *args, **options)

        monkeypatch.setattr(Session, "_send", counted)

    def publish(self, *bodies: str) -> None:
        for body in bodies:
            self.producer.publish(body, routing_key=QUEUE.name)

    def stored(self) -> list[Any]:
        found = []
        while (message := self.queue.get(no_ack=True)) is not None:
            found.append(message.payload)
        return found


@pytest.fixture
def publishing(url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Publishing]:
    with kombu.Connection(f"{url}/{request.node.name}") as connection:
        publishing = Publishing(connection, monkeypatch)
        publishing.publish("first")  # learns the route
        assert publishing.stored() == ["first"]
        publishing.long_way = 0
        yield publishing


def test_message_for_a_known_queue_takes_the_short_way(publishing: Publishing) -> None:
    publishing.publish("a", "b", "c")
    assert publishing.long_way == 0
    assert publishing.stored() == ["a", "b", "c"]


def test_message_without_an_answer_is_stored_once(publishing: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = blocking_send._PooledConnection.ask

    def answer_is_lost(line: Any, *args: Any) -> Any:
        ask(line, *args)
        raise TimeoutError

    monkeypatch.setattr(blocking_send._PooledConnection, "ask", answer_is_lost)
    publishing.publish("a", "b")
    assert publishing.long_way == 2
    assert publishing.stored() == ["a", "b"]


def test_republished_message_of_unknown_outcome_is_stored_once(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`apply_async` does so by default, on a new connection; the message went to another queue under a new number."""
    ask, to_leader = blocking_send._PooledConnection.ask, Session._send_to_leader
    attempts = 0

    def answer_is_lost(line: Any, *args: Any) -> Any:
        ask(line, *args)
        raise TimeoutError

    async def first_is_lost(session: Session, *args: Any, **options: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise SendOutcomeUnknown("lost", options["may_be_in"])
        await to_leader(session, *args, **options)

    monkeypatch.setattr(blocking_send._PooledConnection, "ask", answer_is_lost)
    monkeypatch.setattr(Session, "_send_to_leader", first_is_lost)
    policy = {"max_retries": 1, "interval_start": 0}
    publishing.producer.publish("a", routing_key=QUEUE.name, retry=True, retry_policy=policy)
    assert attempts == 2
    publishing.queue = QUEUE(publishing.connection.default_channel)
    assert publishing.stored() == ["a"]


def test_connection_closed_since_the_last_send_is_not_used(publishing: Publishing) -> None:
    publishing.publish("a")
    [line] = publishing.connection.default_channel._session._blocking_sends._idle
    line.socket.shutdown(2)
    publishing.publish("b")
    assert publishing.long_way == 0
    assert publishing.stored() == ["a", "b"]


def test_deleted_queue_is_declared_again_by_full_declaration(publishing: Publishing) -> None:
    """The broker refuses the short way: the topic is gone."""
    session = publishing.connection.default_channel._session
    topic = session.topics.of_queue("work")
    publishing.publish("a")
    session.call(session.calls.delete_topic, topic)
    publishing.publish("b")
    assert publishing.long_way == 1
    assert publishing.stored() == ["b"]
