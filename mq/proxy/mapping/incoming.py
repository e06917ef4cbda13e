"""Converts stored messages for clients of the gRPC protocol. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from mq.client.message import ReceivedMessage
from mq.protocol import properties as props
from mq.protocol.messages.message_types import stored_priority
from mq.proxy.mapping.names import resource_of
from mq.proxy.mapping.outgoing import BORN_HOST, TRACE_CONTEXT
from mq.proxy.mapping.times import duration, timestamp
from mq.proxy.wire import messaging_pb2 as pb

_DIGITS_MAX: Final = 18
_TEXTS: Final = (
    (props.TAGS, "tag"),
    (props.SHARDING_KEY, "message_group"),
    (props.LITE_TOPIC, "lite_topic"),
    (TRACE_CONTEXT, "trace_context"),
)


def message_of(
    source: ReceivedMessage[Any], topic: str, *, handle: str | None = None, invisible_ms: int | None = None
) -> pb.Message:
    """Convert a broker's message of `topic`; a popped message gets a receipt handle and its invisible time."""
    record, properties = source.record, source.properties
    system_properties = pb.SystemProperties(
        message_id=properties.get(props.UNIQUE_KEY) or record.offset_message_id,
        message_type=_kind(properties),
        keys=properties.get(props.KEYS, "").split(),
        body_digest=pb.Digest(type=pb.MD5, checksum=_digest(source.raw_body)),
        body_encoding=pb.IDENTITY,
        born_timestamp=timestamp(record.born_timestamp_ms),
        born_host=properties.get(BORN_HOST) or f"{record.born_host.ip}:{record.born_host.port}",
        store_timestamp=timestamp(record.store_timestamp_ms),
        store_host=f"{record.store_host.ip}:{record.store_host.port}",
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        delivery_attempt=record.reconsume_times + 1,
    )
    for name, field in _TEXTS:
        if value := properties.get(name):
            setattr(system_properties, field, value)
    if (priority := stored_priority(properties)) is not None:
        system_properties.priority = priority
    if (due := _number(properties.get(props.TIMER_DELIVER_MS, ""))) is not None:
        system_properties.delivery_timestamp.CopyFrom(timestamp(due))
    if (seconds := _number(properties.get(props.CHECK_IMMUNITY_SECONDS, ""))) is not None:
        system_properties.orphaned_transaction_recovery_duration.CopyFrom(duration(1000 * seconds))
    if dead_topic := properties.get(props.DEAD_TOPIC):
        system_properties.dead_letter_queue.topic = dead_topic
        system_properties.dead_letter_queue.message_id = properties.get(props.DEAD_MESSAGE_ID, "")
    if handle is not None:
        system_properties.receipt_handle = handle
    if invisible_ms is not None:
        system_properties.invisible_duration.CopyFrom(duration(invisible_ms))
    return pb.Message(
        topic=resource_of(topic),
        body=source.raw_body,
        system_properties=system_properties,
        user_properties=source.user_properties,
    )


def _digest(body: bytes) -> str:
    """Return a digest as all clients write it. Of CRC32 they have three forms, and drop messages with another one."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


def _kind(properties: Any) -> pb.MessageType:
    if props.TRANSACTION_PREPARED in properties:
        return pb.TRANSACTION
    if any(name in properties for name in (props.DELAY, *props.TIMER_PROPERTIES)):
        return pb.DELAY
    if props.SHARDING_KEY in properties:
        return pb.FIFO
    if stored_priority(properties) is not None:
        return pb.PRIORITY
    return pb.LITE if props.LITE_TOPIC in properties else pb.NORMAL


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else None
