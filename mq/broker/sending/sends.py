"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE (request codes 10, 310 and 320): checks, then the next round.

The first message to a topic that nobody created makes the topic: the creation is replicated first, and the message
waits for it. Everything else about a message is decided here, inline; see `mq.broker.sending.appender` for what
follows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from mq.broker.requests.connection import ClientConnection, Handler
from mq.broker.requests.refusal import RequestRefused
from mq.broker.sending.appender import Appender
from mq.broker.sending.pending import BatchElement, PendingBatch
from mq.broker.sending.retries import Retries
from mq.broker.sending.special_sends import SpecialSends
from mq.broker.sending.tails import QueueTail, QueueTails
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import PutTopic, encode_command
from mq.broker.state.metadata import Metadata, auto_create
from mq.protocol import properties as props
from mq.protocol.batch import split_batch
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.hashes import UniqKeyGenerator, tag_code
from mq.protocol.headers import SendBatchMessage, SendExt, SendMessage, SendMessageV2
from mq.protocol.names import RETRY_PREFIX, SEND_FORBIDDEN_TOPICS, NameRefused, check_topic
from mq.protocol.sequencing import SEQUENCE_MARK

PROPERTIES_BYTES_MAX = 32767
_WRITABLE = 2
_TAGS = b"TAGS\x01"
_UNIQUE_KEY = b"UNIQ_KEY\x01"
_RECEIPT = "POP_CK\x01"
_VALUE_END = 2
_TAG_CODES_MAX = 4096
_TAG_BYTES_MAX = 128

SendRequest = SendMessage | SendMessageV2 | SendBatchMessage


class Sends:
    """The send handler of a broker."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        metadata: Metadata,
        appender: Appender,
        tails: QueueTails,
        unique_keys: UniqKeyGenerator,
        special: SpecialSends,
        retries: Retries,
        rng: random.Random,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._body_bytes_max = settings.message_bytes_max
        self._pending_bytes_max = settings.pending_bytes_max
        self._metadata = metadata
        self._appender = appender
        self._tails = tails
        # Of topics that were found to be there and writable.
        self._writable: dict[str, list[QueueTail]] = {}
        self._unique_keys = unique_keys
        self._special = special
        self._retries = retries
        self._rng = rng
        self._wall_clock_ms = wall_clock_ms
        self._creating: dict[str, list[Callable[[bool, str | None], None]]] = {}
        self._tag_codes: dict[bytes, int] = {}
        self._suffix = props.encode(props.of_cluster(settings.cluster)).encode()

    def leader_handlers(self) -> dict[type[Any], Handler]:
        """What only the leader serves."""
        return {SendMessage: self.handle, SendMessageV2: self.handle, SendBatchMessage: self.handle_batch}

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Whether topics are made for their first message may be another answer from now on."""
        self._settings = settings

    def forget(self) -> None:
        """This replica does not lead any more; what it was creating may never be."""
        self._creating.clear()
        self._writable.clear()

    def topic_changed(self, topic: str) -> None:
        """Look at the topic anew with its next message."""
        self._writable.pop(topic, None)

    def handle(self, sender: ClientConnection, request: SendRequest, body: bytes, serialization: int) -> None:
        """Check one message and queue it; its reply follows when it is committed.

        Raises:
            RequestRefused: it was not stored, and will not be.
        """
        ext = request.ext
        appender = self._appender
        if appender.pending_bytes > self._pending_bytes_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
        if _RECEIPT in ext.properties:  # a consumer forwards what it popped; the receipt is not of the new message
            ext.properties = props.without(ext.properties, props.POP_CK)
        tails = self._writable.get(ext.topic)
        if tails is None:
            tails = self._open_topic(sender, request, body, serialization)
            if tails is None:
                return
        queue_id = ext.queue_id
        if not 0 <= queue_id < len(tails):
            queue_id = self._chosen_queue(ext, len(tails))
        if ext.batch:
            self._add_batch(sender, request, body, serialization, tails[queue_id])
            return
        text = ext.properties
        if "DELAY\x01" in text or "TIMER_D" in text or "TRAN_MSG\x01" in text or "RAFTMQ_S" in text:
            self._special.add(sender, request, body, serialization, props.decode(text), ext.topic, queue_id)
            return
        properties = (text if not text or text[-1] == "\x02" else text + "\x02").encode()
        # Both values are found as `_value` finds them; the first place is nearly always it, and a call costs as much.
        at = properties.find(_UNIQUE_KEY)
        if at == 0 or (at > 0 and properties[at - 1] == _VALUE_END):
            unique_key = properties[at + 9 : properties.find(b"\x02", at)]
        else:
            unique_key = _value(properties, _UNIQUE_KEY)
        if not unique_key:
            unique_key = self._unique_keys.next().encode()
            properties += _UNIQUE_KEY + unique_key + b"\x02"
        at = properties.find(_TAGS)
        if at < 0:
            code = 0
        else:
            tags = properties[at + 5 : properties.find(b"\x02", at)]
            if at > 0 and properties[at - 1] != _VALUE_END:
                tags = _value(properties, _TAGS)
            code = self._tag_codes.get(tags) or self._tag_code(tags)
        properties += self._suffix
        if len(body) > self._body_bytes_max or len(properties) > PROPERTIES_BYTES_MAX:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"body of {len(body)} bytes and properties of {len(properties)}, "
                f"allowed are {self._body_bytes_max} and {PROPERTIES_BYTES_MAX}",
            )
        tail = tails[queue_id]
        size = tail.fixed_bytes + len(body) + len(properties)
        appender.pending.append((size, sender, request, serialization, tail, body, properties, code, unique_key))
        appender.pending_bytes += size

    def queue_of(
        self, sender: ClientConnection, request: SendRequest, body: bytes, serialization: int
    ) -> QueueTail | None:
        """The queue of a message that somebody else stores. Raises RequestRefused.

        None if the request is served already, or will be once more when its topic is created.
        """
        ext = request.ext
        if self._appender.pending_bytes > self._pending_bytes_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
        tails = self._writable.get(ext.topic) or self._open_topic(sender, request, body, serialization)
        if tails is None:
            return None
        return tails[ext.queue_id if 0 <= ext.queue_id < len(tails) else self._chosen_queue(ext, len(tails))]

    def handle_batch(
        self, sender: ClientConnection, request: SendBatchMessage, body: bytes, serialization: int
    ) -> None:
        """Check many messages to one queue and queue them as one; a single reply follows.

        Raises:
            RequestRefused: none of them was stored, and none will be.
        """
        request.ext.batch = True
        self.handle(sender, request, body, serialization)

    def _add_batch(
        self, sender: ClientConnection, request: SendRequest, body: bytes, serialization: int, tail: QueueTail
    ) -> None:
        ext = request.ext
        # No record is smaller than that, so that what is far too much is not even split.
        record_bytes_min = tail.fixed_bytes + len(self._suffix)
        try:
            messages = split_batch(body, self._body_bytes_max // record_bytes_min)
        except BodyError as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        if not messages:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        # Clients of 5.x give the batch a UNIQ_KEY, too; behind a message's own it would hide that from readers.
        given = [each for each in ext.properties.encode().split(b"\x02") if each and not each.startswith(_UNIQUE_KEY)]
        shared = b"".join(each + b"\x02" for each in given) + self._suffix
        if _asks_for_more(shared):
            _refuse_in_batch(ext.properties, "the head")
        elements: list[BatchElement] = []
        unique_keys: list[bytes] = []
        nbytes = 0
        for flag, message_body, properties in messages:
            if properties and properties[-1] != _VALUE_END:
                properties += b"\x02"
            try:
                text = properties.decode()
            except UnicodeDecodeError as error:
                number = len(elements)
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL, f"the properties of message {number} are not UTF-8"
                ) from error
            if _RECEIPT in text:
                properties = props.without(text, props.POP_CK).encode()
            if _asks_for_more(properties):
                _refuse_in_batch(text, f"message {len(elements)}")
            unique_key = _value(properties, _UNIQUE_KEY)
            if not unique_key:
                unique_key = self._unique_keys.next().encode()
                properties += _UNIQUE_KEY + unique_key + b"\x02"
            properties += shared
            tags = _value(properties, _TAGS)  # of the batch, if the message has none: readers find it there
            code = (self._tag_codes.get(tags) or self._tag_code(tags)) if tags else 0
            if len(properties) > PROPERTIES_BYTES_MAX:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"message {len(elements)} has properties of {len(properties)} bytes, "
                    f"allowed are {PROPERTIES_BYTES_MAX}",
                )
            size = tail.fixed_bytes + len(message_body) + len(properties)
            nbytes += size
            if nbytes > self._body_bytes_max:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the records of a batch of {len(messages)} messages have more than {self._body_bytes_max} bytes",
                )
            elements.append(BatchElement(size, flag, message_body, properties, code))
            unique_keys.append(unique_key)
        self._appender.add_batch(
            PendingBatch(sender, request, serialization, body, tail, elements, b",".join(unique_keys))
        )

    def _chosen_queue(self, ext: SendExt, count: int) -> int:
        """A queue for a message that leaves the choice to the broker. Raises RequestRefused for one out of range."""
        if ext.queue_id >= 0:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"queue id {ext.queue_id} is illegal, {ext.topic} has {count} queues"
            )
        return self._rng.randrange(self._metadata.topics[ext.topic].write_queues)

    def _tag_code(self, tags: bytes) -> int:
        code = tag_code(tags.decode()) if tags else 0
        if len(self._tag_codes) < _TAG_CODES_MAX and len(tags) <= _TAG_BYTES_MAX:
            self._tag_codes[tags] = code
        return code

    def _open_topic(
        self, sender: ClientConnection, request: SendRequest, body: bytes, serialization: int
    ) -> list[QueueTail] | None:
        """The tails of a topic that was not written to before; None when it is being created and the message waits."""
        ext = request.ext
        topic = ext.topic
        try:
            check_topic(topic)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if topic in SEND_FORBIDDEN_TOPICS:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"sending to topic {topic} is forbidden")
        is_retry = topic.startswith(RETRY_PREFIX)
        if is_retry and self._retries.takes(sender, request, body, serialization):
            return None
        config = self._metadata.topics.get(topic)
        if config is None:
            self._create(sender, request, body, serialization)
            return None
        if not config.perm & _WRITABLE:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {topic} is not writable")
        if config.write_queues == 0:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {topic} has no write queue")
        tails = self._tails.of_topic(topic)
        if not is_retry:  # what goes there is looked at each time
            self._writable[topic] = tails
        return tails

    def _create(self, sender: ClientConnection, request: SendRequest, body: bytes, serialization: int) -> None:
        ext = request.ext
        topic = ext.topic
        command: PutTopic | None = None
        if topic.startswith(RETRY_PREFIX):
            command = self._retries.creation(topic)
        elif self._settings.auto_create_topics:
            command = auto_create(
                self._metadata, topic, ext.default_topic, ext.default_topic_queue_nums, self._wall_clock_ms()
            )
        if command is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} does not exist, apply first please!")

        size = len(body) + len(ext.properties)
        self._appender.pending_bytes += size

        def created(known: bool, refusal: str | None) -> None:
            self._appender.pending_bytes -= size
            if known:
                sender.dispatch(request, body, serialization)
            elif refusal is not None:
                error = RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, refusal)
                sender.refuse(request, serialization, error)
            else:
                sender.close("leadership was lost while a topic was being created")

        if (waiting := self._creating.get(topic)) is not None:
            waiting.append(created)
            return
        waiting = self._creating[topic] = [created]

        def settled(known: bool, refusal: str | None = None) -> None:
            self._creating.pop(topic, None)
            for callback in waiting:
                callback(known, refusal)

        self._appender.add_command(
            encode_command(command), settled, lambda: settled(True), lambda remark: settled(False, remark)
        )


def _value(properties: bytes, name: bytes) -> bytes:
    """The value of a property whose ``name`` ends with its separator; empty if it is missing."""
    at = properties.find(name)
    while at > 0 and properties[at - 1] != _VALUE_END:
        at = properties.find(name, at + 1)
    if at < 0:
        return b""
    return properties[at + len(name) : properties.find(b"\x02", at)]


def _asks_for_more(properties: bytes) -> bool:
    """Whether a message may ask for something besides being stored, as far as a quick look tells."""
    return (
        b"DELAY\x01" in properties
        or b"TIMER_D" in properties
        or b"TRAN_MSG\x01" in properties
        or SEQUENCE_MARK in properties
    )


def _refuse_in_batch(text: str, part: str) -> None:
    """What stock brokers store without its effect is refused here."""
    if SEQUENCE_MARK.decode() in text:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{part} of a batch has a {props.SEQUENCE}, which only messages by themselves can have",
        )
    known = props.decode(text)
    delay = known.get("DELAY", "0").strip()
    if delay not in ("", "0") or "TRAN_MSG" in known or any(name in known for name in props.TIMER_PROPERTIES):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{part} of a batch is delayed or transactional, which only messages by themselves can be",
        )
