"""Makes copies of messages: properties, batches to send, and checksums for comparison. Pure."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from mq.protocol import properties as props
from mq.protocol.messages.batch import BATCHED_BYTES_MIN, BatchedMessage, encode_batch
from mq.protocol.messages.records import BORN_HOST_IPV6, IN_LITE_TOPIC, STORE_HOST_IPV6, TRANSACTION_MASK, StoredMessage
from mq.protocol.send_fields import send_header

BATCH_MESSAGES_MAX: Final = 256
BATCH_BYTES_MAX: Final = 1024 * 1024

SOURCE_PRODUCER: Final = "RAFTMQ_SOURCE_PRODUCER"
SOURCE_SEQUENCE: Final = "RAFTMQ_SOURCE_SEQUENCE"
"""The sequence number of the original, if it had one: the copy has one of the mirror."""
SOURCE_LITE_TOPIC: Final = "RAFTMQ_SOURCE_LITE_TOPIC"
"""The lite topic of the original: copies are in the parent only."""
SOURCE_CARRIED: Final = "RAFTMQ_SOURCE_CARRIED"
"""Marks a message that a compacted topic of the source has stored again: the target compacts by itself."""

_RENAMED: Final = {
    props.PRODUCER_ID: SOURCE_PRODUCER,
    props.SEQUENCE: SOURCE_SEQUENCE,
    props.LITE_TOPIC: SOURCE_LITE_TOPIC,
    props.CARRIED: SOURCE_CARRIED,
}
_OF_BROKERS: Final = frozenset(
    {
        props.CLUSTER,
        props.MESSAGE_REGION,
        props.TRACE_ON,
        props.SOURCE,
        props.BORN_TIMESTAMP,
        props.POP_CK,
        "__CRC32#",
        props.LITE_QUEUE,
        props.LITE_OFFSET,
        props.LITE_PLACE,
    }
)
"""Properties that brokers add to each message, or that belong to a single place or delivery."""
_FLAGS: Final = ~(BORN_HOST_IPV6 | STORE_HOST_IPV6 | TRANSACTION_MASK | IN_LITE_TOPIC)
_HEAD: Final = struct.Struct(">qiiiI")


class SourcePlace(NamedTuple):
    """The place of an original message at the source, and the time at which it was stored there."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    stored_ms: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}/{self.offset}/{self.stored_ms}"


def place_of(properties: Mapping[str, str]) -> SourcePlace | None:
    """Return the place of the original from the properties of a copy; None if they are not a copy's."""
    topic, _, rest = properties.get(props.SOURCE, "").partition("/")
    broker, *numbers = rest.rsplit("/", 3)
    if len(numbers) != 3 or not all(part.isascii() and part.isdecimal() for part in numbers):
        return None
    return SourcePlace(topic, broker, *map(int, numbers))


def copied_properties(message: StoredMessage) -> dict[str, str]:
    """Return the properties that a copy takes over from a message: all but those that brokers add."""
    was_copy = props.SOURCE in message.properties
    properties: dict[str, str] = {}
    for name, value in message.properties.items():
        if name in _OF_BROKERS:
            continue
        if name in _RENAMED:
            if not was_copy:
                properties[_RENAMED[name]] = value
        elif name not in _RENAMED.values() or was_copy:
            properties[name] = value
    return properties


def copy_of(message: StoredMessage, broker: str) -> BatchedMessage:
    """Return a message as an entry of a batch of copies. ``broker`` is the source's broker group."""
    place = SourcePlace(message.topic, broker, message.queue_id, message.queue_offset, message.store_timestamp_ms)
    properties = copied_properties(message)
    properties[props.SOURCE] = str(place)
    properties[props.BORN_TIMESTAMP] = str(max(message.born_timestamp_ms, 0))
    return BatchedMessage(message.body, props.encode(properties), message.flag)


def is_another(message: StoredMessage, copy: StoredMessage, broker: str) -> bool:
    """Whether ``message`` is where this copy's original was, in broker group ``broker``, but is another message."""
    place = place_of(copy.properties)
    if place is None or place[:4] != (message.topic, broker, message.queue_id, message.queue_offset):
        return False
    key = message.properties.get(props.UNIQUE_KEY)
    return place.stored_ms != message.store_timestamp_ms or key not in (None, copy.properties.get(props.UNIQUE_KEY))


class CopyBatch(msgspec.Struct, frozen=True):
    """Consecutive messages that one batch can store: they share a system flag and a number of redeliveries."""

    messages: Sequence[StoredMessage]

    @property
    def first_offset(self) -> int:
        """The source offset of the first message. The others follow without gaps."""
        return self.messages[0].queue_offset

    def halves(self) -> list[CopyBatch]:
        """Split a batch that is too large into two. Returns no batches for a single message."""
        middle = len(self.messages) // 2
        return [CopyBatch(self.messages[:middle]), CopyBatch(self.messages[middle:])] if middle else []

    def fields(self, group: str, topic: str, broker: str, queue_id: int, producer: str) -> dict[str, str]:
        """Return the header fields that store this batch in a queue exactly once."""
        first = self.messages[0]
        numbers = {props.PRODUCER_ID: producer, props.SEQUENCE: str(self.first_offset), props.COPIED: "true"}
        return send_header(
            producer_group=group,
            topic=topic,
            queue_id=str(queue_id),
            sys_flag=str(first.sys_flag & _FLAGS),
            born_timestamp_ms=str(max(first.born_timestamp_ms, 0)),
            properties=props.encode(numbers),
            reconsume_times=str(first.reconsume_times),
            batch="true",
            broker_name=broker,
        )

    def body(self, source_broker: str) -> bytes:
        """Encode the body of the batch."""
        return encode_batch(copy_of(message, source_broker) for message in self.messages)


def batches_of(messages: Sequence[StoredMessage]) -> Iterator[CopyBatch]:
    """Divide a queue's messages, ascending, into as few batches as possible. Only a single message may be too large."""
    batch: list[StoredMessage] = []
    nbytes = 0
    for message in messages:
        size = message.size + BATCHED_BYTES_MIN
        if batch and (
            message.queue_offset != batch[-1].queue_offset + 1
            or message.sys_flag & _FLAGS != batch[0].sys_flag & _FLAGS
            or message.reconsume_times != batch[0].reconsume_times
            or len(batch) == BATCH_MESSAGES_MAX
            or nbytes + size > BATCH_BYTES_MAX
        ):
            yield CopyBatch(batch)
            batch, nbytes = [], 0
        batch.append(message)
        nbytes += size
    if batch:
        yield CopyBatch(batch)


def checksum_of(message: StoredMessage, *, is_copy: bool, without_key: bool = False) -> bytes:
    """Compute the checksum of everything that a copy has in common with its original.

    ``without_key`` leaves out the unique key: a message without one gets it from the broker that stores the copy.
    """
    if is_copy:
        own = {*_OF_BROKERS, *_RENAMED}
        properties = {name: value for name, value in message.properties.items() if name not in own}
    else:
        properties = copied_properties(message)
    if without_key:
        properties.pop(props.UNIQUE_KEY, None)
    digest = hashlib.blake2b(
        _HEAD.pack(
            max(message.born_timestamp_ms, 0),
            message.flag,
            message.sys_flag & _FLAGS,
            message.reconsume_times,
            len(message.body),
        ),
        digest_size=16,
    )
    digest.update(message.body)
    digest.update(props.encode(dict(sorted(properties.items()))).encode())
    return digest.digest()
