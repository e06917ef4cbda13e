"""Requests of consumers that pop messages. Their codes do not fit the binary header, so clients send them in JSON."""

from __future__ import annotations

from typing import Final

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import I32, I64, QueueOffset64, wire
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class PopExt(
    Ext,
    rename=wire(
        max_messages="maxMsgNums",
        invisible_ms="invisibleTime",
        poll_ms="pollTime",
        born_ms="bornTime",
        expression_type="expType",
        expression="exp",
        client_id="raftmqClientId",
    ),
):
    """The header of request code 200050: the queue (-1: any) and the maximum number of messages.

    The messages stay invisible to others for ``invisible_ms``. The request may be held for ``poll_ms`` from its arrival
    on; ``born_ms``, when the client sent it by its own clock, decides nothing. ``init_mode`` is where a new group
    begins: 0 at the first message, 1 at the last. ``client_id`` is only sent by our clients, and by our
    proxy for those behind it.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    max_messages: I32
    invisible_ms: I64
    poll_ms: I64
    init_mode: I32
    born_ms: I64 = 0
    expression_type: str | None = None
    expression: str | None = None
    order: bool = False
    attempt_id: str | None = None
    client_id: str | None = None


class PopMessage(Request, tag=int(Code.POP_MESSAGE)):
    """Request code 200050: pop messages, which hides them from other members of the group for a while."""

    ext: PopExt = msgspec.field(name="extFields")


_POP_NAMES: Final = {
    "pop_time_ms": "popTime",
    "invisible_ms": "invisibleTime",
    "revive_queue": "reviveQid",
    "order_counts": "orderCountInfo",
}


class PopTimes(Reply, rename=wire(**_POP_NAMES)):
    """The response to request code 200051: pop time, invisible time, and queue of the revive topic."""

    pop_time_ms: I64
    invisible_ms: I64
    revive_queue: I32


class PopReply(PopTimes, rename=wire(**_POP_NAMES)):
    """The response header of 200050: pop time, invisible time, and the first offset of each part in its queue.

    `mq.protocol.requests.receipts` encodes and decodes ``start_offset_info``, ``msg_offset_info`` and ``order_counts``;
    ``rest_num`` is the number of remaining messages.
    """

    rest_num: I64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_counts: str | None = None


class AckExt(Ext):
    """The header of 200051: a message, named by its receipt in ``extra_info``, and its lite topic if any."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: QueueOffset64
    lite_topic: str | None = None


class AckMessage(Request, tag=int(Code.ACK_MESSAGE)):
    """Request code 200051: acknowledge a popped message."""

    ext: AckExt = msgspec.field(name="extFields")


class PeekExt(Ext, rename=wire(max_messages="maxMsgNums")):
    """The header of request code 200052: the queue (-1: any) and the number of messages."""

    consumer_group: str
    topic: str
    queue_id: I32
    max_messages: I32


class PeekMessage(Request, tag=int(Code.PEEK_MESSAGE)):
    """Request code 200052: return the messages that a pop would return, without popping."""

    ext: PeekExt = msgspec.field(name="extFields")


class ChangeInvisibleExt(Ext, rename=wire(invisible_ms="invisibleTime")):
    """The header of 200053: a message, named by its receipt, and the invisible time that it gets from now on."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: QueueOffset64
    invisible_ms: I64
    lite_topic: str | None = None
    suspend: bool | None = None
    """Whether the attempt that ends here is not counted."""


class ChangeMessageInvisibleTime(Request, tag=int(Code.CHANGE_MESSAGE_INVISIBLETIME)):
    """Request code 200053: extend or shorten a message's invisible time."""

    ext: ChangeInvisibleExt = msgspec.field(name="extFields")


class NotificationExt(Ext, rename=wire(poll_ms="pollTime", born_ms="bornTime")):
    """The header of request code 200054: a queue (-1: any). Times are as in `PopExt`."""

    consumer_group: str
    topic: str
    queue_id: I32
    poll_ms: I64
    born_ms: I64 = 0
    order: bool = False
    attempt_id: str | None = None


class Notification(Request, tag=int(Code.NOTIFICATION)):
    """Request code 200054: respond when there are messages to pop."""

    ext: NotificationExt = msgspec.field(name="extFields")


class NotificationReply(Reply, rename=wire(has_message="hasMsg")):
    """The response to 200054: whether there are messages to pop, and whether too many requests wait already."""

    has_message: bool
    polling_full: bool


class PollingInfoExt(Ext):
    """The header of request code 200055: a group and a queue (-1: any)."""

    consumer_group: str
    topic: str
    queue_id: I32


class PollingInfo(Request, tag=int(Code.POLLING_INFO)):
    """Request code 200055: return how many pops of a group wait for messages."""

    ext: PollingInfoExt = msgspec.field(name="extFields")


class PollingInfoReply(Reply):
    """The response to request code 200055: the number of pops of a group that wait."""

    polling_num: int


class BatchAckMessage(Request, tag=int(Code.BATCH_ACK_MESSAGE)):
    """Request code 200151: acknowledge the messages in the body, a `mq.protocol.requests.receipts.BatchAck`."""
