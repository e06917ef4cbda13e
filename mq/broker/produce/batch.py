"""Batches, SEND_BATCH_MESSAGE (request code 320): checked as a whole, stored in one entry, answered once.

A batch with sequence numbers may consist of copies from another cluster: `mq.protocol.properties.COPIED` says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.produce.dedup import Dedup, numbers_of
from mq.broker.schedule.visible_queues import wanted_priority
from mq.broker.state.producer_sequences import SequencedRange
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.entry_builder import QueuedMessage
from mq.broker.write_path.internal_messages import check_sent_bytes
from mq.broker.write_path.pending import SendRequest
from mq.broker.write_path.properties import RECEIPT, TAGS, UNIQUE_KEY, VALUE_END, TagCodes
from mq.broker.write_path.queue_tails import QueueTail
from mq.broker.write_path.send_block import QueuedSend, SendBlock
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.frames import ANSWER_HEADER_BYTES_MAX
from mq.protocol.message_ids import UniqKeyGenerator
from mq.protocol.messages.batch import BatchedMessage, encode_batch, split_batch
from mq.protocol.messages.message_types import PRIORITY_MARK
from mq.protocol.messages.sequencing import SEQUENCE_MARK, SequenceRange, range_properties
from mq.protocol.wire.encoding import SendReplyTemplate

_NOT_SHARED = (UNIQUE_KEY, RECEIPT.encode())
_PRIORITY = PRIORITY_MARK.encode()
_KEYS = f"{props.KEYS}{props.NAME_END}".encode()
_COPIED = f"{props.COPIED}{props.NAME_END}".encode()
_OF_NUMBERS = (SEQUENCE_MARK, f"{props.PRODUCER_ID}{props.NAME_END}".encode(), _COPIED)
_BORN = f"{props.BORN_TIMESTAMP}{props.NAME_END}".encode()
_BORN_MS_MAX = 2**63 - 1


class BatchSends:
    """Checks and stores batches for `mq.broker.produce.send`, after their topic and queue are checked."""

    def __init__(
        self,
        *,
        appender: Appender,
        dedup: Dedup,
        unique_keys: UniqKeyGenerator,
        tag_codes: TagCodes,
        suffix: bytes,
        body_bytes_max: int,
        reply_template: SendReplyTemplate,
    ) -> None:
        self._appender = appender
        self._dedup = dedup
        self._unique_keys = unique_keys
        self._tag_codes = tag_codes
        self._suffix = suffix
        self._body_bytes_max = body_bytes_max
        self._reply_template = reply_template

    def add(self, call: Call[SendRequest], tail: QueueTail) -> None:
        """Append the messages of a batch to the log. The client gets the response when they are committed.

        Raises:
            RequestRefused: no message was stored or will be.
        """
        batch, keys, numbers = self._check(call, tail, self._unique_keys)
        if numbers is None:
            self._appender.add(SendBlock(batch))
            return
        send = self._dedup.admit_batch(call, numbers, keys)
        if send is None:
            return
        try:
            batch.call = send.call
            _keep_new(batch, numbers, send.stored_ranges, is_copy=is_copied(call.request.ext.properties))
            self._check_bytes(batch.nbytes, batch.messages)
        except RequestRefused:
            send.end()
            raise
        self._appender.add(SendBlock(batch))

    def priority(self, call: Call[SendRequest], tail: QueueTail) -> int | None:
        """Return the priority of a batch's messages, None without one. Raises RequestRefused if they differ."""
        properties = props.decode(call.request.ext.properties)
        if _PRIORITY not in call.body:
            return wanted_priority(properties)
        parts = self._split(call.body, tail)
        priorities = {
            wanted_priority(properties | props.decode(each.decode("utf-8", "replace"))) for _, _, each in parts
        }
        if len(priorities) > 1:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                "the messages of a batch must have one priority, since they go to one queue: send a batch for each "
                "priority",
            )
        return priorities.pop()

    def keyless(self, call: Call[SendRequest], tail: QueueTail) -> int | None:
        """Return the index of the first message without a key; None if all have one. Raises RequestRefused."""
        for number, (_, _, properties) in enumerate(self._split(call.body, tail)):
            if not props.value_of(properties, _KEYS).strip():
                return number
        return None

    def has_bodies(self, call: Call[SendRequest], tail: QueueTail) -> bool:
        """Whether a message of a batch has a body. Raises RequestRefused."""
        return any(body for _, body, _ in self._split(call.body, tail))

    def without(self, call: Call[SendRequest], tail: QueueTail, name: str) -> bytes:
        """Return the body of a batch, without the property ``name`` of its messages. Raises RequestRefused."""
        parts = self._split(call.body, tail)
        try:
            return encode_batch(
                BatchedMessage(body, props.without(properties.decode(), name), flag) for flag, body, properties in parts
            )
        except UnicodeDecodeError as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"properties are not UTF-8: {error}") from error

    def build_send(self, call: Call[SendRequest], tail: QueueTail) -> QueuedSend:
        """Return the messages of a batch, each with a unique key. Sequence numbers are all taken for new. Raises
        RequestRefused, also for copies, and for messages with a priority, whose queue `Sends` chooses.
        """
        if _PRIORITY in call.body:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a message may have a priority")
        batch, _, numbers = self._check(call, tail, None)
        if numbers is not None:
            if is_copied(call.request.ext.properties):
                raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "the messages are copies")
            _keep_new(batch, numbers, (), is_copy=False)
            self._check_bytes(batch.nbytes, batch.messages)
            batch.numbers = numbers
        return batch

    def _check(
        self, call: Call[SendRequest], tail: QueueTail, unique_keys: UniqKeyGenerator | None
    ) -> tuple[QueuedSend, list[bytes], SequenceRange | None]:
        """Return the messages of a batch, with unique keys and sequence numbers. Raises RequestRefused.

        A message without a unique key gets one of ``unique_keys``; the batch is refused if that is None.
        """
        parts = self._split(call.body, tail)
        common, numbers = self._common_properties(call.request, len(parts))
        is_copy = numbers is not None and is_copied(call.request.ext.properties)
        messages: list[QueuedMessage] = []
        keys: list[bytes] = []
        nbytes = 0
        for flag, body, own_properties in parts:
            born_ms: int | None = None
            if is_copy:
                own_properties, born_ms = _born(own_properties)
            unique_key, properties, code = self._properties(
                own_properties, common, len(messages), unique_keys, is_copy=is_copy
            )
            size = tail.fixed_bytes + len(body) + len(properties)
            nbytes += size
            messages.append(QueuedMessage(size, flag, body, properties, code, born_ms))
            self._check_bytes(nbytes, messages)
            keys.append(unique_key)
        assert len(keys) == len(messages) == len(parts), f"{len(keys)} keys, {len(messages)} of {len(parts)} messages"
        assert numbers is None or numbers.message_count == len(messages), f"{numbers} for {len(messages)} messages"
        key_list = b",".join(keys)
        self._check_answer(len(messages), key_list)
        return QueuedSend(call, tail, messages, nbytes, key_list), keys, numbers

    def _split(self, body: bytes, tail: QueueTail) -> list[tuple[int, bytes, bytes]]:
        # No record is smaller, so a far too large batch is refused before it is split.
        record_bytes_min = tail.fixed_bytes + len(self._suffix)
        try:
            messages = split_batch(body, self._body_bytes_max // record_bytes_min)
        except BodyError as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        if not messages:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        return messages

    def _common_properties(self, request: SendRequest, count: int) -> tuple[bytes, SequenceRange | None]:
        """Return the batch's properties for each message, and the sequence numbers of the messages."""
        text = request.ext.properties
        # 5.x clients give the batch a UNIQ_KEY, too; after a message's own it would hide that from readers. A receipt
        # belongs to another message.
        fields = [each for each in text.encode().split(b"\x02") if each and not each.startswith(_NOT_SHARED)]
        numbers: SequenceRange | None = None
        if any(each.startswith(SEQUENCE_MARK) for each in fields):
            numbers = numbers_of(props.decode(text), count)
            fields = [each for each in fields if not each.startswith(_OF_NUMBERS)]
        common = b"".join(each + b"\x02" for each in fields) + self._suffix
        if _may_be_special(common):
            _refuse(text, "the head")
        return common, numbers

    def _properties(
        self, properties: bytes, common: bytes, number: int, unique_keys: UniqKeyGenerator | None, *, is_copy: bool
    ) -> tuple[bytes, bytes, int]:
        """Return the unique key, the encoded properties and the tag code of a message."""
        if properties and properties[-1] != VALUE_END:
            properties += b"\x02"
        try:
            text = properties.decode()
        except UnicodeDecodeError as error:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"the properties of message {number} are not UTF-8"
            ) from error
        if RECEIPT in text:
            properties = props.without(text, props.POP_CK).encode()
        if (SEQUENCE_MARK in properties) if is_copy else _may_be_special(properties):
            _refuse(text, f"message {number}")
        unique_key = props.value_of(properties, UNIQUE_KEY)
        if not unique_key:
            if unique_keys is None:
                raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"message {number} has no unique key")
            unique_key = unique_keys.next().encode()
            properties += UNIQUE_KEY + unique_key + b"\x02"
        properties += common
        _check_properties(len(properties), number, is_copy=is_copy)
        # The properties of the batch come after the message's properties: its tag, if it has one, is what readers see.
        return unique_key, properties, self._tag_codes[props.value_of(properties, TAGS)]

    def _check_bytes(self, nbytes: int, messages: Sequence[QueuedMessage]) -> None:
        if nbytes <= self._body_bytes_max:
            return
        if len(messages) == 1 and len(messages[0].body) <= self._body_bytes_max:
            return  # it could be sent by itself
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"the records of a batch have more than {self._body_bytes_max} bytes"
        )

    def _check_answer(self, count: int, unique_keys: bytes) -> None:
        """Refuse a batch whose sender could not read the answer, which names each message."""
        nbytes = self._reply_template.batch_header_bytes(count, unique_keys)
        if nbytes > ANSWER_HEADER_BYTES_MAX:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the answer to a batch of {count} messages with {len(unique_keys)} bytes of unique keys would have a "
                f"header of {nbytes} bytes; maximum: {ANSWER_HEADER_BYTES_MAX}. Send smaller batches",
            )


def is_copied(text: str) -> bool:
    """Whether these properties of a batch with sequence numbers say that its messages are copies."""
    return props.find(text, props.COPIED) is not None and props.find(text, props.SEQUENCE) is not None


def _born(properties: bytes) -> tuple[bytes, int | None]:
    """Return a copied message's properties without its birth time, and that time. Raises RequestRefused."""
    text = props.value_of(properties, _BORN)
    if not text:
        return properties, None
    if not text.isdigit() or len(text) > len(str(_BORN_MS_MAX)) or int(text) > _BORN_MS_MAX:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"{props.BORN_TIMESTAMP} {text[:20]!r} is not a number of milliseconds"
        )
    return b"\x02".join(each for each in properties.split(b"\x02") if not each.startswith(_BORN)), int(text)


def _check_properties(nbytes: int, number: int, *, is_copy: bool) -> None:
    """Raise RequestRefused if properties are too long. Those of a copy may be as long as a record allows."""
    if not is_copy:
        check_sent_bytes(nbytes, number)
    elif nbytes > props.PROPERTIES_BYTES_MAX:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"message {number} has properties of {nbytes} bytes; maximum: {props.PROPERTIES_BYTES_MAX}",
        )


def _keep_new(
    batch: QueuedSend, numbers: SequenceRange, stored_ranges: Sequence[SequencedRange], *, is_copy: bool
) -> None:
    """Remove messages that are stored already, and record in the remaining ones which sequence numbers they start."""
    messages: list[QueuedMessage] = []
    parts: list[tuple[int, SequenceRange]] = []
    for low, high in _new(numbers, stored_ranges):
        part = SequenceRange(numbers.producer, low, high)
        parts.append((len(messages), part))
        assert numbers.first <= low <= high <= numbers.last, f"{low} to {high} are new, of {numbers}"
        first, *others = batch.messages[low - numbers.first : high + 1 - numbers.first]
        mark = props.encode(range_properties(part)).encode()
        properties = first.properties + mark
        _check_properties(len(properties), low - numbers.first, is_copy=is_copy)
        size = first.size + len(mark)
        head = QueuedMessage(size, first.flag, first.body, properties, first.tag_code, first.born_ms)
        messages += (head, *others)
    batch.messages = messages
    batch.nbytes = sum(message.size for message in messages)
    assert messages, f"all messages of {numbers} are stored already"
    batch.parts = parts
    batch.already_stored = numbers.message_count - len(messages)
    assert batch.already_stored >= 0, f"{len(messages)} messages of {numbers} are new"


def _new(numbers: SequenceRange, stored_ranges: Sequence[SequencedRange]) -> list[tuple[int, int]]:
    """Return the ranges of these numbers that are not stored, ascending."""
    new: list[tuple[int, int]] = []
    low = numbers.first
    for one in stored_ranges:
        assert one.first <= one.last, f"the messages {one.first} to {one.last} are stored"
        if low < one.first:
            new.append((low, one.first - 1))
        low = one.last + 1
    if low <= numbers.last:
        new.append((low, numbers.last))
    return new


def _may_be_special(properties: bytes) -> bool:
    """Whether a message may request special treatment, by a quick check."""
    return (
        b"DELAY\x01" in properties
        or b"TIMER_D" in properties
        or b"TRAN_MSG\x01" in properties
        or SEQUENCE_MARK in properties
        or b"LITE_TOPIC\x01" in properties
    )


def _refuse(text: str, part: str) -> None:
    """Refuse properties that stock brokers would store without effect."""
    if SEQUENCE_MARK.decode() in text:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{part} of a batch has a {props.SEQUENCE} of its own: set it in the properties of the batch, as the "
            "number of its first message; the others have the following numbers",
        )
    properties = props.decode(text)
    delay = properties.get("DELAY", "0").strip()
    if props.LITE_TOPIC in properties:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"{part} of a batch is for a lite topic: send such messages one by one"
        )
    if delay not in ("", "0") or "TRAN_MSG" in properties or any(name in properties for name in props.TIMER_PROPERTIES):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{part} of a batch is delayed or transactional: send such messages one by one",
        )
