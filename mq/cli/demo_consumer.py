"""One consumer of the demonstration, as a process of its own: prints what it gets, one line per message.

A line is ``broker_name queue_id queue_offset number crc32``; `parse_line` reads it. A message counts as consumed for
the group only after its line was handed to the kernel, so that what the parent has not read is delivered again.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from mq.client.consume.push_consumer import PushConsumer
from mq.client.message import ReceivedMessage

BATCH_MESSAGES_MAX = 256


class ConsumedLine(NamedTuple):
    """What a consumer process reports of one message."""

    broker_name: str
    queue_id: int
    queue_offset: int
    number: int
    crc: int


def parse_line(line: bytes) -> ConsumedLine:
    """The reverse of what a consumer prints, without the line feed."""
    broker_name, queue_id, queue_offset, number, crc = line.split()
    return ConsumedLine(broker_name.decode(), int(queue_id), int(queue_offset), int(number), int(crc))


def _line_of(message: ReceivedMessage) -> str:
    queue = message.queue
    crc = zlib.crc32(message.body)
    return f"{queue.broker_name} {queue.queue_id} {message.queue_offset} {message.keys[0]} {crc}\n"


async def consume(namesrv: str, topic: str, group: str) -> None:
    """Consume until cancelled."""
    output = sys.stdout.fileno()

    consumer = PushConsumer(namesrv, group, consume_from="first")

    @consumer.on(topic, batch=BATCH_MESSAGES_MAX)
    async def report(messages: Sequence[ReceivedMessage]) -> None:
        data = "".join(map(_line_of, messages)).encode()
        while data:
            data = data[os.write(output, data) :]

    async with consumer:
        await consumer.run()


def main() -> None:
    """Arguments: name server, topic, group. Ends when standard input does."""
    from mq.cli.logs import configure_logging
    from mq.cli.servers import run_server

    namesrv, topic, group = sys.argv[1:]
    configure_logging("warning")
    run_server(lambda: consume(namesrv, topic, group), until_stdin_closes=True)


if __name__ == "__main__":
    main()
