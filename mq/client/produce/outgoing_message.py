"""One message that is being sent: its encoded form, the state between attempts, and the handle to await."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from mq.client.errors import ClientError, CodecNotInstalled, MessageRefused, UnreadableAnswer
from mq.client.message import Message, MessageQueue, SendResult
from mq.client.net.connection import Connection
from mq.client.produce.recall import delay_properties
from mq.protocol import properties as props
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.protocol.messages.compression import Codec, CodecMissing, deflate, require_codec
from mq.protocol.messages.message_types import PriorityInvalid, priority_of
from mq.protocol.messages.records import BODY_BYTES_MAX, PREPARED
from mq.protocol.messages.sequencing import SequenceRange
from mq.protocol.names import NameRefused, check_lite_topic, check_topic

__all__ = [
    "BODY_BYTES_MAX",
    "OnDone",
    "OutgoingMessage",
    "Pending",
    "Send",
    "check_codec",
    "make_batch_ready",
    "make_ready",
    "split_result",
]

OnDone = Callable[[SendResult | ClientError], None]


class OutgoingMessage(msgspec.Struct, frozen=True, gc=False):
    """A checked message, encoded for all attempts to send it.

    ``priority`` is only for those who put messages together: it is among the properties.
    """

    topic: str
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    born_timestamp_ms: int
    unique_key: str
    sharding_key: str | None
    is_batch: bool = False
    """Whether the body contains many messages; then ``unique_key`` is theirs, joined by commas."""
    extra: Mapping[str, str] | None = None
    """Header fields of the request that take the place of the usual ones, or are sent in addition."""
    priority: int | None = None
    is_numbered: bool = False
    """Whether a broker group that has the message recognizes it when it is sent again."""
    numbers: SequenceRange | None = None
    """The numbers that the producer has given; None if it gave none."""


_checked_topics: set[str] = set()

_FLAG_END = 1 << 31


def check_codec(codec: Codec | None) -> None:
    """Raise CodecNotInstalled if the library for ``codec`` is not installed, ValueError for an unknown codec."""
    try:
        if codec is not None:
            require_codec(codec)
    except CodecMissing as error:
        raise CodecNotInstalled(error) from error


def make_ready(
    message: Message,
    *,
    unique_key: str,
    born_timestamp_ms: int,
    compress: Codec | None,
    compress_bytes_min: int,
    own: Mapping[str, str] | None = None,
    room_bytes: int = 0,
) -> OutgoingMessage:
    """Check `message` against the limits of the protocol, and encode the part that all attempts share.

    A body of at least `compress_bytes_min` bytes is compressed if that makes it smaller. `own` are system properties
    that the application cannot set. `room_bytes` are left for properties that follow. Raises MessageRefused.
    """
    if message.topic not in _checked_topics:
        try:
            check_topic(message.topic)
        except NameRefused as error:
            raise MessageRefused(str(error)) from error
        if len(_checked_topics) < 10_000:
            _checked_topics.add(message.topic)
    body, sys_flag = message.body, 0
    if not isinstance(body, bytes):
        raise MessageRefused(f"the body must be bytes, not {type(body).__name__}")
    flag: Any = message.flag
    if not isinstance(flag, int) or not -_FLAG_END <= flag < _FLAG_END:
        raise MessageRefused(f"a flag is a whole number of 32 bits, not {flag!r}")
    if not (body or message.keys) or len(body) > BODY_BYTES_MAX:
        raise MessageRefused(
            f"the body has {len(body)} bytes; allowed: 1 to {BODY_BYTES_MAX}, or 0 if the message has keys"
        )
    if compress is not None and len(body) >= compress_bytes_min:
        sys_flag, body = deflate(compress, body)
    if own and props.TRANSACTION_PREPARED in own:
        sys_flag |= PREPARED
    properties = _encode_properties(message, unique_key)
    if own:
        properties += props.encode(own)
    try:
        properties_bytes = len(properties.encode())
    except UnicodeEncodeError as error:
        raise MessageRefused(f"the properties are not valid text: {error}") from error
    if properties_bytes > props.SENT_PROPERTIES_BYTES_MAX - room_bytes:
        numbers = f", of which up to {room_bytes} are for the number of the message" if room_bytes else ""
        raise MessageRefused(
            f"the properties have {properties_bytes} bytes; {props.SENT_PROPERTIES_BYTES_MAX} are allowed{numbers}"
        )
    return OutgoingMessage(
        topic=message.topic,
        body=body,
        properties=properties,
        sys_flag=sys_flag,
        flag=message.flag,
        born_timestamp_ms=born_timestamp_ms,
        unique_key=unique_key,
        # All messages of a lite topic are sent to one broker group.
        sharding_key=message.sharding_key if message.lite_topic is None else message.lite_topic,
        priority=message.priority,
        is_numbered=props.SEQUENCE in message.properties,
    )


def make_batch_ready(
    messages: Sequence[Message],
    *,
    new_unique_key: Callable[[], str],
    born_timestamp_ms: int,
    properties: Mapping[str, str] | None = None,
    room_bytes: int = 0,
) -> OutgoingMessage:
    """Check messages that are to be stored together, and encode them as one. Raises MessageRefused.

    `properties` belong to the batch: consumers see them on each message.
    """
    if not messages:
        raise MessageRefused("a batch needs at least one message")
    topics = {message.topic for message in messages}
    if len(topics) > 1:
        raise MessageRefused(f"a batch goes to one topic, not to {len(topics)}: {', '.join(sorted(topics)[:3])}")
    sharding_keys = {message.sharding_key for message in messages}
    if len(sharding_keys) > 1:
        raise MessageRefused(
            "the messages of a batch must have one sharding key, since they go to one queue; these have "
            f"{len(sharding_keys)}"
        )
    priorities = {message.priority for message in messages}
    if len(priorities) > 1:
        raise MessageRefused(
            f"the messages of a batch must have one priority, since they go to one queue; these have {len(priorities)}"
        )
    try:
        props.check_user_properties(properties or {})
    except props.PropertyInvalid as error:
        raise MessageRefused(str(error)) from error
    elements: list[BatchedMessage] = []
    unique_keys: list[str] = []
    for message in messages:
        if delay_properties(message):
            raise MessageRefused("a message of a batch cannot be delayed; send it by itself")
        if message.lite_topic is not None:
            raise MessageRefused("a message of a batch cannot be one of a lite topic; send it by itself")
        ready = make_ready(
            message,
            unique_key=new_unique_key(),
            born_timestamp_ms=born_timestamp_ms,
            compress=None,
            compress_bytes_min=0,
            room_bytes=room_bytes,
        )
        elements.append(BatchedMessage(ready.body, ready.properties, ready.flag))
        unique_keys.append(ready.unique_key)
    body = encode_batch(elements)
    if len(body) > BODY_BYTES_MAX:
        raise MessageRefused(f"the batch has {len(body)} bytes; {BODY_BYTES_MAX} are allowed")
    return OutgoingMessage(
        topic=messages[0].topic,
        body=body,
        properties=props.encode({props.WAIT: "true", **(properties or {})}),
        sys_flag=0,
        flag=0,
        born_timestamp_ms=born_timestamp_ms,
        unique_key=",".join(unique_keys),
        sharding_key=messages[0].sharding_key,
        is_batch=True,
        is_numbered=props.SEQUENCE in (properties or {}),
    )


def split_result(together: SendResult, count: int) -> list[SendResult]:
    """Split the result of a batch into the results of its ``count`` messages. Raises UnreadableAnswer."""
    message_ids = together.message_id.split(",")
    record_ids = together.offset_message_id.split(",")
    if not len(message_ids) == len(record_ids) == count:
        raise UnreadableAnswer(f"stored, but the answer names {len(record_ids)} messages of {count}")
    first = together.queue_offset  # -1 if the broker no longer knows their place
    return [
        msgspec.structs.replace(
            together,
            message_id=message_id,
            offset_message_id=record_id,
            queue_offset=first + number if first >= 0 else first,
        )
        for number, (message_id, record_id) in enumerate(zip(message_ids, record_ids, strict=True))
    ]


def _encode_properties(message: Message, unique_key: str) -> str:
    properties = {props.UNIQUE_KEY: unique_key, props.WAIT: "true"}
    try:
        if message.properties:
            props.check_user_properties(message.properties)
            properties.update(message.properties)
        own = {}
        if message.tags is not None:
            if not isinstance(message.tags, str):
                raise MessageRefused(f"a message has one tag, a text, not {message.tags!r}")
            if "||" in message.tags:
                raise MessageRefused(f"a message has one tag; {message.tags!r} is a filter for several tags")
            own[props.TAGS] = message.tags
        if message.keys:
            keys: Any = message.keys
            is_list = isinstance(keys, Collection) and not isinstance(keys, str)
            if not is_list or any(not key or str(key).split() != [key] for key in keys):
                raise MessageRefused(f"keys must be words without white space, in a list: {message.keys!r}")
            own[props.KEYS] = " ".join(message.keys)
        if message.sharding_key is not None:
            if not isinstance(message.sharding_key, str):
                raise MessageRefused(f"a sharding key is a text, not {message.sharding_key!r}")
            own[props.SHARDING_KEY] = message.sharding_key
        own |= delay_properties(message)
        if message.priority is not None:
            own[props.PRIORITY] = _priority_text(message.priority)
            priority_of(own)
        if message.lite_topic is not None:
            _check_lite(message, own)
            own[props.LITE_TOPIC] = message.lite_topic
    except PriorityInvalid as error:
        raise MessageRefused(str(error)) from error
    except props.PropertyInvalid as error:
        raise MessageRefused(str(error)) from error
    for name, value in own.items():
        if not value or "\x01" in value or "\x02" in value:
            raise MessageRefused(f"{name} must not be empty nor contain the separators 0x01 and 0x02: {value!r}")
    properties.update(own)
    return props.encode(properties)


def _priority_text(priority: int) -> str:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise MessageRefused(f"a priority is a number, not {priority!r}")
    # Python writes no number of more than some thousand digits.
    return str(max(min(priority, 10**40), -(10**40)))


def _check_lite(message: Message, own: Mapping[str, str]) -> None:
    """Raise MessageRefused for an invalid lite topic, or for a property that a lite topic excludes."""
    if not isinstance(message.lite_topic, str):
        raise MessageRefused(f"a lite topic is a text, not {message.lite_topic!r}")
    try:
        check_lite_topic(message.lite_topic)
    except NameRefused as error:
        raise MessageRefused(str(error)) from error
    if message.priority is not None:
        raise MessageRefused("a message of a lite topic has no priority")
    if message.sharding_key is not None:
        raise MessageRefused("a message of a lite topic has no sharding key: a lite topic is in order by itself")
    if own.keys() & {props.DELAY, *props.TIMER_PROPERTIES}:
        raise MessageRefused("a message of a lite topic cannot be delayed")


class Send:
    """The state of one message until its outcome is known. Times are on the event loop's clock."""

    __slots__ = (
        "attempts",
        "avoid",
        "connection",
        "deadline",
        "expires_at",
        "failures",
        "fixed_queue",
        "is_sharded",
        "last_error",
        "message",
        "not_before",
        "number",
        "on_done",
        "opaque",
        "queue",
        "refused_by",
        "retries_left",
        "started_at",
        "unknown_reason",
    )

    def __init__(
        self,
        number: int,
        message: OutgoingMessage,
        on_done: OnDone,
        *,
        started_at: float,
        deadline: float,
        retries: int,
        queue: MessageQueue | None,
    ) -> None:
        self.number = number
        self.message = message
        self.on_done = on_done
        self.started_at = started_at
        self.deadline = deadline
        self.expires_at = deadline
        self.retries_left = retries
        self.fixed_queue = queue
        self.is_sharded = False
        """Whether the fixed queue is that of the sharding key, and not the caller's."""
        self.queue = queue
        self.avoid: tuple[str, ...] = ()
        self.refused_by: tuple[str, ...] = ()
        self.connection: Connection | None = None
        self.opaque = -1
        self.attempts = 0
        self.failures = 0
        self.not_before = 0.0
        self.unknown_reason: str | None = None
        self.last_error: ClientError | None = None

    @property
    def knowing_group(self) -> str | None:
        """The only broker group that may have stored the message, and so knows the outcome; None if any may get it."""
        if self.unknown_reason is None or not self.message.is_numbered or self.queue is None:
            return None
        return self.queue.broker_name


class Pending:
    """A submitted message. Await it for the result, or check whether it is `done`."""

    __slots__ = ("_completion_event", "_outcome", "message_id")

    def __init__(self, message_id: str = "") -> None:
        self.message_id = message_id
        self._outcome: SendResult | ClientError | None = None
        self._completion_event: anyio.Event | None = None

    def __repr__(self) -> str:
        return f"<Pending {self.message_id} {self._outcome or 'on its way'}>"

    def __await__(self) -> Generator[Any, Any, SendResult]:
        return self.wait().__await__()

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._outcome is not None

    @property
    def outcome(self) -> SendResult | ClientError | None:
        """The result or the error, or None while the outcome is unknown."""
        return self._outcome

    def complete(self, outcome: SendResult | ClientError) -> None:
        """Set the outcome. The producer calls this once."""
        self._outcome = outcome
        if self._completion_event is not None:
            self._completion_event.set()

    settle = complete
    """The former name of `complete`."""

    async def wait(self) -> SendResult:
        """Wait for the result. Raises the errors of `Producer.send`. If cancelled, the message stays in flight."""
        outcome = await self.wait_outcome()
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome

    async def wait_outcome(self) -> SendResult | ClientError:
        """Wait for the result, and return it, or the error as a value."""
        if self._outcome is None:
            if self._completion_event is None:
                self._completion_event = anyio.Event()
            await self._completion_event.wait()
        assert self._outcome is not None, "complete without an outcome"
        return self._outcome
