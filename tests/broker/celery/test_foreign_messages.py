"""Messages of somebody else in a queue of kombu; brokers of the test kit."""

from __future__ import annotations

import kombu

import raftmq.celery  # noqa: F401 - makes the URLs known
from mq.client import Message
from mq.client.sync import SyncProducer
from mq.tasks.names import queue_topic
from mq.testing import running_kit
from tests.support.waiting import wait_until

DEAD = kombu.Queue("dead", kombu.Exchange("dead", "direct"), routing_key="dead")
WORK = kombu.Queue("work", queue_arguments={"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "dead"})


def test_foreign_message_bypasses_the_dead_letter_exchange_unchanged() -> None:
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
