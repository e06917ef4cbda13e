"""A member of a consumer group that also sends messages on request, with the SDK: ``NAMESRV TOPIC GROUP``."""

from __future__ import annotations

import os
import sys
from functools import partial

import msgspec
import trio

from jepsen.clients import ClientReport, Order
from jepsen.derived_messages import PROPERTY
from mq.cli.errors import run_trio
from mq.client import ClientError, Message, Producer, PushConsumer

PIECE_BYTES = 65536


def write_report(report: ClientReport) -> None:
    """Write a report as one line to standard output, and flush it."""
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


async def take_part(namesrv: str, topic: str, group: str) -> None:
    """Receive messages, and send those that the input orders, until the input ends. Raises ClientError."""
    async with (
        Producer(namesrv, f"{group}_senders") as producer,
        PushConsumer(namesrv, group, consume_from="first", commit_seconds=0.2, rebalance_seconds=2.0) as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.subscribe(topic)
        nursery.start_soon(_receive, consumer)
        write_report(ClientReport("ready"))
        data = b""
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as orders:
            while piece := await orders.receive_some(PIECE_BYTES):
                *lines, data = (data + piece).split(b"\n")
                for line in lines:
                    await _send(producer, topic, msgspec.json.decode(line, type=Order))
        nursery.cancel_scope.cancel()


async def _receive(consumer: PushConsumer) -> None:
    async for message in consumer:
        queue, offset = message.queue.queue_id, message.queue_offset
        own = message.properties.get(PROPERTY)
        write_report(
            ClientReport("received", queue=queue, offset=offset, body=message.body, tag=message.tags, property=own)
        )


async def _send(producer: Producer, topic: str, order: Order) -> None:
    message = Message(topic, order.body, tags=order.tag, keys=[order.value], properties={PROPERTY: order.property})
    try:
        result = await producer.send(message)
    except ClientError as error:
        write_report(ClientReport("not-sent", order.value, stored=error.stored, error=str(error)))
        return
    write_report(ClientReport("sent", order.value, result.queue.queue_id, result.queue_offset))


if __name__ == "__main__":
    run_trio(partial(take_part, *sys.argv[1:4]))
