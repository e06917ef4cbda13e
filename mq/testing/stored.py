"""Reads stored messages from a broker's own state, without requests, consumer groups or offsets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mq.broker.context import BrokerContext
from mq.client.message import MessageQueue, ReceivedMessage
from mq.protocol.messages.compression import CodecMissing, DecompressionError, inflate
from mq.protocol.messages.records import StoredMessage, decode_records
from mq.protocol.numbers import QueueOffset, offset_range
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY

_BODY_BYTES_MAX = 64 * 1024 * 1024


def stored_messages(context: BrokerContext, topic: str) -> list[ReceivedMessage]:
    """Return all messages of a topic, in the order in which they were stored."""
    messages: list[ReceivedMessage] = []
    for queue_id in sorted(context.store.ends(topic)):
        queue = context.store.get(topic, queue_id)
        if queue is not None:
            offsets = offset_range(queue.min_offset, queue.max_offset)
            messages += [to_received(context, record_at(context, queue, offset)) for offset in offsets]
    return sorted(messages, key=lambda message: message.record.physical_offset)


def record_at(context: BrokerContext, queue: ConsumeQueue, offset: QueueOffset) -> StoredMessage:
    """Return the record of one entry of a queue."""
    position, size, _ = QUEUE_ENTRY.unpack(queue.read(offset, 1))
    (record,) = decode_records(context.replica.log.pread(position, size))
    return record


def to_received(context: BrokerContext, record: StoredMessage) -> ReceivedMessage:
    """Convert a record to a message as a consumer receives it."""
    body = record.body
    with contextlib.suppress(DecompressionError, CodecMissing):
        body = inflate(record.sys_flag, body, _BODY_BYTES_MAX)
    return ReceivedMessage(record, MessageQueue(record.topic, context.settings.group, record.queue_id), body)


def topics_of(context: BrokerContext) -> Iterator[str]:
    """Yield the names of all topics that have messages."""
    yield from sorted({queue.topic for queue in context.store.queues()})
