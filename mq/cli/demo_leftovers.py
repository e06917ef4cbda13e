"""Leaves data for the console to show after the demonstration: a lagging consumer group, and dead letters.

The consumer is a process of its own, whose log says that it failed.
"""

from __future__ import annotations

import sys
from typing import Final

import trio

from mq.client.consume.push_consumer import PushConsumer
from mq.client.message import ReceivedMessage
from mq.local_cluster import DevCluster

GROUP: Final = "demo_mail"
FAILURES: Final = 5
SECONDS_MAX: Final = 30.0


async def leave_work(cluster: DevCluster, topic: str) -> None:
    """Let a group fail at some messages, which become its dead letters, and end before the others are consumed.

    After `SECONDS_MAX` it continues with less. If cancelled, the consumer is killed.
    """
    module = ["mq.cli.demo_leftovers", cluster.namesrv, topic, GROUP]
    with trio.move_on_after(SECONDS_MAX):
        async with cluster.running_module(GROUP, module) as process:
            await process.wait()


async def consume(namesrv: str, topic: str, group: str) -> None:
    """Consume messages: fail at the first `FAILURES`, then end."""
    consumer = PushConsumer(namesrv, group=group, ordered=False, max_reconsume_times=0, consume_from="first")
    failure_count = 0

    @consumer.on(topic)
    async def fail(message: ReceivedMessage) -> None:
        nonlocal failure_count
        failure_count += 1
        if failure_count >= FAILURES:
            consumer.stop()
        raise LookupError(f"no address for line {message.keys[0]}")

    async with consumer:
        await consumer.run()


def main() -> None:
    """Consume until standard input ends. Arguments: name server, topic, group."""
    from mq.cli.logs import configure_logging
    from mq.cli.running import run_server

    namesrv, topic, group = sys.argv[1:]
    configure_logging("warning")
    run_server(lambda: consume(namesrv, topic, group), until_stdin_closes=True)


if __name__ == "__main__":
    main()
