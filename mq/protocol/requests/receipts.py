"""Encodes and decodes receipts of popped messages, which brokers issue and clients return.

A receipt is eight fields separated by blanks: start offset and pop time of the checkpoint, invisible time, revive
queue, mark, broker name, queue id, and the message's offset. The mark says which topic the queue belongs to. RocketMQ's
proxy appends a ninth field, the physical offset, and returns all nine; everything after the eighth is ignored.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final, NamedTuple

import msgspec

from mq.protocol.errors import BodyError, ProtocolError
from mq.protocol.names import RETRY_PREFIX
from mq.protocol.numbers import NO_OFFSET, QueueOffset
from mq.protocol.wire.fields import I32, I64, QueueOffset64, wire
from mq.protocol.wire.json_body import CLIENT_VALUES_MAX, Body, decode_as

NORMAL: Final = "0"
RETRY: Final = "1"
"""Marks: the normal topic, and the retry topic."""

REVIVE_QUEUE: Final = 0
ORDERED_REVIVE_QUEUE: Final = 999
"""The revive queue is opaque to clients; here it says whether a message was popped in order."""

BITS_BYTES_MAX: Final = 128
"""Maximum size of one row of a batch of acknowledgements."""

_NUMBER: Final = "-?[0-9]{1,19}"
_RECEIPT: Final = re.compile(
    r"(N) (N) (N) (N) ([^ ]*) ([^ ]*) (N) (N)(?: .*)?".replace("N", _NUMBER), re.ASCII | re.DOTALL
)
_COUNT: Final = re.compile(r"(\S+) (?:([0-9]{1,10})|qo([0-9]{1,10})%([0-9]{1,19})) ([0-9]{1,10})", re.ASCII)
_INT64_MAX: Final = 2**63 - 1
_FIELDS: Final = 8
_DIGITS_MAX: Final = 18
"""A number with this number of digits is below 2**63."""


class ReceiptError(ProtocolError):
    """The text is not a receipt that a broker issued."""


class Receipt(NamedTuple):
    """Names one popped message, so that the client can acknowledge it."""

    start: QueueOffset
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    mark: str
    broker: str
    queue_id: int
    offset: QueueOffset

    def encode(self) -> str:
        """Encode the receipt as the value of the property POP_CK."""
        return " ".join(map(str, self))

    @classmethod
    def decode(cls, text: str) -> Receipt:
        """Parse a receipt. Raises ReceiptError."""
        match = _RECEIPT.fullmatch(text)
        if match is None:
            count = text.count(" ") + 1
            if count < _FIELDS:
                raise ReceiptError(f"expected at least {_FIELDS} fields in the receipt, got {count}: {text[:80]!r}")
            raise ReceiptError(f"fields of the receipt are not numbers: {text[:80]!r}")
        start, pop_time, invisible, revive, mark, broker, queue, at = match.groups()
        numbers = int(start), int(pop_time), int(invisible), int(revive), int(queue), int(at)
        if max(numbers) > _INT64_MAX or min(numbers) < -_INT64_MAX:
            raise ReceiptError(f"fields of the receipt are not numbers: {text[:80]!r}")
        first, pop_time_ms, invisible_ms, revive_queue, queue_id, offset = numbers
        return cls(
            QueueOffset(first), pop_time_ms, invisible_ms, revive_queue, mark, broker, queue_id, QueueOffset(offset)
        )


class ReceiptReader:
    """Decodes receipts. Consecutive receipts of one pop and queue take a third of the time.

    They differ in their last field only: the text before it is kept from one to the next.
    """

    def __init__(self) -> None:
        self._begin = ""
        self._receipt: Receipt | None = None

    def decode(self, text: str) -> Receipt:
        """Parse a receipt. Raises ReceiptError."""
        begin, _, last = text.rpartition(" ")
        previous, is_number = self._receipt, last.isascii() and last.isdecimal() and len(last) <= _DIGITS_MAX
        if previous is not None and is_number and begin == self._begin:
            return Receipt(*previous[:-1], QueueOffset(int(last)))
        receipt = Receipt.decode(text)
        # With a ninth field, the offset is not the last one.
        self._begin, self._receipt = begin, receipt if begin.count(" ") == _FIELDS - 2 else None
        return receipt


def mark_of(topic: str) -> str:
    """Return the mark by which receipts tell a topic from its retry topics."""
    return RETRY if topic.startswith(RETRY_PREFIX) else NORMAL


def queue_info(rows: Iterable[tuple[str, int, QueueOffset, Iterable[QueueOffset]]]) -> tuple[str, str]:
    """Format ``startOffsetInfo`` and ``msgOffsetInfo`` from the mark, queue id, start and offsets of queues."""
    starts, offsets = [], []
    for mark, queue_id, start, of_messages in rows:
        starts.append(f"{mark} {queue_id} {start}")
        offsets.append(f"{mark} {queue_id} {','.join(map(str, of_messages))}")
    return ";".join(starts), ";".join(offsets)


def count_info(mark: str, queue_id: int, counts: Mapping[QueueOffset, int]) -> str:
    """Format the header field ``orderCountInfo`` for a queue: how often messages were popped before, by offset."""
    if not counts:
        return ""
    rows = [f"{mark} {queue_id} {min(counts.values())}"]
    rows += [f"{mark} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
    return ";".join(rows)


def read_count_info(text: str) -> dict[tuple[str, int, QueueOffset], int]:
    """Parse ``orderCountInfo``: counts by mark, queue id and offset. Offset -1 means all messages without an entry.

    If a queue has entries, messages without one were never popped before. Raises ReceiptError.
    """
    counts: dict[tuple[str, int, QueueOffset], int] = {}
    for row in filter(None, text.split(";")):
        match = _COUNT.fullmatch(row)
        if match is None:
            raise ReceiptError(f"the count of pops is invalid: {row[:80]!r}")
        mark, queue, queue_text, offset, count = match.groups()
        if queue is not None:
            counts.setdefault((mark, int(queue), NO_OFFSET), int(count))
        else:
            counts[mark, int(queue_text), NO_OFFSET] = 0
            counts[mark, int(queue_text), QueueOffset(offset)] = int(count)
    return counts


# -- batches of acknowledgements ---------------------------------------------------------------------------------------


class AckRow(
    msgspec.Struct,
    kw_only=True,
    rename=wire(
        group="c",
        topic="t",
        mark="r",
        start="so",
        queue_id="q",
        revive_queue="rq",
        pop_time_ms="pt",
        invisible_ms="it",
        encoded_bits="b",
    ),
):
    """Acknowledged messages of one checkpoint. ``topic`` is the original topic; ``mark`` tells retry topics from it."""

    group: str
    topic: str
    mark: str = NORMAL
    start: QueueOffset64
    queue_id: I32
    revive_queue: I32 = REVIVE_QUEUE
    pop_time_ms: I64
    invisible_ms: I64 = 0
    encoded_bits: str | list[int]

    @property
    def bits(self) -> int:
        """The acknowledged messages as a bit set: bit ``i`` is the message at ``start + i``. Raises ReceiptError."""
        return decode_bits(self.encoded_bits)


class _LongAckRow(
    AckRow,
    kw_only=True,
    rename=wire(
        group="consumerGroup",
        mark="retry",
        start="startOffset",
        revive_queue="reviveQueueId",
        pop_time_ms="popTime",
        invisible_ms="invisibleTime",
        encoded_bits="bitSet",
    ),
):
    """`AckRow` with the long names that some clients use."""

    # An inherited field keeps its wire name, so each one is declared again.
    group: str
    topic: str
    mark: str = NORMAL
    start: QueueOffset64
    queue_id: I32
    revive_queue: I32 = REVIVE_QUEUE
    pop_time_ms: I64
    invisible_ms: I64 = 0
    encoded_bits: str | list[int]


class BatchAck(Body, rename=wire()):
    """The acknowledgements of many messages (body of request code 200151)."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    acks: list[AckRow] = msgspec.field(default_factory=list)
    broker_name: str = ""

    @classmethod
    def decode(cls, data: bytes | memoryview) -> BatchAck:
        """Decode the JSON text, with short or long names. Raises BodyError."""
        try:
            return decode_as(BatchAck, data, values_max=CLIENT_VALUES_MAX)
        except BodyError:
            long = decode_as(_LongBatchAck, data, values_max=CLIENT_VALUES_MAX)
            return cls(acks=list(long.acks), broker_name=long.broker_name)


class _LongBatchAck(Body, rename=wire()):
    acks: list[_LongAckRow] = msgspec.field(default_factory=list)
    broker_name: str = ""


def encode_bits(bits: int) -> str:
    """Encode a bit set as Base64 of its bytes, lowest byte first."""
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def decode_bits(text: str | list[int]) -> int:
    """Decode the result of `encode_bits`, or a list of bytes, which the Rust client sends. Raises ReceiptError."""
    if len(text) > 2 * BITS_BYTES_MAX:
        raise ReceiptError(f"the set of messages has {len(text)} {'characters' if isinstance(text, str) else 'bytes'}")
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else bytes(text)
    except (binascii.Error, ValueError, OverflowError) as error:
        raise ReceiptError(f"the set of messages is neither base64 nor bytes: {text[:40]!r}") from error
    if len(data) > BITS_BYTES_MAX:
        raise ReceiptError(f"the set of messages has {len(data)} bytes; maximum: {BITS_BYTES_MAX}")
    return int.from_bytes(data, "little")
