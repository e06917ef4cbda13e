"""Requests about the progress of consumer groups: how far they are behind, and how operators move their offsets."""

from __future__ import annotations

from typing import Any

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.errors import BodyError
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.wire import fastjson
from mq.protocol.wire.fields import I32, I64, QueueOffset64, wire
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.queue_tables import QueueRef, decode_queue_table, read_queue_table
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class GetAllConsumerOffset(Request, tag=int(Code.GET_ALL_CONSUMER_OFFSET)):
    """Request code 43: return the offsets of all groups."""


class GetAllDelayOffset(Request, tag=int(Code.GET_ALL_DELAY_OFFSET)):
    """Request code 45: return the delivery progress of each delay level."""


class DelayOffsets(Body, rename=wire()):
    """The next offset to deliver of each delay level (request code 45)."""

    offset_table: dict[int, QueueOffset] = msgspec.field(default_factory=dict)


class ConsumeStatsExt(Ext):
    """The header of request code 208: a group, and a topic or none for all of its topics. Semicolons separate
    ``topic_list``.
    """

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumeStats(Request, tag=int(Code.GET_CONSUME_STATS)):
    """Request code 208: return a group's offsets, and the ends of the queues."""

    ext: ConsumeStatsExt = msgspec.field(name="extFields")


class GroupProgress(
    Body,
    rename=wire(end="brokerOffset", offset="consumerOffset", last_ms="lastTimestamp", pulled="pullOffset"),
):
    """A group's progress in a queue: the offset of the next message to be stored, and of the next one to be consumed.

    ``last_ms`` is the store time of the last consumed message, 0 without one. ``pulled`` is the offset up to which
    messages were popped, 0 from brokers before RocketMQ 5.
    """

    end: QueueOffset = FIRST_OFFSET
    offset: QueueOffset = FIRST_OFFSET
    last_ms: int = 0
    pulled: QueueOffset = FIRST_OFFSET


def read_progress(body: bytes | memoryview) -> dict[QueueRef, GroupProgress]:
    """Decode the response to request code 208. Raises BodyError."""
    return decode_queue_table(body, GroupProgress)


class BrokerConsumeStatsExt(Ext):
    """The header of request code 317: whether to return only ordered topics, or only the others."""

    is_order: bool = False


class GetBrokerConsumeStats(Request, tag=int(Code.GET_BROKER_CONSUME_STATS)):
    """Request code 317: return the offsets and queue ends of all groups, as 208 does for one."""

    ext: BrokerConsumeStatsExt = msgspec.field(name="extFields")


class _ProgressInTopic(Body, rename=wire()):
    offset_table: dict[Any, Any] = msgspec.field(default_factory=dict)


class _AllProgress(Body, rename=wire(groups="consumeStatsList")):
    groups: list[dict[str, list[_ProgressInTopic]]] = msgspec.field(default_factory=list)


def read_all_progress(body: bytes | memoryview) -> dict[str, dict[QueueRef, GroupProgress]]:
    """Decode the response to request code 317, by group. Raises BodyError."""
    document = fastjson.parse(body, values_max=fastjson.TRUSTED_VALUES_MAX)
    progress: dict[str, dict[QueueRef, GroupProgress]] = {}
    try:
        groups = msgspec.convert(document, _AllProgress, strict=False).groups
        for group, tables in (pair for each in groups for pair in each.items()):
            queues = progress.setdefault(group, {})
            for table in tables:
                rows = read_queue_table(table.offset_table)
                queues |= {ref: msgspec.convert(value, GroupProgress, strict=False) for ref, value in rows.items()}
    except msgspec.ValidationError as error:
        raise BodyError(f"body of {len(body)} bytes is not the progress of groups: {error}") from error
    return progress


class CorrectionOffsetExt(Ext):
    """The header of request code 308. Groups in ``filter_groups``, separated by commas, are ignored."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class QueryCorrectionOffset(Request, tag=int(Code.QUERY_CORRECTION_OFFSET)):
    """Request code 308: return the lowest offset of all groups in each queue."""

    ext: CorrectionOffsetExt = msgspec.field(name="extFields")


class CorrectionOffsets(Body, rename=wire(offsets="correctionOffsets")):
    """The lowest offsets, by queue id (request code 308)."""

    offsets: dict[int, int]


class CloneGroupOffsetExt(Ext, rename=wire(source="srcGroup", target="destGroup")):
    """The header of request code 314: two groups, and a topic or none for all topics of the source group."""

    source: str
    target: str
    topic: str | None = None
    offline: bool = False


class CloneGroupOffset(Request, tag=int(Code.CLONE_GROUP_OFFSET)):
    """Request code 314: copy the offsets of one group to another group."""

    ext: CloneGroupOffsetExt = msgspec.field(name="extFields")


class OffsetsWereResetExt(Ext, rename=wire(timestamp_ms="timestamp", force="isForce")):
    """A group's new position in a topic. ``timestamp_ms`` -1: the end. Without ``force`` offsets only move back."""

    topic: str
    group: str
    timestamp_ms: I64
    force: bool = False


class ResetOffsetExt(OffsetsWereResetExt, rename=wire(timestamp_ms="timestamp", force="isForce")):
    """The header of request code 222. A ``queue_id`` below 0 means all queues."""

    queue_id: I32 = -1
    offset: QueueOffset64 | None = None


class InvokeBrokerToResetOffset(Request, tag=int(Code.INVOKE_BROKER_TO_RESET_OFFSET)):
    """Request code 222: set a group's offsets to the messages that were stored at a time."""

    ext: ResetOffsetExt = msgspec.field(name="extFields")


class SkipMessageExt(Ext):
    """The header of request code 9010: the message at which a group stands, and the operator who skips it."""

    group: str
    topic: str
    queue_id: I32
    offset: QueueOffset64
    operator: str = ""


class SkipMessage(Request, tag=int(Code.SKIP_MESSAGE)):
    """Request code 9010, our own: make a message a dead letter of a group, and continue the group after it."""

    ext: SkipMessageExt = msgspec.field(name="extFields")


class MessageSkipped(Reply):
    """The response to request code 9010: the offset at which the group continues, and the topic of the dead letter."""

    next_offset: QueueOffset64
    dead_letter_topic: str


class ResetConsumerClientOffset(Request, tag=int(Code.RESET_CONSUMER_CLIENT_OFFSET)):
    """Request code 220, broker to client, one-way: continue consuming from the offsets in the body."""

    ext: OffsetsWereResetExt = msgspec.field(name="extFields")
