"""What the tests of pop consumers share: a popped message."""

from __future__ import annotations

import anyio

from mq.client.consume.popped_messages import PoppedMessage
from mq.client.message import MessageQueue, ReceivedMessage
from mq.protocol.messages.records import decode_record, encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.receipts import NORMAL, Receipt

QUEUE = MessageQueue("T", "broker", 0)


def received_message(offset: int, body: bytes) -> ReceivedMessage:
    """A message of `QUEUE`."""
    host = encode_host("127.0.0.1", 1)
    record = decode_record(
        memoryview(
            encode_record(
                topic="T",
                queue_id=0,
                body=body,
                properties="",
                queue_offset=QueueOffset(offset),
                physical_offset=PhysicalOffset(100 * offset),
                born_timestamp_ms=1,
                born_host=host,
                store_timestamp_ms=1,
                store_host=host,
            )
        )
    )
    return ReceivedMessage(record, QUEUE, record.body)


def popped_message(offset: int, pop_time_ms: int) -> PoppedMessage:
    """A message of `QUEUE`, hidden for a minute from now on as far as the client knows."""
    receipt = Receipt(QueueOffset(0), pop_time_ms, 60_000, 0, NORMAL, "broker", 0, QueueOffset(offset))
    return PoppedMessage(received_message(offset, b"%d" % offset), receipt, anyio.current_time() + 60)
