"""Queues, their bindings and foreign messages in them; brokers of the test kit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kombu
import pytest

import raftmq.celery  # noqa: F401 - makes the URLs known
from mq.celery.limits import TEST_MIN
from mq.celery.topics import TooManyBindings
from mq.client import Message
from mq.client.sync import SyncProducer
from mq.tasks.names import queue_topic
from mq.tasks.queue_calls import QueueCalls
from mq.testing import running_kit
from tests.support.waiting import wait_until

NEWS = kombu.Exchange("news", "direct")


@pytest.fixture(scope="module")
def kit_url() -> Iterator[str]:
    with running_kit() as kit:
        yield f"raftmq://{kit.namesrv}"


@pytest.fixture
def url(kit_url: str, request: pytest.FixtureRequest) -> str:
    return f"{kit_url}/{request.node.name}"


def got(connection: kombu.Connection, queue: str) -> list[Any]:
    found = []
    while (message := connection.default_channel.basic_get(queue, no_ack=True)) is not None:
        found.append(message.payload)
    return found


def test_bindings_of_others_are_read_again_only_after_a_change(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process that published to an exchange listed all topics of all brokers every 10 s."""
    all_topics, lists = QueueCalls.all_topics, list[str]()

    async def counted(calls: QueueCalls) -> Any:
        lists.append("all topics")
        return await all_topics(calls)

    monkeypatch.setattr(QueueCalls, "all_topics", counted)
    # Other options make another session, like that of another process.
    others = kombu.Connection(url, transport_options={"publish_timeout": 29})
    with kombu.Connection(url) as connection, others:
        others.default_channel.connection.session.topics.limits = TEST_MIN
        first, second = (kombu.Queue(name, NEWS, routing_key="eu") for name in ("first", "second"))
        first(connection.default_channel).declare()
        producer = others.Producer()
        producer.publish("1", exchange="news", routing_key="eu")
        lists.clear()
        for _ in range(5):
            producer.publish("2", exchange="news", routing_key="eu")
        assert lists == []
        second(connection.default_channel).declare()
        lists.clear()
        producer.publish("3", exchange="news", routing_key="eu")
        assert len(lists) == 1
        assert got(connection, "second") == ["3"]
        second(connection.default_channel).unbind_from(NEWS, "eu")
        producer.publish("4", exchange="news", routing_key="eu")
        assert got(connection, "second") == []
        assert got(connection, "first") == ["1", *5 * ["2"], "3", "4"]


def test_binding_beyond_the_limit_raises_too_many_bindings(url: str) -> None:
    with kombu.Connection(url) as connection:
        queue = kombu.Queue("many")(connection.default_channel)
        queue.declare()
        NEWS(connection.default_channel).declare()
        queue.bind_to("news", "eu")
        for number in range(8):
            queue.bind_to("news", f"a.rather.long.routing.key.{number:020}")
        with pytest.raises(TooManyBindings, match="'many' has no room for another binding"):
            queue.bind_to("news", 300 * "b")
        connection.Producer().publish("1", exchange="news", routing_key="eu")
        assert got(connection, "many") == ["1"]


def test_expiration_is_by_the_clock_of_the_brokers() -> None:
    """Sender and worker may have wrong clocks: here they are days behind."""
    with running_kit() as kit, kombu.Connection(f"raftmq://{kit.namesrv}") as connection:
        kit.advance(days=3)
        producer = connection.Producer()
        for body in ("kept", "expired"):
            producer.publish(
                body, routing_key="short", declare=[kombu.Queue("short", routing_key="short")], expiration=60
            )
        kit.advance(seconds=59)
        message = connection.default_channel.basic_get("short", no_ack=True)
        assert message is not None
        assert message.payload == "kept"
        kit.advance(seconds=2)
        assert connection.default_channel.basic_get("short", no_ack=True) is None


def test_returned_message_is_deleted_with_its_queue(url: str) -> None:
    """It was in the retry topic, and came to those who declared the queue again."""
    queue = kombu.Queue("work")
    with kombu.Connection(url) as connection:
        channel = connection.default_channel
        queue(channel).declare()
        producer = connection.Producer()
        producer.publish("old", routing_key="work")
        channel.basic_get("work").requeue()
        while channel.basic_get("work") is None:
            pass
        channel.queue_delete("work")
        queue(channel).declare()
        producer.publish("new", routing_key="work")
        assert got(connection, "work") == ["new"]


PLAIN = kombu.Queue("work")
WITH_PRIORITIES = kombu.Queue("work", max_priority=9)


def test_consumer_gets_messages_of_later_added_priorities() -> None:
    """As when workers are deployed one after the other with `task_queue_max_priority`."""
    got: list[Any] = []
    with (
        running_kit() as kit,
        kombu.Connection(f"raftmq://{kit.namesrv}") as connection,
    ):
        connection.default_channel.connection.session.topics.limits = TEST_MIN
        with connection.Consumer(PLAIN, callbacks=[lambda body, message: got.append(body)], no_ack=True):
            WITH_PRIORITIES(connection.channel()).declare()
            connection.Producer().publish("urgent", routing_key="work", priority=9)
            connection.drain_events(timeout=20)
    assert got == ["urgent"]


DEAD = kombu.Queue("dead", kombu.Exchange("dead", "direct"), routing_key="dead")
WORK = kombu.Queue("work", queue_arguments={"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "dead"})


def test_message_without_json_bypasses_the_dead_letter_exchange_unchanged() -> None:
    with running_kit() as kit, kombu.Connection(f"raftmq://{kit.namesrv}") as connection:
        channel = connection.default_channel
        for queue in (DEAD, WORK):
            queue(channel).declare()
        topic = queue_topic("celery", "work")
        with SyncProducer(kit.namesrv) as producer:
            producer.send(Message(topic, b"no JSON"))
        assert channel.basic_get("work") is None
        wait_until(lambda: kit.dead_letters(topic))
        kit.assert_stored(f"%DLQ%{topic}", b"no JSON")
        assert channel.basic_get("dead") is None
