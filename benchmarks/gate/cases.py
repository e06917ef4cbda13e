"""Runs the measured code in the measured process: ``python -m benchmarks.gate.cases FILE [--by-callgrind]``.

Each case warms up, then instructions are counted. ``FILE`` gets names and numbers of messages as JSON, in order.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gate.counting import BY_CALLGRIND, Counting
from benchmarks.gate.log_writer import count_log_writer
from benchmarks.gate.replication import count_replication
from benchmarks.gate.whole_broker import count_whole_broker
from benchmarks.load.frames import QUEUES, TOPIC, send_frame
from mq.broker.net.call import Call
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.entry_builder import QueuedMessage
from mq.broker.write_path.queue_tails import QueueTail, TopicName
from mq.broker.write_path.send_block import QueuedSend, SendBlock
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.messages.records import encode_host
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset, QueueOffset
from mq.protocol.wire.encoding import SendReplyTemplate
from raftlog import Refusal

BODY_BYTES = 1024
IN_CHUNK = 32
WARM_UP, ROUNDS = 5, 30
ENTRY_HEAD_BYTES = 48
HOST = encode_host("127.0.0.1", 10911)
UNIQUE_KEY = b"7F000001000000000000000000000001"


def _chunk() -> bytes:
    return b"".join(send_frame(slot, BODY_BYTES, slot % QUEUES) for slot in range(1, IN_CHUNK + 1))


def count_decode(counter: Counting) -> None:
    """Count the instructions of decoding a received chunk into requests."""
    chunk = _chunk()

    def decode(rounds: int) -> None:
        for _ in range(rounds):
            assert len(decode_chunk(chunk)[0]) == IN_CHUNK, "frames are missing"

    decode(WARM_UP)
    with counter.count("decode a send", ROUNDS * IN_CHUNK):
        decode(ROUNDS)


class _DiscardingLog:
    """Accepts every entry, and keeps none."""

    def __init__(self) -> None:
        self.index = 0
        self.pos = ENTRY_HEAD_BYTES

    def append(self, nbytes: int, build: Callable[[int], tuple[bytes, bytes]]) -> int | Refusal:
        body, _ = build(self.pos)
        assert len(body) == nbytes, f"{len(body)} bytes, {nbytes} were announced"
        self.pos += nbytes + ENTRY_HEAD_BYTES
        self.index += 1
        return self.index


class _DiscardingConnection:
    """A connection whose data is discarded."""

    host = HOST

    def __init__(self) -> None:
        self.replies = 0

    def send(self, data: bytes) -> None:
        """Count the replies in ``data``."""
        self.replies += data.count(b'"opaque"')


def count_append(counter: Counting) -> None:
    """Count the instructions from validated requests to a log entry, and from its commit to the responses."""
    log, client = _DiscardingLog(), _DiscardingConnection()
    appender = Appender(
        log=log,
        store_host=HOST,
        reply_template=SendReplyTemplate(HOST),
        entry_bytes_max=1 << 20,
        rounds_in_flight=1,
        wall_clock_ms=lambda: 1_700_000_000_000,
        disk_used=lambda: 0.0,
        uncommitted_bytes_max=1 << 30,
    )
    appender.open()
    queues = [QueueTail(TopicName(TOPIC), queue_id, FIRST_OFFSET) for queue_id in range(QUEUES)]
    properties = b"UNIQ_KEY\x01%b\x02WAIT\x01true\x02TAGS\x01TagA\x02" % UNIQUE_KEY
    connection: Any = client
    calls: list[Call[Any]] = [
        Call(connection, request, body, serialization) for request, body, serialization in decode_chunk(_chunk())[0]
    ]

    def append(rounds: int) -> None:
        for _ in range(rounds):
            sends = list[QueuedSend]()
            for call in calls:
                queue = queues[call.request.ext.queue_id]
                nbytes = queue.fixed_bytes + len(call.body) + len(properties)
                message = QueuedMessage(nbytes, 0, call.body, properties, 1234)
                sends.append(QueuedSend(call, queue, [message], nbytes, UNIQUE_KEY))
            appender.add(SendBlock(*sends))
            assert appender.start_round(), "nothing was appended"
            appender.on_commit(log.index)

    append(WARM_UP)
    with counter.count("build, append and answer a send", ROUNDS * IN_CHUNK):
        append(ROUNDS)
    assert client.replies == (WARM_UP + ROUNDS) * IN_CHUNK, f"{client.replies} replies"


def count_reply(counter: Counting) -> None:
    """Count the instructions of the response to a stored message."""
    template = SendReplyTemplate(HOST)
    offset, position = QueueOffset(1_000_000), PhysicalOffset(5_000_000_000)

    def render(count: int) -> None:
        for opaque in range(count):
            template.render(opaque, 3, offset + opaque, position + opaque, UNIQUE_KEY)

    render(WARM_UP)
    with counter.count("render the reply to a send", ROUNDS * IN_CHUNK):
        render(ROUNDS * IN_CHUNK)


def main() -> None:
    """Run all cases, and write their names and numbers of messages to FILE."""
    file, *options = sys.argv[1:]
    counter = Counting(by_callgrind=BY_CALLGRIND in options)
    with tempfile.TemporaryDirectory(prefix="raftmq-gate-") as name:
        directory = Path(name)
        gc.disable()
        count_decode(counter)
        count_append(counter)
        count_reply(counter)
        count_replication(counter, directory)
        gc.enable()
        count_log_writer(counter, directory / "written")
        count_whole_broker(counter, directory / "broker")
    Path(file).write_text(json.dumps(counter.cases) + "\n")


if __name__ == "__main__":
    main()
