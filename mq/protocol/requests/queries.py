"""Requests that find messages by key, id or place in a queue, or return the age of messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset, QueueOffset
from mq.protocol.requests.clients import SubscriptionData
from mq.protocol.wire.fields import I32, I64, PhysicalOffset64, QueueOffset64, wire
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class QueryMessageExt(
    Ext,
    rename=wire(messages_max="maxNum", begin_ms="beginTimestamp", end_ms="endTimestamp", unique="_UNIQUE_KEY_QUERY"),
):
    """The header of 12: the key, and the period in epoch ms. ``unique``: the key is a UNIQ_KEY."""

    topic: str
    key: str
    messages_max: I32
    begin_ms: I64
    end_ms: I64
    unique: bool = False


class QueryMessage(Request, tag=int(Code.QUERY_MESSAGE)):
    """Request code 12: return the messages of a topic that have a key."""

    ext: QueryMessageExt = msgspec.field(name="extFields")


class FoundByKeyReply(
    Reply, rename=wire(updated_ms="indexLastUpdateTimestamp", end_position="indexLastUpdatePhyoffset")
):
    """The response header of 12: the time and the physical offset up to which the search has covered messages."""

    updated_ms: I64
    end_position: PhysicalOffset64


class ViewMessageByIdExt(Ext, rename=wire(physical_offset="offset")):
    """The header of request code 33: the physical offset of a record."""

    physical_offset: PhysicalOffset64
    topic: str | None = None


class ViewMessageById(Request, tag=int(Code.VIEW_MESSAGE_BY_ID)):
    """Request code 33: return the record at a physical offset."""

    ext: ViewMessageByIdExt = msgspec.field(name="extFields")


class ConsumeTimeSpanExt(Ext):
    """The header of request code 303: a topic and a consumer group."""

    topic: str
    group: str


class QueryConsumeTimeSpan(Request, tag=int(Code.QUERY_CONSUME_TIME_SPAN)):
    """Request code 303: return the range of store times in each queue, and the progress of a group."""

    ext: ConsumeTimeSpanExt = msgspec.field(name="extFields")


class QueueName(Body, rename=wire()):
    """One queue of a topic in one broker group."""

    topic: str
    broker_name: str
    queue_id: int


class TimeSpan(
    Body,
    rename=wire(
        queue="messageQueue",
        min_ms="minTimeStamp",
        max_ms="maxTimeStamp",
        consumed_ms="consumeTimeStamp",
        delay_ms="delayTime",
    ),
):
    """Store times in a queue: of its first and last message, and of the last one that a group consumed; -1 for none.

    ``delay_ms`` is how long the group's next message has been waiting; 0 without one.
    """

    queue: QueueName
    min_ms: int
    max_ms: int
    consumed_ms: int
    delay_ms: int


class TimeSpans(Body, rename=wire(spans="consumeTimeSpanSet")):
    """The store times of each queue of a topic (request code 303)."""

    spans: Sequence[TimeSpan] = ()


class QueryConsumeQueueExt(Ext):
    """The header of request code 321: a queue, and the first entry to return (``index``)."""

    topic: str
    queue_id: I32
    index: QueueOffset64
    count: I32
    consumer_group: str | None = None


class QueryConsumeQueue(Request, tag=int(Code.QUERY_CONSUME_QUEUE)):
    """Request code 321: return entries of a consume queue."""

    ext: QueryConsumeQueueExt = msgspec.field(name="extFields")


class QueueEntry(
    Body,
    rename=wire(
        physical_offset="physicOffset", nbytes="physicSize", tag_code="tagsCode", is_wanted="eval", message="msg"
    ),
):
    """One entry of a consume queue. ``is_wanted``: whether the group's subscription matches it."""

    physical_offset: PhysicalOffset
    nbytes: int
    tag_code: int
    is_wanted: bool = True
    message: str | None = None
    bit_map: str | None = None
    extend_data_json: str | None = None


class ConsumeQueueView(Body, rename=wire(entries="queueData", min_offset="minQueueIndex", max_offset="maxQueueIndex")):
    """Entries of a consume queue (request code 321)."""

    entries: Sequence[QueueEntry] = ()
    min_offset: QueueOffset = FIRST_OFFSET
    max_offset: QueueOffset = FIRST_OFFSET
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
