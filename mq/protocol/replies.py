"""Typed header fields of replies, as clients read them; the wire name of a field stands in its class's ``rename``.

A field without a default is required. Fields that no class names are ignored: brokers of other releases have more.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from mq.protocol.errors import ReplyError
from mq.protocol.wire_names import I32, I64, wire

__all__ = [
    "SENT_ID",
    "SENT_QUEUE_ID",
    "SENT_QUEUE_OFFSET",
    "SENT_RECALL_HANDLE",
    "SENT_TRACE_ON",
    "SENT_UNIQUE_KEY",
    "OffsetReply",
    "PopReply",
    "PullReply",
    "RecallReply",
    "Reply",
    "TopicConfigReply",
    "read_reply",
]


SENT_ID: Final = "msgId"
SENT_QUEUE_ID: Final = "queueId"
SENT_QUEUE_OFFSET: Final = "queueOffset"
SENT_UNIQUE_KEY: Final = "transactionId"
SENT_RECALL_HANDLE: Final = "recallHandle"
SENT_TRACE_ON: Final = "TRACE_ON"
"""Where a message is stored (310, 320). Clients read these one by one: there is an answer for each message, and a
struct would take 0.4 us more of it."""


class Reply(msgspec.Struct, gc=False, kw_only=True, rename=wire()):
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


class PopReply(
    Reply,
    rename=wire(
        pop_time_ms="popTime", invisible_ms="invisibleTime", revive_queue="reviveQid", order_counts="orderCountInfo"
    ),
):
    """What was popped (200050): when, for how long, and where in its queue each part begins.

    ``start_offset_info`` and ``order_counts`` are read by `mq.protocol.receipts`.
    """

    pop_time_ms: I64
    invisible_ms: I64
    revive_queue: I32
    start_offset_info: str = ""
    order_counts: str = ""


class TopicConfigReply(Reply):
    """Besides a topic's configuration (351): what tells it from others that had its name."""

    topic_identity: str = ""


def read_reply(kind: type[ReplyT], ext: dict[str, str]) -> ReplyT:
    """The header fields of a reply. Raises ReplyError if one is missing, or is not what it is to be."""
    try:
        return msgspec.convert(ext, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ReplyError(f"{kind.__name__}: {error}") from error
