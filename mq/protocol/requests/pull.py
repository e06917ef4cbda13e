"""Requests to pull messages of one queue from an offset on."""

from __future__ import annotations

from typing import Final

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.codes import ResponseCode
from mq.protocol.numbers import FIRST_OFFSET
from mq.protocol.wire.fields import I32, I64, QueueOffset64, wire
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request

PULL_ANSWERS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""Codes of answers that have messages, or say where to continue; any other one is an error."""


class PullExt(
    Ext, rename=wire(max_messages="maxMsgNums", suspend_timeout_ms="suspendTimeoutMillis", max_bytes="maxMsgBytes")
):
    """The header of a pull. Bits of ``sys_flag``: 1 store ``commit_offset``, 2 may wait, 4 use this subscription.

    With ``forward_only`` the reader expects the group to be at or beyond ``commit_offset``, wherever it reads; stock
    clients do not send it.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: QueueOffset64
    max_messages: I32
    sys_flag: I32
    commit_offset: QueueOffset64
    suspend_timeout_ms: I64
    sub_version: I64
    subscription: str | None = None
    expression_type: str | None = None
    max_bytes: I32 | None = None
    forward_only: bool = False


class PullMessage(Request, tag=int(Code.PULL_MESSAGE)):
    """Request code 11: return messages of one queue from an offset on."""

    ext: PullExt = msgspec.field(name="extFields")


class PullReply(Reply, rename=wire(suggested_broker_id="suggestWhichBrokerId")):
    """The response header of 11: the offset of the next pull, the ends of the queue, and the replica for the next pull
    (0: the leader).
    """

    next_begin_offset: QueueOffset64
    suggested_broker_id: I64 = 0
    min_offset: QueueOffset64 = FIRST_OFFSET
    max_offset: QueueOffset64 = FIRST_OFFSET


class LitePullMessage(Request, tag=int(Code.LITE_PULL_MESSAGE)):
    """Request code 361: pull like 11, for a consumer that assigned its queues itself."""

    ext: PullExt = msgspec.field(name="extFields")
