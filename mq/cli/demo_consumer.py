"""One consumer process of the demonstration. It prints one line per message.

A line is ``broker_name queue_id queue_offset number crc32``; `parse_line` parses it. A message is acknowledged only
after its line was written to the pipe, so that messages which the parent has not read are redelivered.
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
    """A consumer process's report about one message."""

    broker_name: str
    queue_id: int
    queue_offset: int
    number: int
    crc: int


def parse_line(line: bytes) -> ConsumedLine:
    """Parse a line that a consumer printed, without the line feed."""
    broker_name, queue_id, queue_offset, number, crc = line.split()
    return ConsumedLine(broker_name.decode(), int(queue_id), int(queue_offset), int(number), int(crc))


def _line_of(message: ReceivedMessage) -> str:
    queue = message.queue
    crc = zlib.crc32(message.body)
    return f"{queue.broker_name} {queue.queue_id} {message.queue_offset} {message.keys[0]} {crc}\n"


async def consume(namesrv: str, topic: str, group: str) -> None:
    """Consume messages and print them, until cancelled."""
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
    """Consume until standard input ends. Arguments: name server, topic, group."""
    from mq.cli.logs import configure_logging
    from mq.cli.running import run_server

    namesrv, topic, group = sys.argv[1:]
    configure_logging("warning")
    run_server(lambda: consume(namesrv, topic, group), until_stdin_closes=True)


if __name__ == "__main__":
    main()
