"""Offsets of queues, and stored offsets of consumer groups."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import I32, I64, QueueOffset64, wire
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class QueryConsumerOffsetExt(Ext):
    """A group's offset to query. With ``set_zero_if_not_found`` false, a group without a stored offset is told so, also
    on a young queue.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffset(Request, tag=int(Code.QUERY_CONSUMER_OFFSET)):
    """14: a group's offset."""

    ext: QueryConsumerOffsetExt = msgspec.field(name="extFields")


class OffsetReply(Reply):
    """A queue offset (14, 29, 30, 31)."""

    offset: QueueOffset64


class UpdateConsumerOffsetExt(Ext):
    """``commit_offset`` is the group's next offset.

    With ``forward_only``, a stored offset at or beyond it is a success; stock clients do not send it.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: QueueOffset64
    forward_only: bool = False


class UpdateConsumerOffset(Request, tag=int(Code.UPDATE_CONSUMER_OFFSET)):
    """15: store a group's offset; usually one-way."""

    ext: UpdateConsumerOffsetExt = msgspec.field(name="extFields")


class SearchOffsetExt(Ext, rename=wire(timestamp_ms="timestamp", boundary="boundaryType")):
    """One queue and a store time in epoch milliseconds. ``boundary`` is "lower" (default) or "upper"."""

    topic: str
    queue_id: I32
    timestamp_ms: I64
    boundary: str | None = None


class SearchOffsetByTimestamp(Request, tag=int(Code.SEARCH_OFFSET_BY_TIMESTAMP)):
    """29: the first offset stored at or after a time."""

    ext: SearchOffsetExt = msgspec.field(name="extFields")


class QueueExt(Ext):
    """One queue."""

    topic: str
    queue_id: I32


class GetMaxOffset(Request, tag=int(Code.GET_MAX_OFFSET)):
    """30: the offset of the next message."""

    ext: QueueExt = msgspec.field(name="extFields")


class GetMinOffset(Request, tag=int(Code.GET_MIN_OFFSET)):
    """31: the first readable offset."""

    ext: QueueExt = msgspec.field(name="extFields")


class GetEarliestMsgStoretime(Request, tag=int(Code.GET_EARLIEST_MSG_STORETIME)):
    """32: the store time of the first readable message."""

    ext: QueueExt = msgspec.field(name="extFields")


class TimestampReply(Reply):
    """Store time of a queue's oldest message (32), in ms since the epoch."""

    timestamp: I64
