"""Typed requests: one class per request code, with the header fields of that code under our names.

The wire name of a field is in its class's ``rename``. A field without a default is required. `I32` and `I64` are the
ranges of Java's int and long; numbers outside are refused before any handler sees them.
"""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire_names import I32, I64, HeaderFields, PhysicalOffset64, QueueOffset64, wire


class Ext(HeaderFields):
    """Base of the header fields of one request code."""


class Request(msgspec.Struct, gc=False, kw_only=True, tag_field="code"):
    """Common to all requests. ``flag`` bit 1 means one-way; ``language`` is a name in `LANGUAGES`."""

    opaque: I32 = 0
    flag: I32 = 0
    version: I32 = 0
    language: str | None = None

    @property
    def code(self) -> int:
        """The request code, the same for all instances of a class."""
        return int(self.__struct_config__.tag)  # type: ignore[arg-type]


# -- sending -----------------------------------------------------------------------------------------------------------


class SendExt(
    Ext,
    rename=wire(
        producer_group="a",
        topic="b",
        default_topic="c",
        default_topic_queue_nums="d",
        queue_id="e",
        sys_flag="f",
        born_timestamp_ms="g",
        flag="h",
        properties="i",
        reconsume_times="j",
        unit_mode="k",
        max_reconsume_times="l",
        batch="m",
        broker_name="n",
    ),
):
    """A message without its body. ``queue_id`` below 0: the broker chooses; ``flag`` is the application's."""

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
    """`SendExt` with the long wire names of request code 10."""

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
    """10: one message, as Go clients send it."""

    ext: SendExtLong = msgspec.field(name="extFields")


class SendMessageV2(Request, tag=int(Code.SEND_MESSAGE_V2)):
    """310: one message, as Java clients send it."""

    ext: SendExt = msgspec.field(name="extFields")


class SendBatchMessage(Request, tag=int(Code.SEND_BATCH_MESSAGE)):
    """320: many messages to one queue; they are in the body."""

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
    """A message that failed in a consumer group. ``physical_offset`` is not a queue offset.

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
    """36: redeliver this message later."""

    ext: SendBackExt = msgspec.field(name="extFields")


class RecallExt(Ext, rename=wire(broker_name="bname")):
    """A delayed message that was sent to ``topic``; the handle is from the answer to its send."""

    topic: str
    recall_handle: str
    producer_group: str = ""
    broker_name: str | None = None


class RecallMessage(Request, tag=int(Code.RECALL_MESSAGE)):
    """370: recall a delayed message."""

    ext: RecallExt = msgspec.field(name="extFields")


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


class StageTransactionExt(Ext):
    """A transaction of several messages; they are in the body. ``transaction_id`` is chosen by the client."""

    producer_group: str
    transaction_id: str
    born_timestamp_ms: I64


class StageTransaction(Request, tag=int(Code.STAGE_TRANSACTION)):
    """9011, our own: store the messages and consumer offsets in the body as one half message; 37 ends it."""

    ext: StageTransactionExt = msgspec.field(name="extFields")


class CheckTransactionStateExt(
    Ext,
    rename=wire(half_queue_offset="tranStateTableOffset", half_physical_offset="commitLogOffset", broker_name="bname"),
):
    """A half message, as named in `EndTransactionExt`; ``msg_id`` is its UNIQ_KEY, and so is the other one.

    ``broker_name`` is that of the broker that asks, whose group has the message.
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


# -- receiving ---------------------------------------------------------------------------------------------------------


class PullExt(
    Ext, rename=wire(max_messages="maxMsgNums", suspend_timeout_ms="suspendTimeoutMillis", max_bytes="maxMsgBytes")
):
    """The messages to pull. ``sys_flag``: 1 commit ``commit_offset``, 2 may be held, 4 use the subscription given here.

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
    """11: messages of one queue from an offset on."""

    ext: PullExt = msgspec.field(name="extFields")


class LitePullMessage(Request, tag=int(Code.LITE_PULL_MESSAGE)):
    """361: as 11, from a consumer with queues that it assigned to itself."""

    ext: PullExt = msgspec.field(name="extFields")


class QueryMessageExt(
    Ext,
    rename=wire(messages_max="maxNum", begin_ms="beginTimestamp", end_ms="endTimestamp", unique="_UNIQUE_KEY_QUERY"),
):
    """Messages by key. With ``unique`` the key is a UNIQ_KEY. Times are epoch milliseconds."""

    topic: str
    key: str
    messages_max: I32
    begin_ms: I64
    end_ms: I64
    unique: bool = False


class QueryMessage(Request, tag=int(Code.QUERY_MESSAGE)):
    """12: messages by key."""

    ext: QueryMessageExt = msgspec.field(name="extFields")


class ViewMessageByIdExt(Ext, rename=wire(physical_offset="offset")):
    """Where the record starts."""

    physical_offset: PhysicalOffset64
    topic: str | None = None


class ViewMessageById(Request, tag=int(Code.VIEW_MESSAGE_BY_ID)):
    """33: one record by its physical offset."""

    ext: ViewMessageByIdExt = msgspec.field(name="extFields")


# -- offsets -----------------------------------------------------------------------------------------------------------


class QueryConsumerOffsetExt(Ext):
    """With ``set_zero_if_not_found`` false a group without a stored offset gets that as the answer, also on a young
    queue.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffset(Request, tag=int(Code.QUERY_CONSUMER_OFFSET)):
    """14: a group's offset."""

    ext: QueryConsumerOffsetExt = msgspec.field(name="extFields")


class UpdateConsumerOffsetExt(Ext):
    """``commit_offset`` is the group's next offset.

    With ``forward_only`` an offset at or beyond it counts as success; stock clients do not send it.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: QueueOffset64
    forward_only: bool = False


class UpdateConsumerOffset(Request, tag=int(Code.UPDATE_CONSUMER_OFFSET)):
    """15: store a group's offset; usually one-way."""

    ext: UpdateConsumerOffsetExt = msgspec.field(name="extFields")


class QueueExt(Ext):
    """One queue."""

    topic: str
    queue_id: I32


class SearchOffsetExt(Ext, rename=wire(timestamp_ms="timestamp", boundary="boundaryType")):
    """One queue and a store time in epoch milliseconds. ``boundary`` is "lower" (default) or "upper"."""

    topic: str
    queue_id: I32
    timestamp_ms: I64
    boundary: str | None = None


class SearchOffsetByTimestamp(Request, tag=int(Code.SEARCH_OFFSET_BY_TIMESTAMP)):
    """29: the first offset stored at or after a time."""

    ext: SearchOffsetExt = msgspec.field(name="extFields")


class GetMaxOffset(Request, tag=int(Code.GET_MAX_OFFSET)):
    """30: the offset of the next message."""

    ext: QueueExt = msgspec.field(name="extFields")


class GetMinOffset(Request, tag=int(Code.GET_MIN_OFFSET)):
    """31: the first readable offset."""

    ext: QueueExt = msgspec.field(name="extFields")


class GetEarliestMsgStoretime(Request, tag=int(Code.GET_EARLIEST_MSG_STORETIME)):
    """32: the store time of the first readable message."""

    ext: QueueExt = msgspec.field(name="extFields")
