"""Requests that send messages to a broker, singly or in batches, send failed ones back, or recall delayed ones."""

from __future__ import annotations

from typing import Final

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.send_fields import SEND_FIELDS
from mq.protocol.wire.fields import I32, I64, PhysicalOffset64, wire
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class SendExt(Ext, rename=wire(**SEND_FIELDS)):
    """The header of a message to send. ``queue_id`` below 0: the broker chooses; ``flag`` is the application's."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp_ms: I64
    flag: I32
    properties: str = ""
    reconsume_times: I32 = 0
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    batch: bool = False
    broker_name: str | None = None


class SendExtLong(
    SendExt,
    rename=wire(
        producer_group="producerGroup",
        default_topic="defaultTopic",
        default_topic_queue_nums="defaultTopicQueueNums",
        queue_id="queueId",
        sys_flag="sysFlag",
        born_timestamp_ms="bornTimestamp",
        reconsume_times="reconsumeTimes",
        unit_mode="unitMode",
        max_reconsume_times="maxReconsumeTimes",
        broker_name="bname",
    ),
):
    """The header of a send, with the long field names of request code 10."""

    # An inherited field keeps its wire name, so each one is declared again.
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp_ms: I64
    flag: I32
    properties: str = ""
    reconsume_times: I32 = 0
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    batch: bool = False
    broker_name: str | None = None


class SendMessage(Request, tag=int(Code.SEND_MESSAGE)):
    """Request code 10: send one message, as Go clients do."""

    ext: SendExtLong = msgspec.field(name="extFields")


class SendMessageV2(Request, tag=int(Code.SEND_MESSAGE_V2)):
    """Request code 310: send one message, as Java clients do."""

    ext: SendExt = msgspec.field(name="extFields")


SENT_ALREADY_STORED: Final = "alreadyStored"
"""The place of a stored message (310, 320). Clients read these fields one by one: there is an answer for each message,
and a struct would cost 0.4 us more. Our own, for a batch with sequence numbers: how many of its messages were stored
before.
"""


class SendBatchMessage(Request, tag=int(Code.SEND_BATCH_MESSAGE)):
    """Request code 320: send the messages in the body to one queue."""

    ext: SendExt = msgspec.field(name="extFields")


class SendBackExt(
    Ext,
    rename=wire(
        physical_offset="offset",
        original_message_id="originMsgId",
        failure="raftmqFailure",
        attempts="raftmqAttempts",
    ),
):
    """The header of request code 36: a message that failed in a consumer group, by its physical offset.

    ``failure`` and ``attempts`` are our own: the text of the exception, and how often the message was delivered.
    """

    physical_offset: PhysicalOffset64
    group: str
    delay_level: I32
    original_message_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    failure: str | None = None
    attempts: I32 | None = None


class ConsumerSendMsgBack(Request, tag=int(Code.CONSUMER_SEND_MSG_BACK)):
    """Request code 36: redeliver a message later."""

    ext: SendBackExt = msgspec.field(name="extFields")


class RecallExt(Ext, rename=wire(broker_name="bname")):
    """The header of 370: a delayed message, by its topic and the handle from the response to its send."""

    topic: str
    recall_handle: str
    producer_group: str = ""
    broker_name: str | None = None


class RecallMessage(Request, tag=int(Code.RECALL_MESSAGE)):
    """Request code 370: recall a delayed message."""

    ext: RecallExt = msgspec.field(name="extFields")


class RecallReply(Reply, rename=wire(message_id="msgId")):
    """The response to request code 370: the id of the recalled message."""

    message_id: str


SENT_ID: Final = "msgId"
SENT_QUEUE_ID: Final = "queueId"
SENT_QUEUE_OFFSET: Final = "queueOffset"
SENT_UNIQUE_KEY: Final = "transactionId"
SENT_RECALL_HANDLE: Final = "recallHandle"
SENT_TRACE_ON: Final = "TRACE_ON"
