"""Requests about the offsets of queues, and the stored offsets of consumer groups."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import I32, I64, QueueOffset64, wire
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class QueryConsumerOffsetExt(Ext):
    """The header of 14. ``set_zero_if_not_found`` false: a group without an offset gets an error, also on a young
    queue.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffset(Request, tag=int(Code.QUERY_CONSUMER_OFFSET)):
    """Request code 14: return the stored offset of a group in a queue."""

    ext: QueryConsumerOffsetExt = msgspec.field(name="extFields")


class OffsetReply(Reply):
    """The response to request codes 14, 29, 30 and 31: a queue offset."""

    offset: QueueOffset64


class UpdateConsumerOffsetExt(Ext):
    """The header of request code 15. ``commit_offset`` is the offset of the next message for the group.

    With ``forward_only``, a stored offset at or beyond it is a success; stock clients do not send it.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: QueueOffset64
    forward_only: bool = False


class UpdateConsumerOffset(Request, tag=int(Code.UPDATE_CONSUMER_OFFSET)):
    """Request code 15: store the offset of a group in a queue. Clients usually send it one-way."""

    ext: UpdateConsumerOffsetExt = msgspec.field(name="extFields")


class SearchOffsetExt(Ext, rename=wire(timestamp_ms="timestamp", boundary="boundaryType")):
    """The header of 29: a queue, a store time in epoch ms, and ``boundary``, "lower" (default) or "upper"."""

    topic: str
    queue_id: I32
    timestamp_ms: I64
    boundary: str | None = None


class SearchOffsetByTimestamp(Request, tag=int(Code.SEARCH_OFFSET_BY_TIMESTAMP)):
    """Request code 29: return the offset of the first message that was stored at or after a time."""

    ext: SearchOffsetExt = msgspec.field(name="extFields")


class QueueExt(Ext):
    """The header of a request about one queue."""

    topic: str
    queue_id: I32


class GetMaxOffset(Request, tag=int(Code.GET_MAX_OFFSET)):
    """Request code 30: return the offset that the next message of a queue will get."""

    ext: QueueExt = msgspec.field(name="extFields")


class GetMinOffset(Request, tag=int(Code.GET_MIN_OFFSET)):
    """Request code 31: return the first readable offset of a queue."""

    ext: QueueExt = msgspec.field(name="extFields")


class GetEarliestMsgStoretime(Request, tag=int(Code.GET_EARLIEST_MSG_STORETIME)):
    """Request code 32: return the store time of the first readable message of a queue."""

    ext: QueueExt = msgspec.field(name="extFields")


class TimestampReply(Reply):
    """The response to request code 32: the store time of a queue's oldest message, in ms since the epoch."""

    timestamp: I64
