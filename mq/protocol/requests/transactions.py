"""Requests about transactions: to store half messages, to commit or roll back, and to check back."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import I32, I64, PhysicalOffset64, QueueOffset64, wire
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class EndTransactionExt(
    Ext, rename=wire(half_queue_offset="tranStateTableOffset", half_physical_offset="commitLogOffset")
):
    """The header of 37: the outcome of a half message. ``commit_or_rollback``: 8 commit, 12 roll back, 0 unknown."""

    producer_group: str
    half_queue_offset: QueueOffset64
    half_physical_offset: PhysicalOffset64
    commit_or_rollback: I32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


class EndTransaction(Request, tag=int(Code.END_TRANSACTION)):
    """Request code 37, one-way: commit or roll back a transaction."""

    ext: EndTransactionExt = msgspec.field(name="extFields")


class TransactionStaged(Reply):
    """The response to 9011: the place of the stored half message, which request code 37 names."""

    half_queue_offset: QueueOffset64
    half_physical_offset: PhysicalOffset64


class StageTransactionExt(Ext):
    """The header of 9011: a transaction with the messages in the body. The client chooses ``transaction_id``."""

    producer_group: str
    transaction_id: str
    born_timestamp_ms: I64


class StageTransaction(Request, tag=int(Code.STAGE_TRANSACTION)):
    """Request code 9011, our own: store the body's messages and offsets as one half message, which 37 ends."""

    ext: StageTransactionExt = msgspec.field(name="extFields")


class CheckTransactionStateExt(
    Ext,
    rename=wire(half_queue_offset="tranStateTableOffset", half_physical_offset="commitLogOffset", broker_name="bname"),
):
    """The header of 39: a half message, named as in `EndTransactionExt`. Both ids are its UNIQ_KEY.

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
    """Request code 39, broker to client, one-way: send the outcome of the message in the body, with a 37."""

    ext: CheckTransactionStateExt = msgspec.field(name="extFields")


class ResumeCheckHalfMessageExt(Ext, rename=wire(message_id="msgId")):
    """The header of 323. ``message_id`` is the message's place; only newer tools send the topic."""

    message_id: str
    topic: str | None = None


class ResumeCheckHalfMessage(Request, tag=int(Code.RESUME_CHECK_HALF_MESSAGE)):
    """Request code 323: check back again on a half message that was given up."""

    ext: ResumeCheckHalfMessageExt = msgspec.field(name="extFields")
