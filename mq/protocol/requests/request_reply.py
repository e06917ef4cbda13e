"""Replies: a consumer answers a message, and the broker delivers the reply to the requester."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests.send import SendExt, SendExtLong, SendMessage, SendMessageV2
from mq.protocol.wire.fields import I32, I64, QueueOffset64, wire
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class SendReplyMessage(SendMessage, tag=int(Code.SEND_REPLY_MESSAGE)):
    """Request code 324: send a reply, with the field names of 10."""

    ext: SendExtLong = msgspec.field(name="extFields")


class ReplyStored(Reply, rename=wire(message_id="msgId", region="MSG_REGION", trace_on="TRACE_ON")):
    """A consumer's reply was delivered (324, 325), and its place if it was stored."""

    region: str
    trace_on: bool
    message_id: str | None = None
    queue_id: I32 | None = None
    queue_offset: QueueOffset64 | None = None


class SendReplyMessageV2(SendMessageV2, tag=int(Code.SEND_REPLY_MESSAGE_V2)):
    """Request code 325: send a reply, with the field names of 310."""

    ext: SendExt = msgspec.field(name="extFields")


class PushReplyExt(Ext, rename=wire(born_timestamp_ms="bornTimestamp", store_timestamp_ms="storeTimestamp")):
    """A reply without its body. ``born_host`` and ``store_host`` are ``ip:port`` of the replier and of the broker."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp_ms: I64
    flag: I32
    born_host: str
    store_host: str
    store_timestamp_ms: I64
    properties: str = ""
    reconsume_times: I32 = 0
    unit_mode: bool = False


class PushReplyMessageToClient(Request, tag=int(Code.PUSH_REPLY_MESSAGE_TO_CLIENT)):
    """Request code 326, broker to client: take the reply to one of your messages from the body."""

    ext: PushReplyExt = msgspec.field(name="extFields")


class RelayReplyExt(PushReplyExt, kw_only=True):
    """The recipient of the reply; ``identity`` is the identity of the replicated log."""

    identity: str
    client_id: str


class RelayReply(Request, tag=int(Code.RELAY_REPLY)):
    """Request code 9003, our own, between replicas of a group: push this reply to a client if it is connected to you.

    SUCCESS: it has the reply; CONSUMER_NOT_ONLINE: it is not connected here; anything else: it is, but did not accept
    the reply.
    """

    ext: RelayReplyExt = msgspec.field(name="extFields")
