"""kombu with queues that are spread over several broker groups, one of which is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio.from_thread
import kombu
import pytest

import raftmq.celery  # noqa: F401 - makes the URLs known
from mq.local_cluster import DevCluster, Ports
from mq.local_cluster.groups import open_groups
from tests.support.waiting import until, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

COUNT = 40


class _Reader:
    """Consumes queues, and acknowledges everything."""

    def __init__(self, connection: kombu.Connection, *queues: kombu.Queue) -> None:
        self._connection = connection
        self.bodies: list[Any] = []
        self.consumer = kombu.Consumer(connection, list(queues), callbacks=[self._got], accept=["json"])

    def _got(self, body: Any, message: Any) -> None:
        self.bodies.append(body)
        message.ack()

    def has(self, wanted: set[int]) -> bool:
        """Look for more messages; whether all that are wanted have come."""
        try:
            self._connection.drain_events(timeout=0.1)
        except TimeoutError:
            pass
        return wanted <= set(self.bodies)


async def start_again(group: DevCluster) -> None:
    """Start the replica of a group when it has ended."""
    await until(lambda: not group.is_running("n0"))
    await group.start("n0")


def test_tasks_continue_when_one_broker_group_is_killed(tmp_path: Path) -> None:
    exchange = kombu.Exchange("fruit", "topic")
    queue = kombu.Queue("pears", exchange, routing_key="pear.*")
    purged = kombu.Queue("all-fruit", exchange, routing_key="#")
    new = kombu.Queue("plums", exchange, routing_key="plum")
    with anyio.from_thread.start_blocking_portal("trio") as portal:
        opened = open_groups(tmp_path, 2, nodes=1, ports=Ports.free(1, groups=2))
        with (
            portal.wrap_async_context_manager(opened) as clusters,
            kombu.Connection(f"raftmq://{clusters[0].namesrv}/groups") as connection,
            kombu.Connection(
                f"raftmq://{clusters[0].namesrv}/groups", transport_options={"publish_timeout": 120}
            ) as sending,
        ):
            channel, producer = connection.channel(), kombu.Producer(sending.channel(), exchange=exchange)
            for number in range(COUNT):
                producer.publish(number, routing_key="pear.green", declare=[queue, purged])
            # A queue has messages in both groups; its size and a purge are for all of them.
            assert queue(channel).queue_declare(passive=True).message_count == COUNT
            assert purged(channel).purge() == COUNT
            assert purged(channel).queue_declare(passive=True).message_count == 0

            reader = _Reader(connection, queue)
            with reader.consumer:
                wait_until(lambda: reader.has(set(range(COUNT))))
                portal.call(clusters[1].kill, "n0")
                starting = portal.start_task_soon(start_again, clusters[1])
                for number in range(COUNT, 2 * COUNT):
                    producer.publish(number, routing_key="pear.red")
                producer.publish(0, routing_key="plum", declare=[new])
                starting.result()
                wait_until(lambda: reader.has(set(range(2 * COUNT))))
            # The lost group may not have seen the creation of the new queue.
            late = _Reader(connection, new)
            with late.consumer:
                wait_until(lambda: late.has({0}))
            assert sorted(reader.bodies[:COUNT]) == list(range(COUNT))
