"""Typed header fields of replies, for brokers and clients; the wire name of a field stands in its class's ``rename``.

A field without a default is required. Fields that no class names are ignored: brokers of other releases have more.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from mq.protocol.errors import ReplyError
from mq.protocol.wire_names import I32, I64, HeaderFields, wire

__all__ = [
    "SENT_ALREADY_STORED",
    "SENT_ID",
    "SENT_QUEUE_ID",
    "SENT_QUEUE_OFFSET",
    "SENT_RECALL_HANDLE",
    "SENT_TRACE_ON",
    "SENT_UNIQUE_KEY",
    "ChallengeReply",
    "FoundByKeyReply",
    "GroupCountReply",
    "LogLeaseReply",
    "NotificationReply",
    "OffsetReply",
    "PollingInfoReply",
    "PopReply",
    "PopTimes",
    "PullReply",
    "RecallReply",
    "Reply",
    "ReplyStored",
    "TimestampReply",
    "TopicConfigReply",
    "TopicCountReply",
    "TopicEndsReply",
    "TopicPlanReply",
    "VersionReply",
    "read_reply",
]


SENT_ID: Final = "msgId"
SENT_QUEUE_ID: Final = "queueId"
SENT_QUEUE_OFFSET: Final = "queueOffset"
SENT_UNIQUE_KEY: Final = "transactionId"
SENT_RECALL_HANDLE: Final = "recallHandle"
SENT_TRACE_ON: Final = "TRACE_ON"
SENT_ALREADY_STORED: Final = "alreadyStored"
"""Where a message is stored (310, 320). Clients read these one by one: there is an answer for each message, and a
struct would take 0.4 us more of it. Ours, for a numbered batch: how many of its messages were stored before it came."""


class Reply(HeaderFields):
    """Base of the header fields of replies."""


ReplyT = TypeVar("ReplyT", bound=Reply)


class RecallReply(Reply, rename=wire(message_id="msgId")):
    """The message that was taken back (370)."""

    message_id: str


class PullReply(Reply, rename=wire(suggested_broker_id="suggestWhichBrokerId")):
    """Where a pull goes on (11), and which replica of the group is to be asked next; 0 is the leader."""

    next_begin_offset: I64
    suggested_broker_id: I64 = 0


class OffsetReply(Reply):
    """A queue offset (14, 29, 30, 31)."""

    offset: I64


_POP_NAMES: Final = {
    "pop_time_ms": "popTime",
    "invisible_ms": "invisibleTime",
    "revive_queue": "reviveQid",
    "order_counts": "orderCountInfo",
}


class PopTimes(Reply, rename=wire(**_POP_NAMES)):
    """When something was popped, for how long it is invisible, and which queue of the revive topic that is (200051)."""

    pop_time_ms: I64
    invisible_ms: I64
    revive_queue: I32


class PopReply(PopTimes, rename=wire(**_POP_NAMES)):
    """What was popped (200050): when, for how long, and where in its queue each part begins.

    ``start_offset_info``, ``msg_offset_info`` and ``order_counts`` are made and read by `mq.protocol.receipts`;
    ``rest_num`` says how many messages are left.
    """

    rest_num: I64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_counts: str | None = None


class NotificationReply(Reply, rename=wire(has_message="hasMsg")):
    """Whether there is something to pop (200054), and whether too many wait to be told."""

    has_message: bool
    polling_full: bool


class PollingInfoReply(Reply):
    """How many pops of a group wait (200055)."""

    polling_num: int


class TimestampReply(Reply):
    """When the oldest message of a queue was stored (32), in ms since the epoch."""

    timestamp: I64


class FoundByKeyReply(
    Reply, rename=wire(updated_ms="indexLastUpdateTimestamp", end_position="indexLastUpdatePhyoffset")
):
    """Until when, and up to which physical offset, messages were searched for a key (12)."""

    updated_ms: I64
    end_position: I64


class TopicCountReply(Reply):
    """How many topics there are (21)."""

    total_topic_num: int


class GroupCountReply(Reply):
    """How many consumer groups there are (201)."""

    total_group_num: int


class VersionReply(Reply):
    """The version of a broker's configuration (26), as JSON."""

    version: str


class ReplyStored(Reply, rename=wire(message_id="msgId", region="MSG_REGION", trace_on="TRACE_ON")):
    """A consumer's reply to a message was passed on (324, 325), and where it is stored, if it is."""

    region: str
    trace_on: bool
    message_id: str | None = None
    queue_id: I32 | None = None
    queue_offset: I64 | None = None


class TopicPlanReply(Reply):
    """Besides the plan of a topic (9011): which topic and log it is of, and where the next page begins, -1 for none."""

    topic_identity: str
    log_identity: str
    role: str
    read_queues: I32
    next_queue: I32
    base_position: I64


class TopicEndsReply(Reply):
    """The role of the replica that tells ends of queues."""

    role: str


class LogLeaseReply(Reply):
    """For how many seconds the log is held, and where it begins."""

    seconds: int
    base_position: I64


class ChallengeReply(Reply):
    """What a replica wants proved by another one (9005), in hexadecimal."""

    challenge: str


class TopicConfigReply(Reply):
    """Besides a topic's configuration (351): what tells it from others that had its name."""

    topic_identity: str = ""


def read_reply(kind: type[ReplyT], ext: dict[str, str]) -> ReplyT:
    """The header fields of a reply. Raises ReplyError if one is missing, or is not what it is to be."""
    try:
        return msgspec.convert(ext, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ReplyError(f"{kind.__name__}: {error}") from error
