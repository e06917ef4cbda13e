"""SEND_MESSAGE and SEND_MESSAGE_V2 (request codes 10 and 310): checks, then one place in the next round.

The first message to a topic that nobody created makes the topic: the creation is replicated first, and the message
waits for it. Everything else about a message is decided here, inline; see `mq.broker.appender` for what follows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from mq.broker.appender import Appender
from mq.broker.commands import PutTopic, encode_command
from mq.broker.connection import ClientConnection, Handler
from mq.broker.metadata import Metadata, auto_create
from mq.broker.refusal import RequestRefused
from mq.broker.settings import BrokerSettings
from mq.broker.tails import QueueTail, QueueTails
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.hashes import UniqKeyGenerator, tag_code
from mq.protocol.headers import SendMessage, SendMessageV2
from mq.protocol.names import SEND_FORBIDDEN_TOPICS, NameRefused, check_topic

PROPERTIES_BYTES_MAX = 32767
_WRITABLE = 2
_TAGS = b"TAGS\x01"
_UNIQUE_KEY = b"UNIQ_KEY\x01"
_VALUE_END = 2
_TAG_CODES_MAX = 4096
_TAG_BYTES_MAX = 128

SendRequest = SendMessage | SendMessageV2


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
        rng: random.Random,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._body_bytes_max = settings.message_bytes_max
        self._pending_bytes_max = settings.pending_bytes_max
        self._metadata = metadata
        self._appender = appender
        self._tails = tails
        self._tails_of = tails.by_topic.get
        self._unique_keys = unique_keys
        self._rng = rng
        self._wall_clock_ms = wall_clock_ms
        self._creating: dict[str, list[Callable[[bool], None]]] = {}
        self._tag_codes: dict[bytes, int] = {}
        self._suffix = f"CLUSTER\x01{settings.cluster}\x02".encode()

    def leader_handlers(self) -> dict[type[Any], Handler]:
        """What only the leader serves."""
        return {SendMessage: self.handle, SendMessageV2: self.handle}

    def forget(self) -> None:
        """This replica does not lead any more; what it was creating may never be."""
        self._creating.clear()

    def handle(self, sender: ClientConnection, request: SendRequest, body: bytes, serialization: int) -> None:
        """Check one message and queue it; its reply follows when it is committed.

        Raises:
            RequestRefused: it was not stored, and will not be.
        """
        ext = request.ext
        appender = self._appender
        if appender.pending_bytes > self._pending_bytes_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
        tails = self._tails_of(ext.topic)
        if tails is None:
            tails = self._open_topic(sender, request, body, serialization)
            if tails is None:
                return
        queue_id = ext.queue_id
        if not 0 <= queue_id < len(tails):
            if queue_id >= 0:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER,
                    f"queue id {queue_id} is illegal, {ext.topic} has {len(tails)} write queues",
                )
            queue_id = self._rng.randrange(len(tails))
        text = ext.properties
        if "DELAY\x01" in text or "TIMER_D" in text or "TRAN_MSG\x01" in text or ext.batch:
            _refuse_what_is_not_served(text, ext.batch)
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
        config = self._metadata.topics.get(topic)
        if config is None:
            self._create(sender, request, body, serialization)
            return None
        if not config.perm & _WRITABLE:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {topic} is not writable")
        if config.write_queues == 0:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {topic} has no write queue")
        return self._tails.of_topic(topic)

    def _create(self, sender: ClientConnection, request: SendRequest, body: bytes, serialization: int) -> None:
        ext = request.ext
        topic = ext.topic
        command: PutTopic | None = None
        if self._settings.auto_create_topics:
            command = auto_create(
                self._metadata, topic, ext.default_topic, ext.default_topic_queue_nums, self._wall_clock_ms()
            )
        if command is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} does not exist, apply first please!")

        size = len(body) + len(ext.properties)
        self._appender.pending_bytes += size

        def created(known: bool) -> None:
            self._appender.pending_bytes -= size
            if known:
                sender.dispatch(request, body, serialization)
            else:
                sender.close("leadership was lost while a topic was being created")

        if (waiting := self._creating.get(topic)) is not None:
            waiting.append(created)
            return
        waiting = self._creating[topic] = [created]

        def committed(known: bool) -> None:
            self._creating.pop(topic, None)
            for callback in waiting:
                callback(known)

        self._appender.add_command(encode_command(command), committed)


def _value(properties: bytes, name: bytes) -> bytes:
    """The value of a property whose ``name`` ends with its separator; empty if it is missing."""
    at = properties.find(name)
    while at > 0 and properties[at - 1] != _VALUE_END:
        at = properties.find(name, at + 1)
    if at < 0:
        return b""
    return properties[at + len(name) : properties.find(b"\x02", at)]


def _refuse_what_is_not_served(text: str, batch: bool) -> None:
    known = props.decode(text)
    if batch:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "batches are not served by this version")
    if known.get("TRAN_MSG") == "true":
        raise RequestRefused(ResponseCode.NO_PERMISSION, "transactional messages are not served by this version")
    delay = known.get("DELAY", "0")
    if delay.strip() not in ("", "0") or any(name in known for name in props.TIMER_PROPERTIES):
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "delayed messages are not served by this version")
