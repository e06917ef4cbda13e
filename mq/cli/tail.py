"""`raftmq tail`: prints messages of a topic as they arrive, without a consumer group."""

from __future__ import annotations

import json
from typing import Annotated

import trio
import typer

from mq.cli.client_errors import client_errors
from mq.cli.errors import run_trio
from mq.cli.output import JsonLines
from mq.cli.produce_consume import print_bytes
from mq.cli.topics import NAMESRV, Namesrv, Topic
from mq.client.admin import Admin
from mq.client.consume.pull_consumer import PullConsumer
from mq.client.message import MessageQueue, ReceivedMessage
from mq.inspection.formatting import time_of
from mq.inspection.message_fields import message_fields
from mq.inspection.topic_tail import NEW_QUEUES_SECONDS, take_new_queues

GROUP = "TOOLS_CONSUMER"
"""A group that exists on every broker; no offsets are stored."""


def tail(
    topic: Topic,
    last: Annotated[
        int, typer.Option("--last", "-n", min=0, help="Number of existing messages of each queue to print first.")
    ] = 0,
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of messages; default: ctrl-C.")
    ] = None,
    tags: Annotated[str, typer.Option(help='Tags: "A", "A || B", "*" for all.', metavar="EXPRESSION")] = "*",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print store time, queue, offset, tag and keys before each body.")
    ] = False,
    as_json: JsonLines = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Print messages of a topic as they arrive, one per line. It commits no offsets."""

    async def main() -> None:
        rest = count
        async with PullConsumer(namesrv, GROUP, consume_from="last") as consumer, Admin(namesrv) as admin:
            queues = await consumer.queues(topic)
            await consumer.assign(queues, tags)
            if last:
                for queue in queues:
                    await consumer.seek(queue, await _begin(admin, queue, last))
            looked_at = trio.current_time()
            while rest is None or rest > 0:
                for message in await consumer.poll(timeout=1.0):
                    if rest is not None and rest <= 0:
                        break
                    print_bytes(line_of(message, verbose=verbose, as_json=as_json))
                    rest = None if rest is None else rest - 1
                if trio.current_time() >= looked_at + NEW_QUEUES_SECONDS:
                    looked_at = trio.current_time()
                    await take_new_queues(consumer, topic, tags)

    with client_errors():
        run_trio(main)


async def _begin(admin: Admin, queue: MessageQueue, last: int) -> int:
    end = await admin.max_offset(queue)
    return max(await admin.min_offset(queue), end - last)


def line_of(message: ReceivedMessage, *, verbose: bool, as_json: bool) -> bytes:
    """Format a message for printing, with the line feed."""
    if as_json:
        return json.dumps(message_fields(message)).encode() + b"\n"
    if not verbose:
        return message.body + b"\n"
    place = f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}"
    time = time_of(message.record.store_timestamp_ms) or "-"
    head = f"{time} {place} {message.tags or '-'} {','.join(message.keys) or '-'}"
    return head.encode() + b" " + message.body + b"\n"
