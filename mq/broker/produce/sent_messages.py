"""Checks the messages of sends, and builds the properties that the log stores."""

from __future__ import annotations

from typing import Final

from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.produce.dedup import numbers_of
from mq.broker.write_path.entry_builder import QueuedMessage
from mq.broker.write_path.internal_messages import check_sent_bytes
from mq.broker.write_path.pending import SendRequest
from mq.broker.write_path.properties import RECEIPT, TAGS, UNIQUE_KEY, VALUE_END, TagCodes
from mq.broker.write_path.queue_tails import QueueTail
from mq.broker.write_path.send_block import QueuedSend
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.message_ids import UniqKeyGenerator
from mq.protocol.messages.message_types import PRIORITY_MARK
from mq.protocol.messages.records import tag_code_of
from mq.protocol.messages.sequencing import SEQUENCE_MARK, SequenceRange
from mq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from mq.protocol.requests.send import SendExt
from mq.protocol.wire.encoding import ONEWAY_FLAG

_COPIES_IN = RETRY_PREFIX, DEAD_LETTER_PREFIX
"""Messages to these topics are consumers' copies of received messages, with all their properties."""
NUMBERED: Final = SEQUENCE_MARK.decode()
"""A text in the properties of each message with a sequence number, and perhaps of others."""
_ASK_FOR_MORE = "DELAY\x01", "TIMER_D", "TRAN_MSG\x01", "LITE_TOPIC\x01"
_NOT_PLAIN = *_ASK_FOR_MORE, RECEIPT, PRIORITY_MARK


def asks_for_more(ext: SendExt) -> bool:
    """Whether the properties of a message may ask for a delay, a transaction or a lite topic, or it may be a copy of a
    numbered message. A quick check of the text.
    """
    text = ext.properties
    return any(mark in text for mark in _ASK_FOR_MORE) or (NUMBERED in text and ext.topic.startswith(_COPIES_IN))


def numbers_in(ext: SendExt) -> SequenceRange | None:
    """Return the sequence number of a message; None without one. Raises RequestRefused if it is invalid."""
    if NUMBERED not in ext.properties:
        return None
    properties = props.decode(ext.properties)
    return numbers_of(properties) if props.SEQUENCE in properties else None


class SentMessages:
    """Checks single messages that producers send.

    Attributes:
        writable: the tails of topics that exist and are writable, by queue id; not of topics for messages with
            priorities, whose queues the broker chooses.
        tag_codes: the code of each tag.
        suffix: properties that the broker adds to each message, encoded.
        body_bytes_max: the maximum of a body, and of the records of a batch.
    """

    def __init__(self, *, unique_keys: UniqKeyGenerator, suffix: bytes, body_bytes_max: int) -> None:
        self.writable: dict[str, list[QueueTail]] = {}
        self.tag_codes = TagCodes()
        self.suffix = suffix
        self.body_bytes_max = body_bytes_max
        self._unique_keys = unique_keys

    def plain_tail(self, call: Call[SendRequest]) -> QueueTail | None:
        """Return the queue of a plain send; None if `Sends` has to handle the request.

        A send is *plain* if its topic is known to be writable and has the queue, and its properties ask for nothing but
        being stored, perhaps once only, and for no priority. One with sequence numbers that wants no answer is not.
        """
        ext = call.request.ext
        tails = self.writable.get(ext.topic)
        if tails is None or not 0 <= ext.queue_id < len(tails):
            return None
        text = ext.properties
        for mark in _NOT_PLAIN:
            if mark in text:
                return None
        if NUMBERED in text and (call.request.flag & ONEWAY_FLAG or ext.topic.startswith(_COPIES_IN)):
            return None
        return tails[ext.queue_id]

    def build_send(
        self,
        call: Call[SendRequest],
        tail: QueueTail,
        *,
        needs_key: bool = False,
        numbers: SequenceRange | None = None,
    ) -> QueuedSend:
        """Return the message of a plain send, ready to be stored.

        A message without a unique key gets one; with ``needs_key`` it is refused. ``numbers`` is its sequence number,
        and new. Raises RequestRefused.
        """
        ext, body = call.request.ext, call.body
        text = ext.properties
        properties = (text if not text or text[-1] == "\x02" else text + "\x02").encode()
        # Finds both values as `props.value_of`. The last hit is nearly always right, and a call would double the cost.
        at = properties.rfind(UNIQUE_KEY)
        unique_key = properties[at + 9 : properties.find(b"\x02", at)] if at >= 0 else b""
        if not unique_key or (at > 0 and properties[at - 1] != VALUE_END):
            unique_key = props.value_of(properties, UNIQUE_KEY)
        if not unique_key:
            if needs_key:
                raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "the message has no unique key")
            unique_key = self._unique_keys.next().encode()
            properties += UNIQUE_KEY + unique_key + b"\x02"
        at = properties.rfind(TAGS)
        if at < 0:
            code = 0
        else:
            tags = properties[at + 5 : properties.find(b"\x02", at)]
            if not tags or (at > 0 and properties[at - 1] != VALUE_END):
                tags = props.value_of(properties, TAGS)
            code = self.tag_codes[tags]
        properties += self.suffix
        body_bytes = len(body)
        if body_bytes > self.body_bytes_max:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"the body has {body_bytes} bytes; maximum: {self.body_bytes_max}"
            )
        if len(properties) > props.SENT_PROPERTIES_BYTES_MAX:
            if not ext.topic.startswith(_COPIES_IN):
                check_sent_bytes(len(properties))
            # A consumer's copy of a received message: it is stored in any case.
            properties = props.fit(props.decode(properties.decode()))
            code = tag_code_of(properties)
        size = tail.fixed_bytes + body_bytes + len(properties)
        return QueuedSend(
            call, tail, [QueuedMessage(size, ext.flag, body, properties, code)], size, unique_key, numbers=numbers
        )
