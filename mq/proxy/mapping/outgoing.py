"""Validates messages from clients, and converts them to the form that brokers store. Pure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from mq.client.produce.outgoing_message import OutgoingMessage
from mq.protocol import properties as props
from mq.protocol.messages.compression import COMPRESSED, ZLIB
from mq.protocol.messages.message_types import PriorityInvalid, priority_of
from mq.protocol.messages.records import BODY_BYTES_MAX, PREPARED
from mq.proxy.mapping.names import lite_topic_of
from mq.proxy.mapping.refusals import CodedError
from mq.proxy.mapping.times import TIME_MS_MAX, duration_ms, timestamp_ms
from mq.proxy.wire import messaging_pb2 as pb

BORN_HOST: Final = "__BORNHOST"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"

PROPERTIES_MAX: Final = 128
PROPERTIES_BYTES_MAX: Final = 16 * 1024
MESSAGE_GROUP_LENGTH_MAX: Final = 63
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_GZIP: Final = b"\x1f\x8b"
_WITH_GZIP_HEADER: Final = 16 + zlib.MAX_WBITS


class Outgoing(NamedTuple):
    """A message for the brokers, and its kind (normal, delayed, ordered ...), which its properties determine."""

    message: OutgoingMessage
    kind: pb.MessageType


def encode(topic: str, message: pb.Message, *, peer: str, now_ms: int, extra: Mapping[str, str]) -> Outgoing:
    """Convert a message from the client at the address `peer`; `extra` is added to the header of the request.

    Raises CodedError.
    """
    system = message.system_properties
    _check_user_properties(message.user_properties)
    if not system.message_id.strip():
        raise CodedError(pb.ILLEGAL_MESSAGE_ID, "the message has no id")
    body, sys_flag = _body(message)
    own = {props.UNIQUE_KEY: system.message_id, props.WAIT: "true"}
    own.update(_labels(system))
    kind = _kind(system)
    if system.message_type == pb.TRANSACTION:
        sys_flag |= PREPARED
        own |= {props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: topic}
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = duration_ms(system.orphaned_transaction_recovery_duration) // 1000
            own[props.CHECK_IMMUNITY_SECONDS] = str(seconds)
    if system.HasField("delivery_timestamp"):
        own[props.TIMER_DELIVER_MS] = str(timestamp_ms(system.delivery_timestamp))
    if system.HasField("trace_context"):
        own[TRACE_CONTEXT] = system.trace_context
    own[BORN_HOST] = system.born_host or peer
    born_ms = timestamp_ms(system.born_timestamp) if system.HasField("born_timestamp") else now_ms
    if not 0 <= born_ms <= TIME_MS_MAX:
        raise CodedError(pb.BAD_REQUEST, f"the message was born at {born_ms} ms; allowed: 0 to {TIME_MS_MAX}")
    own[props.BORN_TIMESTAMP] = str(born_ms)
    for name, value in own.items():
        if not value or props.NAME_END in value or props.VALUE_END in value:
            raise CodedError(pb.BAD_REQUEST, f"{name} is empty or contains 0x01 or 0x02")
    properties = props.encode({**message.user_properties, **own})
    if (nbytes := len(properties.encode())) > props.SENT_PROPERTIES_BYTES_MAX:
        raise CodedError(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"all properties have {nbytes} bytes; maximum: {props.SENT_PROPERTIES_BYTES_MAX}",
        )
    ready = OutgoingMessage(
        topic=topic,
        body=body,
        properties=properties,
        sys_flag=sys_flag,
        flag=0,
        born_timestamp_ms=born_ms,
        unique_key=system.message_id,
        # All messages of a lite topic are sent to one broker group.
        sharding_key=own.get(props.SHARDING_KEY) or own.get(props.LITE_TOPIC),
        extra=extra,
    )
    return Outgoing(ready, kind)


def _kind(system: pb.SystemProperties) -> pb.MessageType:
    """The kind that the properties give a message; the first one decides. Raises CodedError for an unknown kind."""
    if system.message_type == pb.TRANSACTION:
        return pb.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return pb.DELAY
    if system.HasField("message_group"):
        return pb.FIFO
    if system.HasField("priority"):
        return pb.PRIORITY
    return pb.LITE if system.HasField("lite_topic") else pb.NORMAL


def _body(message: pb.Message) -> tuple[bytes, int]:
    """Return the body and the flags of its compression. Raises CodedError.

    Clients call zlib's format GZIP, and gzip's; consumers of the older protocol know the former only.
    """
    body = message.body
    if not body:
        raise CodedError(pb.MESSAGE_BODY_EMPTY, "the message has an empty body")
    if len(body) > BODY_BYTES_MAX:
        raise CodedError(pb.MESSAGE_BODY_TOO_LARGE, f"the body has {len(body)} bytes; maximum: {BODY_BYTES_MAX}")
    if message.system_properties.body_encoding != pb.GZIP:
        return body, 0
    if not body.startswith(_GZIP):
        try:
            zlib.decompressobj().decompress(body, 1)
        except zlib.error as error:
            raise CodedError(pb.MESSAGE_CORRUPTED, f"the body is neither gzip nor zlib: {error}") from error
        return body, COMPRESSED | ZLIB
    stream = zlib.decompressobj(_WITH_GZIP_HEADER)
    try:
        content = stream.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise CodedError(pb.MESSAGE_CORRUPTED, f"the body is not gzip: {error}") from error
    if len(content) > BODY_BYTES_MAX:
        raise CodedError(pb.MESSAGE_BODY_TOO_LARGE, f"the body inflates to more than {BODY_BYTES_MAX} bytes")
    if not stream.eof:
        raise CodedError(pb.MESSAGE_CORRUPTED, "the body is gzip that is cut off")
    return content, 0


def _labels(system: pb.SystemProperties) -> dict[str, str]:
    """Tag, keys, message group, priority and lite topic, as properties. Raises CodedError."""
    labels: dict[str, str] = {}
    if system.HasField("tag"):
        if not system.tag.strip() or "|" in system.tag or _CONTROL.search(system.tag):
            raise CodedError(
                pb.ILLEGAL_MESSAGE_TAG, f"the tag {system.tag!r} is blank, or contains | or control characters"
            )
        labels[props.TAGS] = system.tag
    if system.keys:
        bad = [key for key in system.keys if not key.strip() or _CONTROL.search(key)]
        if bad:
            raise CodedError(pb.ILLEGAL_MESSAGE_KEY, f"the key {bad[0]!r} is blank, or contains control characters")
        labels[props.KEYS] = " ".join(system.keys)
    if system.HasField("message_group"):
        group = system.message_group
        if not group.strip() or _CONTROL.search(group):
            raise CodedError(pb.ILLEGAL_MESSAGE_GROUP, "the message group is blank, or contains control characters")
        if len(group.encode()) > MESSAGE_GROUP_LENGTH_MAX:
            raise CodedError(
                pb.ILLEGAL_MESSAGE_GROUP,
                f"the message group has {len(group.encode())} bytes; maximum: {MESSAGE_GROUP_LENGTH_MAX}",
            )
        labels[props.SHARDING_KEY] = group
    if system.HasField("priority"):
        labels[props.PRIORITY] = str(system.priority)
        if system.HasField("delivery_timestamp"):
            raise CodedError(
                pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "a message with a priority cannot have a delay, too"
            )
        try:
            priority_of(labels)
        except PriorityInvalid as error:
            code = pb.BAD_REQUEST if system.priority < 0 else pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
            raise CodedError(code, str(error)) from error
    if system.HasField("lite_topic"):
        labels[props.LITE_TOPIC] = lite_topic_of(system.lite_topic)
        for field in ("message_group", "priority", "delivery_timestamp"):
            if system.HasField(field):
                what = field.replace("_", " ")
                raise CodedError(
                    pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"a message of a lite topic cannot have a {what}, too"
                )
        if system.message_type == pb.TRANSACTION:
            raise CodedError(
                pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "a message of a lite topic cannot be transactional"
            )
    return labels


def _check_user_properties(properties: Mapping[str, str]) -> None:
    """Check the properties of a user. Raises CodedError."""
    if len(properties) > PROPERTIES_MAX:
        raise CodedError(
            pb.MESSAGE_PROPERTIES_TOO_LARGE, f"the message has {len(properties)} properties; maximum: {PROPERTIES_MAX}"
        )
    nbytes = 0
    for name, value in properties.items():
        if props.is_reserved(name):
            raise CodedError(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the property name {name} is reserved")
        if not name or not value or _CONTROL.search(name) or _CONTROL.search(value):
            raise CodedError(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property {name[:64]!r} has an empty name or value, or contains control characters",
            )
        nbytes += len(name.encode()) + len(value.encode())
    if nbytes > PROPERTIES_BYTES_MAX:
        raise CodedError(
            pb.MESSAGE_PROPERTIES_TOO_LARGE, f"the properties have {nbytes} bytes; maximum: {PROPERTIES_BYTES_MAX}"
        )
