"""Progress of consumer groups: how far they are behind, and how operators move them."""

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
    """43: every group's offsets."""


class GetAllDelayOffset(Request, tag=int(Code.GET_ALL_DELAY_OFFSET)):
    """45: the delivery progress of each delay level."""


class DelayOffsets(Body, rename=wire()):
    """The next offset to deliver of each delay level (request code 45)."""

    offset_table: dict[int, QueueOffset] = msgspec.field(default_factory=dict)


class ConsumeStatsExt(Ext):
    """One consumer group; without a topic, all topics in which it has offsets. ``topic_list`` is separated by
    semicolons.
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
    """A queue and a group: the offset of the next message to be stored, and of the next one to be consumed.

    ``last_ms`` is the store time of the last consumed message, 0 without one. ``pulled`` is the offset up to which
    messages were popped, 0 from brokers before RocketMQ 5.
    """

    end: QueueOffset = FIRST_OFFSET
    offset: QueueOffset = FIRST_OFFSET
    last_ms: int = 0
    pulled: QueueOffset = FIRST_OFFSET


def read_progress(body: bytes | memoryview) -> dict[QueueRef, GroupProgress]:
    """Decode the answer to request code 208. Raises BodyError."""
    return decode_queue_table(body, GroupProgress)


class BrokerConsumeStatsExt(Ext):
    """Only topics that are, or are not, ordered."""

    is_order: bool = False


class GetBrokerConsumeStats(Request, tag=int(Code.GET_BROKER_CONSUME_STATS)):
    """Request code 317: return what 208 returns, for all groups."""

    ext: BrokerConsumeStatsExt = msgspec.field(name="extFields")


class _ProgressInTopic(Body, rename=wire()):
    offset_table: dict[Any, Any] = msgspec.field(default_factory=dict)


class _AllProgress(Body, rename=wire(groups="consumeStatsList")):
    groups: list[dict[str, list[_ProgressInTopic]]] = msgspec.field(default_factory=list)


def read_all_progress(body: bytes | memoryview) -> dict[str, dict[QueueRef, GroupProgress]]:
    """Decode the answer to request code 317, by group. Raises BodyError."""
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
    """Groups in ``filter_groups`` are ignored; names are separated by commas."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class QueryCorrectionOffset(Request, tag=int(Code.QUERY_CORRECTION_OFFSET)):
    """Request code 308: return the lowest offset of all groups in each queue."""

    ext: CorrectionOffsetExt = msgspec.field(name="extFields")


class CorrectionOffsets(Body, rename=wire(offsets="correctionOffsets")):
    """Offsets by queue id (request code 308)."""

    offsets: dict[int, int]


class CloneGroupOffsetExt(Ext, rename=wire(source="srcGroup", target="destGroup")):
    """Without a topic, all topics in which the source has offsets."""

    source: str
    target: str
    topic: str | None = None
    offline: bool = False


class CloneGroupOffset(Request, tag=int(Code.CLONE_GROUP_OFFSET)):
    """Request code 314: copy the offsets of one group to another group."""

    ext: CloneGroupOffsetExt = msgspec.field(name="extFields")


class OffsetsWereResetExt(Ext, rename=wire(timestamp_ms="timestamp", force="isForce")):
    """``timestamp_ms`` -1 means the end. Without ``force`` offsets only move backwards."""

    topic: str
    group: str
    timestamp_ms: I64
    force: bool = False


class ResetOffsetExt(OffsetsWereResetExt, rename=wire(timestamp_ms="timestamp", force="isForce")):
    """``queue_id`` below 0 means all queues."""

    queue_id: I32 = -1
    offset: QueueOffset64 | None = None


class InvokeBrokerToResetOffset(Request, tag=int(Code.INVOKE_BROKER_TO_RESET_OFFSET)):
    """Request code 222: set the offsets of a group by store time."""

    ext: ResetOffsetExt = msgspec.field(name="extFields")


class SkipMessageExt(Ext):
    """A message at which a group stands, and who skips it."""

    group: str
    topic: str
    queue_id: I32
    offset: QueueOffset64
    operator: str = ""


class SkipMessage(Request, tag=int(Code.SKIP_MESSAGE)):
    """Request code 9010, our own: make a message a dead letter of a group, and move the group behind it."""

    ext: SkipMessageExt = msgspec.field(name="extFields")


class MessageSkipped(Reply):
    """The offset at which the group continues, and the topic with the dead letter (9010)."""

    next_offset: QueueOffset64
    dead_letter_topic: str


class ResetConsumerClientOffset(Request, tag=int(Code.RESET_CONSUMER_CLIENT_OFFSET)):
    """Request code 220, broker to client, one-way: continue from the offsets in the body."""

    ext: OffsetsWereResetExt = msgspec.field(name="extFields")
