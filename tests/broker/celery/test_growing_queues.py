"""A queue that grows while it is consumed; brokers of the test kit."""

from __future__ import annotations

from typing import Any

import kombu

import raftmq.celery  # noqa: F401 - makes the URLs known
from mq.celery.limits import TEST_MIN
from mq.testing import running_kit

PLAIN = kombu.Queue("work")
WITH_PRIORITIES = kombu.Queue("work", max_priority=9)


def test_consumer_gets_messages_of_priorities_that_its_queue_has_got_since() -> None:
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
