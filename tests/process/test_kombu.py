"""Connections of kombu to a real broker."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import kombu
import pytest

import raftmq.celery  # noqa: F401 - makes the URLs known
from mq.client import Message
from mq.client.sync import SyncAdmin, SyncProducer, SyncPullConsumer
from mq.tasks.names import queue_topic
from tests.support.real_groups import Cluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def url(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    return f"raftmq://{cluster.namesrv}/{request.node.name}"


class Inbox:
    """What a consumer gets; it acknowledges nothing by itself."""

    def __init__(self, connection: kombu.Connection, *queues: kombu.Queue, **options: Any) -> None:
        self.connection = connection
        self.messages: list[Any] = []
        self.consumer = kombu.Consumer(connection, list(queues), on_message=self.messages.append, **options)

    def __enter__(self) -> Self:
        self.consumer.consume()
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.cancel()

    def drain(self, seconds: float = 0.0) -> list[Any]:
        """All bodies so far."""
        with contextlib.suppress(TimeoutError):
            self.connection.drain_events(timeout=seconds)
        return self.bodies

    @property
    def bodies(self) -> list[Any]:
        return [each.payload for each in self.messages]

    def wait(self, count: int) -> list[Any]:
        wait_until(lambda: len(self.drain(0.05)) >= count)
        return self.bodies


def publish(connection: kombu.Connection, queue: kombu.Queue, *bodies: object, **options: Any) -> None:
    with kombu.Producer(connection.channel()) as producer:
        for body in bodies:
            producer.publish(body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options)


def test_prefetch_leaves_the_rest_to_others(url: str) -> None:
    queue = kombu.Queue("shared", routing_key="shared")
    with kombu.Connection(url) as one, kombu.Connection(url) as other:
        publish(one, queue, *range(6))
        with Inbox(one, queue, prefetch_count=2) as first:
            assert first.wait(2) == [0, 1]
            with Inbox(other, queue, prefetch_count=3) as second:
                assert second.wait(3) == [2, 3, 4]
                assert first.drain(0.3) == [0, 1]
                first.messages[0].ack()
                assert first.wait(3) == [0, 1, 5]


def test_closed_channel_returns_unacknowledged_messages(url: str) -> None:
    queue = kombu.Queue("given-back", routing_key="given-back")
    with kombu.Connection(url) as one:
        publish(one, queue, "a", "b")
        with Inbox(one, queue) as inbox:
            assert inbox.wait(2) == ["a", "b"]
            assert not inbox.messages[0].delivery_info["redelivered"]
            inbox.messages[0].ack()
    with kombu.Connection(url) as other, Inbox(other, queue) as inbox:
        assert inbox.wait(1) == ["b"]
        assert inbox.messages[0].delivery_info["redelivered"]
        inbox.messages[0].ack()


def test_rejected_messages_become_dead_letters(url: str, cluster: Cluster, request: pytest.FixtureRequest) -> None:
    queue = kombu.Queue("refused", routing_key="refused")
    with kombu.Connection(url) as connection, SyncPullConsumer(cluster.namesrv, "reader", consume_from="first") as dead:
        publish(connection, queue, ["bad"])
        with Inbox(connection, queue) as inbox:
            inbox.wait(1)
            inbox.messages[0].reject()
            assert inbox.drain(0.3) == [["bad"]]
        dead.assign(dead.queues(f"%DLQ%{queue_topic(request.node.name, 'refused')}"))
        [letter] = dead.poll(timeout=10)
        assert b"bad" in letter.body  # JSON, to be read
        assert letter.properties["RAFTMQ_FAILURE"] == "rejected by its consumer"


def test_rejected_message_is_sent_to_dead_letter_exchange(url: str) -> None:
    dead = kombu.Queue("dead", kombu.Exchange("dead", "direct"), routing_key="late")
    arguments = {"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "late"}
    queue = kombu.Queue("mortal", routing_key="mortal", queue_arguments=arguments)
    with kombu.Connection(url) as connection, Inbox(connection, dead) as inbox:
        publish(connection, queue, "refused")
        with Inbox(connection, queue) as mortal:
            mortal.wait(1)
            mortal.messages[0].reject()
            assert inbox.wait(1) == ["refused"]
            publish(connection, queue, "expired", expiration=0.001)
            assert inbox.wait(2) == ["refused", "expired"]
        reasons = [each.headers["x-death"][0]["reason"] for each in inbox.messages]
        assert reasons == ["rejected by its consumer", "expired"]


def test_names_that_look_alike_are_different_queues(url: str) -> None:
    names = ["a.b", "a-b", "a_b", "a%2Eb", "A.b", "a b", "a/b"]
    with kombu.Connection(url) as connection:
        for name in names:
            publish(connection, kombu.Queue(name, routing_key=name), name)
        for name in names:
            with Inbox(connection, kombu.Queue(name, routing_key=name), no_ack=True) as inbox:
                assert inbox.wait(1) == [name]
                assert inbox.drain(0.05) == [name]


def test_queues_are_counted_purged_and_deleted(url: str) -> None:
    queue = kombu.Queue("counted", routing_key="counted")
    with kombu.Connection(url) as connection:
        channel = connection.channel()
        with pytest.raises(kombu.exceptions.ChannelError, match="NOT_FOUND"):
            channel.queue_declare("counted", passive=True)
        publish(connection, queue, 1, 2, 3)
        assert channel.queue_declare("counted", passive=True).message_count == 3
        message = channel.basic_get("counted")
        assert channel.queue_declare("counted", passive=True).message_count == 2
        assert channel.queue_purge("counted") == 2
        assert channel.queue_declare("counted", passive=True).message_count == 0
        assert channel.basic_get("counted") is None
        message.requeue()
        message = channel.basic_get("counted")
        assert message.payload == 1
        message.ack()
        channel.queue_delete("counted", if_empty=True)
        with pytest.raises(kombu.exceptions.ChannelError, match="NOT_FOUND"):
            channel.queue_declare("counted", passive=True)
    with kombu.Connection(url) as connection:
        publish(connection, queue, 4)
        assert connection.channel().basic_get("counted", no_ack=True).payload == 4


def test_bindings_hold_for_all_processes(url: str) -> None:
    news = kombu.Exchange("news", "topic")
    queues = [kombu.Queue(name, news, routing_key=key) for name, key in (("all", "#"), ("eu", "eu.*"))]
    with kombu.Connection(url) as connection:
        for queue in queues:
            queue(connection.channel()).declare()
    publisher = f"""
import kombu, raftmq.celery
with kombu.Connection({url!r}) as connection:
    producer = kombu.Producer(connection.channel())
    for key in ("eu.de", "us.ca"):
        producer.publish(key, exchange="news", routing_key=key)
"""
    subprocess.run([sys.executable, "-c", publisher], cwd=ROOT, check=True, timeout=60)
    with kombu.Connection(url) as connection:
        with Inbox(connection, queues[0], no_ack=True) as inbox:
            assert inbox.wait(2) == ["eu.de", "us.ca"]
        with Inbox(connection, queues[1], no_ack=True) as inbox:
            assert inbox.wait(1) == ["eu.de"]
            assert inbox.drain(0.1) == ["eu.de"]


def test_fanout_exchange_sends_to_every_process(url: str) -> None:
    everybody = kombu.Exchange("everybody", "fanout", durable=False)
    listener = f"""
import kombu, raftmq.celery, sys
queue = kombu.Queue("listener-" + sys.argv[1], kombu.Exchange("everybody", "fanout", durable=False),
                    durable=False, auto_delete=True)
with kombu.Connection({url!r}) as connection:
    got = []
    with kombu.Consumer(connection, [queue], on_message=lambda message: got.append(message.payload), no_ack=True):
        print("ready", flush=True)
        while len(got) < 2:
            connection.drain_events(timeout=30)
    print(got, flush=True)
"""
    listeners: list[subprocess.Popen[str]] = []
    try:
        with kombu.Connection(url) as connection:
            producer = kombu.Producer(connection.channel(), exchange=everybody)
            producer.publish("before anybody listens")
            for name in ("one", "other"):
                command = [sys.executable, "-c", listener, name]
                listeners.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
            for each in listeners:
                assert each.stdout is not None
                assert each.stdout.readline() == "ready\n"
            producer.publish("first")
            producer.publish("second")
        for each in listeners:
            out, _ = each.communicate(timeout=60)
            assert out == "['first', 'second']\n"
    finally:
        for each in listeners:
            each.kill()
            each.communicate()


def test_forked_process_publishes_and_leaves_deliveries_to_its_parent(url: str) -> None:
    queue = kombu.Queue("forked", routing_key="forked")
    with kombu.Connection(url) as connection:
        publish(connection, queue, "of the parent")
        with Inbox(connection, queue, prefetch_count=1) as inbox:
            inbox.wait(1)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    publish(connection, queue, "of the child")
                    inbox.consumer.channel.close()
                    connection.collect()
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert inbox.drain(0.3) == ["of the parent"]
            inbox.messages[0].ack()
            assert inbox.wait(2) == ["of the parent", "of the child"]
            inbox.messages[1].ack()
            assert not inbox.messages[1].delivery_info["redelivered"]


def test_unreadable_message_becomes_a_dead_letter(url: str, cluster: Cluster, request: pytest.FixtureRequest) -> None:
    queue = kombu.Queue("mixed", routing_key="mixed")
    topic = queue_topic(request.node.name, "mixed")
    with (
        kombu.Connection(url) as connection,
        Inbox(connection, queue, no_ack=True) as inbox,
        SyncProducer(cluster.namesrv) as producer,
        SyncAdmin(cluster.namesrv) as admin,
    ):
        producer.send(Message(topic, b"no JSON"))
        publish(connection, queue, "good")
        assert inbox.wait(1) == ["good"]
        wait_until(lambda: f"%DLQ%{topic}" in admin.topics())


def test_many_threads_publish_at_once(url: str) -> None:
    queue = kombu.Queue("threads", routing_key="threads")
    with kombu.Connection(url) as connection:
        queue(connection.channel()).declare()

        def send(thread: int) -> None:
            publish(connection, queue, *range(thread * 10, thread * 10 + 10))

        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        with Inbox(connection, queue, no_ack=True) as inbox:
            assert sorted(inbox.wait(80)) == list(range(80))


def test_message_with_an_eta_arrives_when_due(url: str) -> None:
    queue = kombu.Queue("due", routing_key="due")
    with kombu.Connection(url) as connection, Inbox(connection, queue, no_ack=True) as inbox:
        due = time.time() + 1
        eta = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(due)) + f".{int(due % 1 * 1e6):06d}+00:00"
        publish(connection, queue, "later", headers={"eta": eta})
        publish(connection, queue, "now")
        assert inbox.wait(2) == ["now", "later"]
        assert time.time() >= due - 0.001


def test_kombu_raises_for_an_unreachable_name_server() -> None:
    with kombu.Connection("raftmq://127.0.0.1:1", connect_timeout=1) as connection:
        began = time.monotonic()
        with pytest.raises(connection.connection_errors, match=r"127\.0\.0\.1:1"):
            connection.connect()
        assert time.monotonic() - began < 3


def test_deleted_queue_is_redeclared(url: str, cluster: Cluster, request: pytest.FixtureRequest) -> None:
    queue = kombu.Queue("deleted", routing_key="deleted")
    with (
        kombu.Connection(url) as connection,
        Inbox(connection, queue, no_ack=True) as inbox,
        SyncAdmin(cluster.namesrv) as admin,
    ):
        publish(connection, queue, "before")
        assert inbox.wait(1) == ["before"]
        admin.delete_topic(queue_topic(request.node.name, "deleted"))
        publish(connection, queue, "after")
        assert inbox.wait(2) == ["before", "after"]


def test_too_often_returned_message_becomes_a_dead_letter(url: str) -> None:
    queue = kombu.Queue("poison", routing_key="poison")
    with kombu.Connection(url, transport_options={"redeliveries_max": 2}) as connection:
        publish(connection, queue, "poison")
        with Inbox(connection, queue) as inbox:
            for count in range(1, 4):
                inbox.wait(count)
                inbox.messages[-1].requeue()
            publish(connection, queue, "the next one")
            assert inbox.wait(4) == ["poison"] * 3 + ["the next one"]


def test_client_reconnects_to_a_killed_and_restarted_broker(url: str, cluster: Cluster) -> None:
    queue = kombu.Queue("restarted", routing_key="restarted")
    with kombu.Connection(url) as connection, Inbox(connection, queue, prefetch_count=2) as inbox:
        publish(connection, queue, "before")
        inbox.wait(1)
        cluster.portal.call(cluster.inner.kill, "n0")
        wait_until(lambda: not cluster.portal.call(cluster.inner.is_running, "n0"))
        cluster.portal.call(cluster.inner.start, "n0")
        publish(connection, queue, "after")  # waits for it
        assert inbox.wait(2) == ["before", "after"]
        for each in inbox.messages:
            each.ack()
    with kombu.Connection(url) as connection:
        assert connection.channel().basic_get("restarted") is None


def test_options_unknown_to_the_transport_are_dropped(url: str) -> None:
    """Celery's `apply_async` passes them on, of any type, and RabbitMQ does not deliver them."""
    queue = kombu.Queue("odd", kombu.Exchange("odd"), "odd")
    with kombu.Connection(url) as connection, Inbox(connection, queue) as inbox:
        publish(connection, queue, 1, signal=object(), correlation_id="c1")
        assert inbox.wait(1) == [1]
        assert inbox.messages[0].properties["correlation_id"] == "c1"
        assert "signal" not in inbox.messages[0].properties


def test_consumer_closed_during_its_waiting_pop_takes_nothing(url: str) -> None:
    """The message would be hidden for the visibility timeout, two minutes here."""
    queue = kombu.Queue("held", kombu.Exchange("held"), "held")
    with kombu.Connection(url) as staying, kombu.Connection(url) as connection:
        publish(staying, queue, 0)
        with Inbox(connection, queue) as leaving:
            assert leaving.wait(1) == [0]
            leaving.messages[0].ack()
            assert leaving.drain(0.3) == [0]  # from now on, its pop is held
            leaving.consumer.channel.close()
        publish(staying, queue, 1)
        with Inbox(staying, queue) as inbox:
            assert inbox.wait(1) == [1]
            assert not inbox.messages[0].delivery_info["redelivered"]
