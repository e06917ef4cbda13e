"""Encodes and decodes the body of request code 9011 and of its half message: messages and consumer offsets.

``version:1 (1), length:4, offsets as JSON, messages``; the messages are as in a batch (`mq.protocol.messages.batch`),
each with its topic and queue in the properties REAL_TOPIC and REAL_QID, as a half message has them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from mq.protocol import properties as props
from mq.protocol.errors import BodyError
from mq.protocol.messages.batch import BatchedMessage, encode_batch, split_batch
from mq.protocol.numbers import QueueOffset
from mq.protocol.wire.fields import INT32_MAX, wire
from mq.protocol.wire.json_body import decode_as

SET_MESSAGES_MAX: Final = 1000
"""Messages of one transaction."""
SET_OFFSETS_MAX: Final = 128
"""Consumer offsets of one transaction."""

_HEAD: Final = struct.Struct(">BI")
_VERSION: Final = 1
_Offset = Annotated[QueueOffset, msgspec.Meta(ge=0, le=2**63 - 1)]


class ConsumedRange(msgspec.Struct, frozen=True, rename=wire(first="from", end="to")):
    """The offsets of a queue from ``first`` up to but not including ``end`` that a transaction consumed for a group."""

    group: str
    topic: str
    queue_id: Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
    first: _Offset
    end: _Offset


class SetMessage(NamedTuple):
    """One message of a transaction, and the queue that gets it."""

    topic: str
    queue_id: int
    body: bytes
    properties: str
    """Without the properties that name the queue."""
    flag: int = 0


class TransactionSet(NamedTuple):
    """Messages that become visible together, and consumer offsets that advance at the same moment."""

    messages: Sequence[SetMessage]
    offsets: Sequence[ConsumedRange]

    def encode(self) -> bytes:
        """Encode the body. Raises BodyError if the properties of a message are too long."""
        offsets = msgspec.json.encode(self.offsets)
        return _HEAD.pack(_VERSION, len(offsets)) + offsets + encode_batch(map(_to_batched, self.messages))

    @classmethod
    def decode(cls, body: bytes | memoryview) -> TransactionSet:
        """Decode the body. Raises BodyError."""
        if len(body) < _HEAD.size:
            raise BodyError(f"a transaction has {len(body)} bytes, at least {_HEAD.size} are needed")
        version, nbytes = _HEAD.unpack_from(body)
        if version != _VERSION:
            raise BodyError(f"a transaction has format {version}; this version reads format {_VERSION}")
        end = _HEAD.size + nbytes
        if end > len(body):
            raise BodyError(f"expected {nbytes} bytes of offsets in a transaction, got {len(body) - _HEAD.size}")
        offsets = decode_as(list[ConsumedRange], bytes(body[_HEAD.size : end]))
        if len(offsets) > SET_OFFSETS_MAX:
            raise BodyError(f"a transaction has {len(offsets)} offsets; maximum: {SET_OFFSETS_MAX}")
        return cls(list(_messages(body[end:])), offsets)


def set_bytes(messages: Iterable[SetMessage]) -> int:
    """Return how many bytes these messages take in a body."""
    return len(encode_batch(map(_to_batched, messages)))


def _to_batched(message: SetMessage) -> BatchedMessage:
    place = props.encode({props.REAL_TOPIC: message.topic, props.REAL_QUEUE_ID: str(message.queue_id)})
    return BatchedMessage(message.body, place + message.properties, message.flag)


def _messages(data: bytes | memoryview) -> Iterable[SetMessage]:
    parts = split_batch(data, SET_MESSAGES_MAX)
    for number, (flag, body, properties) in enumerate(parts):
        try:
            text = properties.decode()
        except UnicodeDecodeError as error:
            raise BodyError(f"the properties of message {number} of a transaction are not UTF-8") from error
        topic, queue = props.find(text, props.REAL_TOPIC), props.find(text, props.REAL_QUEUE_ID)
        if topic is None or queue is None or not queue.isdecimal() or int(queue) > INT32_MAX:
            raise BodyError(f"message {number} of a transaction does not name its topic and queue")
        rest = props.without(props.without(text, props.REAL_TOPIC), props.REAL_QUEUE_ID)
        yield SetMessage(topic, int(queue), body, rest, flag)
