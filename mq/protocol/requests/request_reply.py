"""Requests that carry replies: a consumer replies to a message, and the broker delivers the reply to the requester."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests.send import SendExt, SendExtLong, SendMessage, SendMessageV2
from mq.protocol.wire.fields import I32, I64, QueueOffset64, wire
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class SendReplyMessage(SendMessage, tag=int(Code.SEND_REPLY_MESSAGE)):
    """Request code 324: send a reply, with the long field names of code 10."""

    ext: SendExtLong = msgspec.field(name="extFields")


class ReplyStored(Reply, rename=wire(message_id="msgId", region="MSG_REGION", trace_on="TRACE_ON")):
    """The response to 324 and 325: the reply was delivered; with its place, if it was stored."""

    region: str
    trace_on: bool
    message_id: str | None = None
    queue_id: I32 | None = None
    queue_offset: QueueOffset64 | None = None


class SendReplyMessageV2(SendMessageV2, tag=int(Code.SEND_REPLY_MESSAGE_V2)):
    """Request code 325: send a reply, with the short field names of code 310."""

    ext: SendExt = msgspec.field(name="extFields")


class PushReplyExt(Ext, rename=wire(born_timestamp_ms="bornTimestamp", store_timestamp_ms="storeTimestamp")):
    """The header of a reply; ``born_host`` and ``store_host`` are ``ip:port`` of the replying client and the broker."""

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
    """Request code 326, broker to client: deliver the reply to a message that this client sent."""

    ext: PushReplyExt = msgspec.field(name="extFields")


class RelayReplyExt(PushReplyExt, kw_only=True):
    """The header of 9003: a reply and its recipient. ``identity`` is the identity of the replicated log."""

    identity: str
    client_id: str


class RelayReply(Request, tag=int(Code.RELAY_REPLY)):
    """Request code 9003, our own, between replicas: push this reply to the client if it is connected to you.

    SUCCESS: it has the reply; CONSUMER_NOT_ONLINE: it is not connected here; anything else: it is, but did not accept
    the reply.
    """

    ext: RelayReplyExt = msgspec.field(name="extFields")
