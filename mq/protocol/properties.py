"""Encodes and decodes message properties: ``name 0x01 value 0x02``, repeated; the last 0x02 may be missing.

A name may occur more than once, because a client, a batch or the broker added it again. As in RocketMQ, every reader
takes the last occurrence with a value: `decode`, `find` and `value_of` agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq.protocol.errors import ProtocolError

NAME_END: Final = "\x01"
VALUE_END: Final = "\x02"
PROPERTIES_BYTES_MAX: Final = 32767
"""Maximum size in a record: its length field has no room for more."""
SENT_PROPERTIES_BYTES_MAX: Final = 29 * 1024
"""Maximum size for a message when it is first stored, with the properties that the broker adds to each. The rest is
reserved for later additions of brokers and consumers: for a delay, a transaction, a redelivery, a dead letter.
`tests/unit/protocol/test_properties.py` adds that up.

The rest is reserved for what brokers and consumers add later: for a delay, a transaction, a redelivery, a dead letter.
`tests/unit/protocol/test_properties.py` adds that up.
"""
_INT32_DIGITS: Final = 10
SAFE_BYTES_MAX: Final = 512
"""Maximum size of a text that is stored as a property, see `safe_value`."""
_CONTROLS: Final = dict.fromkeys([*range(32), 127], " ")
_NAMED_BYTES_MAX: Final = 200
_OMITTED_BYTES_MAX: Final = 300
_SMALL_BYTES_MAX: Final = 200
_VALUE_END: Final = ord(VALUE_END)
_VALUE_END_BYTE: Final = VALUE_END.encode()

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
UNIQUE_KEY: Final = "UNIQ_KEY"
DELAY: Final = "DELAY"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_SET: Final = "RAFTMQ_SET"
"""Marks a half message whose body has several messages and consumer offsets, see
`mq.protocol.messages.transaction_sets`. The value is the number of messages.
"""
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CLUSTER: Final = "CLUSTER"
MESSAGE_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
SHARDING_KEY: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
"""The priority of a message, see `mq.protocol.messages.message_types`."""
MESSAGE_TYPE: Final = "MSG_TYPE"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
PRODUCER_ID: Final = "RAFTMQ_PRODUCER"
SEQUENCE: Final = "RAFTMQ_SEQUENCE"
"""Not RocketMQ's, and set by applications; see `mq.protocol.messages.sequencing`."""
COPIED: Final = "RAFTMQ_COPIED"
"""Marks a batch with sequence numbers whose messages are copies from another cluster. They are stored as they are,
without the effect of properties that ask for a delay or a transaction; each may have the time of its birth in
`BORN_TIMESTAMP`.
"""
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
SOURCE: Final = "RAFTMQ_SOURCE"
"""The origin of a copy from another cluster: topic, broker, queue, queue offset and store time, with slashes."""
POP_CK: Final = "POP_CK"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
DEAD_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DEAD_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
ORIGIN_BROKER: Final = "RAFTMQ_ORIGIN_BROKER"
ORIGIN_QUEUE_ID: Final = "RAFTMQ_ORIGIN_QUEUE"
ORIGIN_OFFSET: Final = "RAFTMQ_ORIGIN_OFFSET"
"""The place of the original of a redelivered message."""
FAILURE: Final = "RAFTMQ_FAILURE"
"""The exception with which the last delivery failed; see `safe_value`."""
DEAD_GROUP: Final = "RAFTMQ_DEAD_GROUP"
DEAD_REASON: Final = "RAFTMQ_DEAD_REASON"
DEAD_ATTEMPTS: Final = "RAFTMQ_DEAD_ATTEMPTS"
DEAD_MS: Final = "RAFTMQ_DEAD_MS"
DEAD_BY: Final = "RAFTMQ_DEAD_BY"
REQUEUED_BY: Final = "RAFTMQ_REQUEUED_BY"
"""The user who sent a dead letter again."""
CARRIED: Final = "RAFTMQ_CARRIED"
"""The queue offset and store time (ms) of the original, in the copy of a message that a compacted topic keeps."""
OMITTED: Final = "RAFTMQ_OMITTED"
"""The properties that a copy of a message lacks, because the record had no room for them; see `fit`."""

LITE_TOPIC: Final = "__LITE_TOPIC"
"""The lite topic of a message, within the topic to which it is sent."""
LITE_QUEUE: Final = "INNER_MULTI_DISPATCH"
LITE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
"""The queue of the lite topic (`mq.protocol.names.lite_queue`) of a message, and its offset in it."""
LITE_PLACE: Final = "RAFTMQ_LITE"
"""The physical offset of such a message, hexadecimal. So a copy of the value is not valid, only what a broker wrote."""

TIMER_PROPERTIES: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""Properties that request a later delivery."""

REGION: Final = "DefaultRegion"
"""The only region."""

RESERVED: Final = frozenset(
    {
        KEYS,
        TAGS,
        WAIT,
        UNIQUE_KEY,
        DELAY,
        *TIMER_PROPERTIES,
        TIMER_OUT_MS,
        TIMER_ENQUEUE_MS,
        TIMER_DEQUEUE_MS,
        TIMER_ROLL_TIMES,
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        REAL_TOPIC,
        REAL_QUEUE_ID,
        TRANSACTION_PREPARED,
        PRODUCER_GROUP,
        TRANSACTION_ID,
        TRANSACTION_CHECK_TIMES,
        "TRAN_PREPARED_QUEUE_OFFSET",
        CHECK_IMMUNITY_SECONDS,
        TRANSACTION_SET,
        LITE_TOPIC,
        LITE_QUEUE,
        LITE_OFFSET,
        LITE_PLACE,
        RETRY_TOPIC,
        ORIGIN_MESSAGE_ID,
        RECONSUME_TIME,
        MAX_RECONSUME_TIMES,
        "MIN_OFFSET",
        "MAX_OFFSET",
        "CONSUME_START_TIME",
        CLUSTER,
        MESSAGE_REGION,
        TRACE_ON,
        SHARDING_KEY,
        PRIORITY,
        "INSTANCE_ID",
        "BUYER_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "EXTEND_UNIQ_INFO",
        CORRELATION_ID,
        REPLY_TO_CLIENT,
        TTL,
        MESSAGE_TYPE,
        ARRIVE_TIME,
        PUSH_REPLY_TIME,
        POP_CK,
        "POP_CK_OFFSET",
        FIRST_POP_TIME,
        ORIGIN_GROUP,
        "DUP_INFO",
        "REDIRECT",
        "PROPERTY_FORWARD_QUEUE_ID",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "INNER_NUM",
        "INNER_BASE",
        "TRACE_CONTEXT",
        "__BORNHOST",
        BORN_TIMESTAMP,
        SOURCE,
        ORIGIN_BROKER,
        ORIGIN_QUEUE_ID,
        ORIGIN_OFFSET,
        FAILURE,
        DEAD_GROUP,
        DEAD_REASON,
        DEAD_ATTEMPTS,
        DEAD_MS,
        DEAD_BY,
        REQUEUED_BY,
        OMITTED,
        DEAD_TOPIC,
        DEAD_MESSAGE_ID,
    }
)
"""Property names reserved for the system."""


class PropertyInvalid(ProtocolError):
    """A property set by the application is invalid. ``name`` is the property's name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"property {name!r} {reason}")
        self.name = name
        self.reason = reason


def encode(properties: Mapping[str, str]) -> str:
    """Encode ``properties`` in their order. Names and values must not contain the two separators."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def safe_value(text: str) -> str:
    """Turn any text, such as that of an exception, into a property value: one line of at most 512 bytes."""
    line = text.translate(_CONTROLS).encode("utf-8", "replace")
    return line[:SAFE_BYTES_MAX].decode("utf-8", "ignore").strip()


def fit(properties: Mapping[str, str], suffix: bytes = b"") -> bytes:
    """Encode the properties of a copy of a stored message, and add ``suffix``: `PROPERTIES_BYTES_MAX` bytes at most.

    If they are longer, the largest ones are left out, reserved names of ordinary size last. Then `OMITTED` says how
    many, how many bytes they have, and some names.
    """
    text = encode(properties).encode()
    excess = len(text) + len(suffix) - PROPERTIES_BYTES_MAX
    if excess <= 0:
        return text + suffix
    copy = {name: value for name, value in properties.items() if name != OMITTED}
    sizes = {name: len(name.encode()) + len(value.encode()) + 2 for name, value in copy.items()}
    omitted_names: list[str] = []
    vital = {name for name in copy if name == FAILURE or (is_reserved(name) and sizes[name] <= _SMALL_BYTES_MAX)}
    for name in sorted(copy, key=lambda name: (name in vital, -sizes[name])):
        if excess + _OMITTED_BYTES_MAX <= 0:
            break
        del copy[name]
        omitted_names.append(name)
        excess -= sizes[name]
    nbytes = sum(sizes[name] for name in omitted_names)
    names = " ".join(omitted_names).encode()[:_NAMED_BYTES_MAX].decode("utf-8", "ignore")
    copy[OMITTED] = f"{len(omitted_names)} properties of {nbytes} bytes: {names}"
    text = encode(copy).encode() + suffix
    assert len(text) <= PROPERTIES_BYTES_MAX, f"fitted properties of {len(text)} bytes"
    return text


def decode(text: str) -> dict[str, str]:
    """Decode properties. Pieces without name or value are dropped; of equal names the last one wins."""
    properties: dict[str, str] = {}
    for piece in text.split(VALUE_END):
        name, _, value = piece.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def real_queue_id(text: str | None) -> int:
    """Parse the value of `REAL_QUEUE_ID`. Returns 0 for an invalid one, which only a faulty replica stores."""
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > _INT32_DIGITS:
        return 0
    number = int(text)
    return number if number < 1 << 31 else 0


def find(text: str, name: str) -> str | None:
    """Return the value of one property without decoding the others; None if it is missing."""
    prefix = name + NAME_END
    at = text.rfind(prefix)
    while at >= 0:
        if at == 0 or text[at - 1] == VALUE_END:
            start = at + len(prefix)
            end = text.find(VALUE_END, start)
            if value := text[start:] if end < 0 else text[start:end]:
                return value
        at = text.rfind(prefix, 0, at + len(prefix) - 1)
    return None


def value_of(encoded: bytes, name: bytes, begin: int = 0, end: int | None = None) -> bytes:
    """Return the value of a property in ``encoded[begin:end]``, empty without one. ``name`` ends with its separator."""
    end = len(encoded) if end is None else end
    at = encoded.rfind(name, begin, end)
    while at >= 0:
        if at == begin or encoded[at - 1] == _VALUE_END:
            start = at + len(name)
            stop = encoded.find(_VALUE_END_BYTE, start, end)
            if value := encoded[start : end if stop < 0 else stop]:
                return value
        at = encoded.rfind(name, begin, at + len(name) - 1)
    return b""


def without(text: str, name: str) -> str:
    """Remove all properties called ``name`` from encoded properties."""
    start = name + NAME_END
    return VALUE_END.join(piece for piece in text.split(VALUE_END) if not piece.startswith(start))


def is_reserved(name: str) -> bool:
    """Whether applications may not set a property of this name."""
    return name in RESERVED or name.startswith("__RMQ.TRANSIENT.")


def check_user_properties(properties: Mapping[str, str]) -> None:
    """Raise PropertyInvalid for a reserved name, an empty name or value, a separator in either, or a non-text."""
    for name, value in properties.items():
        if not isinstance(name, str):
            raise PropertyInvalid(name, f"has a name of type {type(name).__name__}; pass a str")
        if is_reserved(name):
            raise PropertyInvalid(name, "is reserved")
        if not isinstance(value, str):
            raise PropertyInvalid(name, f"has a value of type {type(value).__name__}; pass a str")
        if not name or not value:
            raise PropertyInvalid(name, "has no name" if not name else "has no value")
        for text in (name, value):
            if NAME_END in text or VALUE_END in text:
                raise PropertyInvalid(name, "contains a separator, 0x01 or 0x02")


def of_cluster(cluster: str) -> dict[str, str]:
    """Return the properties that a broker adds to each message. 5.x consumers trace only messages with a region."""
    return {CLUSTER: cluster, MESSAGE_REGION: REGION, TRACE_ON: "true"}
