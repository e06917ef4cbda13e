"""Typed header fields of replies, for brokers and clients; the wire name of a field is in its class's ``rename``.

A field without a default is required. Unknown fields are ignored: brokers of other releases send more.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from mq.protocol.errors import ReplyError
from mq.protocol.numbers import FIRST_OFFSET
from mq.protocol.wire_names import I32, I64, HeaderFields, PhysicalOffset64, QueueOffset64, wire

__all__ = [
    "SENT_ALREADY_STORED",
    "SENT_ID",
    "SENT_QUEUE_ID",
    "SENT_QUEUE_OFFSET",
    "SENT_RECALL_HANDLE",
    "SENT_TRACE_ON",
    "SENT_UNIQUE_KEY",
    "AddedTopicsReply",
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
    "RegistrationReply",
    "Reply",
    "ReplyStored",
    "TimestampReply",
    "TopicConfigReply",
    "TopicCountReply",
    "TopicEndsReply",
    "TopicPlanReply",
    "VersionReply",
    "WipedTopicsReply",
    "read_reply",
]


SENT_ID: Final = "msgId"
SENT_QUEUE_ID: Final = "queueId"
SENT_QUEUE_OFFSET: Final = "queueOffset"
SENT_UNIQUE_KEY: Final = "transactionId"
SENT_RECALL_HANDLE: Final = "recallHandle"
SENT_TRACE_ON: Final = "TRACE_ON"
SENT_ALREADY_STORED: Final = "alreadyStored"
"""The place of a stored message (310, 320). Clients read these fields one by one: there is an answer for each message,
and a struct would cost 0.4 us more. Our own, for a batch with sequence numbers: how many of its messages were stored
before.
"""


class Reply(HeaderFields):
    """Base of the header fields of replies."""


ReplyT = TypeVar("ReplyT", bound=Reply)


class RecallReply(Reply, rename=wire(message_id="msgId")):
    """The recalled message (370)."""

    message_id: str


class PullReply(Reply, rename=wire(suggested_broker_id="suggestWhichBrokerId")):
    """Where a pull continues (11), where the queue begins and ends, and the replica for the next pull; 0 is the
    leader.
    """

    next_begin_offset: QueueOffset64
    suggested_broker_id: I64 = 0
    min_offset: QueueOffset64 = FIRST_OFFSET
    max_offset: QueueOffset64 = FIRST_OFFSET


class OffsetReply(Reply):
    """A queue offset (14, 29, 30, 31)."""

    offset: QueueOffset64


class TransactionStaged(Reply):
    """The place of the half message of a transaction, by which 37 ends it (9011)."""

    half_queue_offset: QueueOffset64
    half_physical_offset: PhysicalOffset64


_POP_NAMES: Final = {
    "pop_time_ms": "popTime",
    "invisible_ms": "invisibleTime",
    "revive_queue": "reviveQid",
    "order_counts": "orderCountInfo",
}


class PopTimes(Reply, rename=wire(**_POP_NAMES)):
    """Pop time, invisible time, and queue of the revive topic (200051)."""

    pop_time_ms: I64
    invisible_ms: I64
    revive_queue: I32


class PopReply(PopTimes, rename=wire(**_POP_NAMES)):
    """The result of a pop (200050): pop time, invisible time, and where each part begins in its queue.

    `mq.protocol.receipts` encodes and decodes ``start_offset_info``, ``msg_offset_info`` and ``order_counts``;
    ``rest_num`` is the number of remaining messages.
    """

    rest_num: I64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_counts: str | None = None


class NotificationReply(Reply, rename=wire(has_message="hasMsg")):
    """Whether there is something to pop (200054), and whether too many requests wait already."""

    has_message: bool
    polling_full: bool


class PollingInfoReply(Reply):
    """The number of held pops of a group (200055)."""

    polling_num: int


class TimestampReply(Reply):
    """Store time of a queue's oldest message (32), in ms since the epoch."""

    timestamp: I64


class FoundByKeyReply(
    Reply, rename=wire(updated_ms="indexLastUpdateTimestamp", end_position="indexLastUpdatePhyoffset")
):
    """Until when, and up to which physical offset, a search by key has covered messages (12)."""

    updated_ms: I64
    end_position: PhysicalOffset64


class RegistrationReply(Reply, rename=wire(ha_server_address="haServerAddr", leader_address="masterAddr")):
    """The leader of a broker's group (103)."""

    ha_server_address: str
    leader_address: str


class WipedTopicsReply(Reply):
    """The number of topics that a broker group lost its write permission for (205)."""

    wipe_topic_count: int


class AddedTopicsReply(Reply):
    """The number of topics that a broker group got its write permission for (327)."""

    add_topic_count: int


class TopicCountReply(Reply):
    """The number of topics (21)."""

    total_topic_num: int


class GroupCountReply(Reply):
    """The number of consumer groups (201)."""

    total_group_num: int


class VersionReply(Reply):
    """The version of a broker's configuration (26), as JSON."""

    version: str


class ReplyStored(Reply, rename=wire(message_id="msgId", region="MSG_REGION", trace_on="TRACE_ON")):
    """A consumer's reply was delivered (324, 325), and its place if it was stored."""

    region: str
    trace_on: bool
    message_id: str | None = None
    queue_id: I32 | None = None
    queue_offset: QueueOffset64 | None = None


class TopicPlanReply(Reply):
    """Fields besides the plan of a topic (9011): identities of topic and log, and where the next page begins, -1 for
    none.
    """

    topic_identity: str
    log_identity: str
    role: str
    read_queues: I32
    next_queue: I32
    base_position: PhysicalOffset64


class TopicEndsReply(Reply):
    """The role of the answering replica."""

    role: str


class LogLeaseReply(Reply):
    """For how many seconds the log is kept, and where it begins."""

    seconds: int
    base_position: PhysicalOffset64


class ChallengeReply(Reply):
    """The challenge for another replica to prove itself (9005), in hexadecimal."""

    challenge: str


class TopicConfigReply(Reply):
    """A field besides a topic's configuration (351): its identity."""

    topic_identity: str = ""


def read_reply(kind: type[ReplyT], ext: dict[str, str]) -> ReplyT:
    """The header fields of a reply. Raises ReplyError if one is missing or invalid."""
    try:
        return msgspec.convert(ext, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ReplyError(f"{kind.__name__}: {error}") from error
