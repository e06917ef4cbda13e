"""Transactions: half messages, their ends, and check-backs."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import I32, I64, PhysicalOffset64, QueueOffset64, wire
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class EndTransactionExt(
    Ext, rename=wire(half_queue_offset="tranStateTableOffset", half_physical_offset="commitLogOffset")
):
    """The end of a half message. ``commit_or_rollback`` is 8 to commit, 12 to roll back, 0 for unknown."""

    producer_group: str
    half_queue_offset: QueueOffset64
    half_physical_offset: PhysicalOffset64
    commit_or_rollback: I32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


class EndTransaction(Request, tag=int(Code.END_TRANSACTION)):
    """37: commit or roll back; one-way."""

    ext: EndTransactionExt = msgspec.field(name="extFields")


class TransactionStaged(Reply):
    """The place of the half message of a transaction, by which 37 ends it (9011)."""

    half_queue_offset: QueueOffset64
    half_physical_offset: PhysicalOffset64


class StageTransactionExt(Ext):
    """A transaction of several messages; they are in the body. ``transaction_id`` is chosen by the client."""

    producer_group: str
    transaction_id: str
    born_timestamp_ms: I64


class StageTransaction(Request, tag=int(Code.STAGE_TRANSACTION)):
    """Request code 9011, our own: store the messages and offsets in the body as one half message; 37 ends it."""

    ext: StageTransactionExt = msgspec.field(name="extFields")


class CheckTransactionStateExt(
    Ext,
    rename=wire(half_queue_offset="tranStateTableOffset", half_physical_offset="commitLogOffset", broker_name="bname"),
):
    """A half message, as named in `EndTransactionExt`; ``msg_id`` is its UNIQ_KEY, and so is the other one.

    ``broker_name`` names the broker that asks, whose group has the message.
    """

    half_queue_offset: QueueOffset64
    half_physical_offset: PhysicalOffset64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = None


class CheckTransactionState(Request, tag=int(Code.CHECK_TRANSACTION_STATE)):
    """39, broker to client, one-way: check back on the transaction of the message in the body. Answered with a 37."""

    ext: CheckTransactionStateExt = msgspec.field(name="extFields")


class ResumeCheckHalfMessageExt(Ext, rename=wire(message_id="msgId")):
    """``message_id`` is the message's place; only newer tools send the topic."""

    message_id: str
    topic: str | None = None


class ResumeCheckHalfMessage(Request, tag=int(Code.RESUME_CHECK_HALF_MESSAGE)):
    """Request code 323: restart check-backs for a half message that was given up."""

    ext: ResumeCheckHalfMessageExt = msgspec.field(name="extFields")
