"""The public value types: messages to send, results, received messages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, cast

import msgspec

from mq.protocol import properties as props
from mq.protocol.messages.message_types import stored_priority
from mq.protocol.messages.records import Host, StoredMessage
from mq.protocol.names import RETRY_PREFIX
from mq.protocol.numbers import QueueOffset

if TYPE_CHECKING:  # its `default` says what a bare `Message` is; later versions of Python have it in `typing`
    from typing_extensions import TypeVar

    BodyT = TypeVar("BodyT", default=bytes)
else:
    from typing import TypeVar

    BodyT = TypeVar("BodyT")

__all__ = ["BodyT", "Message", "MessageQueue", "ReceivedMessage", "SendResult", "SendStatus", "tombstone"]


_TOPIC_AND_BODY = ("topic", "body")
_SHOWN_BYTES_MAX = 64
"""Maximum number of body bytes shown in errors and logs."""


class MessageQueue(NamedTuple):
    """One queue of a topic in one broker group. Sorts by (topic, broker name, queue id), as allocation requires."""

    topic: str
    broker_name: str
    queue_id: int


def check_queues(*queues: object) -> None:
    """Raise TypeError for a value that is not a queue, such as the name of a topic."""
    for queue in queues:
        if not isinstance(queue, MessageQueue):
            raise TypeError(f"pass a queue, such as one that queues(topic) returns, not {queue!r}")


class Message(msgspec.Struct, Generic[BodyT], frozen=True, repr_omit_defaults=True):
    """A message to send.

    `body` is 1 byte to 4 MiB, and may be empty if there are keys (see `tombstone`); or, for a producer with a codec, a
    value that the codec encodes as that. `tags` is one tag to filter by; `keys` are words to look the message up by.
    `properties` are the application's own names and values. Messages with the same `sharding_key` are sent to the same
    queue and so keep their order. `flag` is a number that brokers store and ignore. `delay_level` 1 to 18 delivers
    later (1 s, 5 s, 10 s, 30 s, 1 min ... 2 h; brokers may have other levels, up to 64), `delay` after that many
    seconds by the broker's clock, `deliver_at` at a time: a datetime with its time zone, or milliseconds since the
    epoch. At most one of the three; a time in the past means now. `priority`, 0 or more, makes the message more or less
    urgent to those who pop it; its broker chooses the queue. A message with a priority has neither a `sharding_key` nor
    a delay. `lite_topic` is one of the many small topics within a topic with the message type LITE; its messages have
    one order, and are neither delayed nor have a sharding key. See `LiteConsumer`.
    """

    topic: str
    body: BodyT
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    sharding_key: str | None = None
    delay_level: int | None = None
    flag: int = 0
    delay: float | None = None
    deliver_at: dt.datetime | int | None = None
    priority: int | None = None
    lite_topic: str | None = None

    def __repr__(self) -> str:
        fields = "".join(f", {name}={value!r}" for name, value in self.__rich_repr__() if name not in _TOPIC_AND_BODY)
        body = cast("Any", self.body)
        if not isinstance(body, bytes):
            body_text = f"<a {type(body).__name__}>"
        else:
            body_text = repr(body) if len(body) <= _SHOWN_BYTES_MAX else f"<{len(body)} bytes>"
        return f"Message({self.topic!r}, {body_text}{fields})"


def tombstone(
    topic: str, key: str, *, tags: str | None = None, properties: Mapping[str, str] | None = None
) -> Message[bytes]:
    """Make a message without a body, which deletes the value of `key` in a compacted topic.

    It is sent to the queue of the sharding key `key`; send the values of the key with the same sharding key.
    """
    return Message(topic, b"", tags=tags, keys=(key,), properties=properties or {}, sharding_key=key)


class SendStatus(Enum):
    """The durability of a stored message. Only `OK` means as durable as the broker group is configured for."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct, frozen=True, gc=False, repr_omit_defaults=True):
    """The result of a send: the message is stored in `queue` at `queue_offset`.

    `message_id` is the message's UNIQ_KEY, the same in every copy; `offset_message_id` identifies the one stored
    record. If an earlier message had its sequence number, both belong to that one. `attempts` counts the requests sent;
    `maybe_duplicated` says that an earlier one of them had an unknown outcome, so the message may be stored more than
    once with the same `message_id`; never of a message with a sequence number, which raftmq stores once. For a timed
    message (`delay`, `deliver_at`), `recall_handle` is the argument for `Producer.recall`. `trace_on` is False if the
    broker is configured not to trace messages; raftmq never is.
    """

    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    status: SendStatus = SendStatus.OK
    attempts: int = 1
    maybe_duplicated: bool = False
    recall_handle: str | None = None
    trace_on: bool = True


class ReceivedMessage(Generic[BodyT]):
    """A received message. Its body is inflated and decoded; everything else is as the broker stored it.

    `body` is decoded by the codec from `raw_body`, which are bytes; without a codec, both are the same. A body that
    cannot be inflated is `raw_body` as stored, and logged. `attempt` is 1 for the first delivery in this process and
    grows each time the handler fails; `reconsume_times` grows each time the message is sent back to its broker.
    """

    __slots__ = ("attempt", "body", "queue", "queue_offset", "raw_body", "record")

    def __init__(self, record: StoredMessage, queue: MessageQueue, body: bytes) -> None:
        self.record: StoredMessage = record
        self.queue: MessageQueue = queue
        self.queue_offset: QueueOffset = record.queue_offset
        self.raw_body: bytes = body
        self.body: BodyT = body  # type: ignore[assignment]  # until a codec decodes it
        self.attempt: int = 1

    def __repr__(self) -> str:
        where = f"{self.queue.broker_name}/{self.queue.queue_id}@{self.queue_offset}"
        return f"<{type(self).__name__} {self.topic} {where} id={self.message_id} {len(self.raw_body)} bytes>"

    @property
    def is_tombstone(self) -> bool:
        """Whether this message deletes the value of its key in a compacted topic."""
        return not self.raw_body

    @property
    def is_carried(self) -> bool:
        """Whether a compacted topic has stored this message again. A consumer may then have received it before."""
        return props.CARRIED in self.record.properties

    @property
    def topic(self) -> str:
        """The topic that the message was sent to, even if it is redelivered through the group's retry topic."""
        if self.record.topic.startswith(RETRY_PREFIX):
            return self.record.properties.get(props.RETRY_TOPIC, self.record.topic)
        return self.record.topic

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties: the system's and the application's."""
        return self.record.properties

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.record.properties.get(props.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order given by the sender."""
        return tuple(self.record.properties.get(props.KEYS, "").split())

    @property
    def message_id(self) -> str:
        """The UNIQ_KEY, which is the same in every copy of the message. Deduplicate by it."""
        return self.record.properties.get(props.UNIQUE_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The id of this stored record."""
        return self.record.offset_message_id

    @property
    def sharding_key(self) -> str | None:
        """The key by which the sender chose the queue, or None."""
        return self.record.properties.get(props.SHARDING_KEY)

    @property
    def priority(self) -> int | None:
        """The priority of the message, which redelivered messages and dead letters keep; None without one."""
        return stored_priority(self.record.properties)

    @property
    def lite_topic(self) -> str | None:
        """The lite topic that the message was sent to; None if it was sent to none."""
        return self.record.properties.get(props.LITE_TOPIC)

    @property
    def born_at(self) -> dt.datetime:
        """The time at which the sender created the message, by the sender's clock."""
        return dt.datetime.fromtimestamp(self.record.born_timestamp_ms / 1000, tz=dt.UTC)

    @property
    def stored_at(self) -> dt.datetime:
        """The time at which the broker stored the message, by the broker's clock."""
        return dt.datetime.fromtimestamp(self.record.store_timestamp_ms / 1000, tz=dt.UTC)

    @property
    def born_host(self) -> Host:
        """The address of the sender, as seen by the broker."""
        return self.record.born_host

    @property
    def store_host(self) -> Host:
        """The address of the broker that stored the message."""
        return self.record.store_host

    @property
    def user_properties(self) -> Mapping[str, str]:
        """The application's properties, as in `Message.properties`, without a sequence number.

        Messages that are made of them are new ones, and no repeats of this one.
        """
        own = {name: value for name, value in self.record.properties.items() if not props.is_reserved(name)}
        if props.SEQUENCE in own:
            own.pop(props.PRODUCER_ID, None)
            del own[props.SEQUENCE]
        return own

    @property
    def flag(self) -> int:
        """A number that the sender set; brokers ignore it."""
        return self.record.flag

    @property
    def delay_level(self) -> int | None:
        """The delay level of the message or of its redelivery; None if it was not delayed."""
        text = self.record.properties.get(props.DELAY)
        return int(text) if text is not None and text.isdecimal() else None

    @property
    def reconsume_times(self) -> int:
        """The number of times that the broker has already redelivered this message to the group."""
        return self.record.reconsume_times

    @property
    def origin_message_id(self) -> str | None:
        """The id of the record that was delivered first, for a redelivered message or a dead letter; else None."""
        return self.record.properties.get(props.ORIGIN_MESSAGE_ID)
