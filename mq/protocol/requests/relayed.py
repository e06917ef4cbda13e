"""Requests of operators' tools that a broker relays to a member of a consumer group."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.errors import BodyError
from mq.protocol.requests.clients import ConsumerGroupExt, SubscriptionData
from mq.protocol.requests.consumer_groups import GroupAndTopicExt
from mq.protocol.wire import fastjson
from mq.protocol.wire.fields import I32, wire
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.queue_tables import QueueRef, read_queue_table
from mq.protocol.wire.request import Request


class ConsumerStatusExt(GroupAndTopicExt, rename=wire(client_id="clientAddr")):
    """The header of request code 223: a group, a topic, and a client (``client_id``) or none for all members."""

    client_id: str | None = None


class InvokeBrokerToGetConsumerStatus(Request, tag=int(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)):
    """Request code 223: return the in-memory offsets of a group's members."""

    ext: ConsumerStatusExt = msgspec.field(name="extFields")


class GetConsumerStatusFromClient(Request, tag=int(Code.GET_CONSUMER_STATUS_FROM_CLIENT)):
    """Request code 221, broker to client: return the offsets that the client has in memory."""

    ext: ConsumerStatusExt = msgspec.field(name="extFields")


class RunningInfoExt(ConsumerGroupExt, rename=wire(stack="jstackEnable")):
    """The header of 307: a member of a group, and whether to return the stacks of its threads (``stack``)."""

    client_id: str
    stack: bool = False


class GetConsumerRunningInfo(Request, tag=int(Code.GET_CONSUMER_RUNNING_INFO)):
    """Request code 307, relayed to the client: return the state of the consumer."""

    ext: RunningInfoExt = msgspec.field(name="extFields")


class ProcessQueueInfo(Body, rename=wire(cached_mib="cachedMsgSizeInMiB", dropped="droped")):
    """A consumer's progress in one of its queues (request code 307); times are epoch milliseconds, 0 if unknown.

    Cached messages are the unfinished ones, between two inclusive offsets, 0 without any. ``cached_mib`` is the size of
    their bodies in MiB.
    """

    commit_offset: int
    cached_msg_min_offset: int
    cached_msg_max_offset: int
    cached_msg_count: int
    cached_mib: int
    locked: bool
    dropped: bool
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0
    last_lock_timestamp: int = 0
    try_unlock_times: int = 0


def read_member_queues(body: bytes | memoryview) -> dict[QueueRef, ProcessQueueInfo]:
    """Decode the queues in a consumer's running info (response to request code 307). Raises BodyError."""
    info = fastjson.parse(body, values_max=fastjson.TRUSTED_VALUES_MAX)
    table = read_queue_table(info.get("mqTable") or {}) if isinstance(info, dict) else {}
    try:
        return {ref: msgspec.convert(value, ProcessQueueInfo, strict=False) for ref, value in table.items()}
    except msgspec.ValidationError as error:
        raise BodyError(f"queues of a member: {error}") from error


def read_subscriptions(body: bytes, *, values_max: int) -> list[SubscriptionData]:
    """Decode the subscriptions in a consumer's running info (response to request code 307). Raises BodyError."""
    info = fastjson.parse(body, values_max=values_max)
    subscriptions = info.get("subscriptionSet") if isinstance(info, dict) else None
    try:
        return msgspec.convert(subscriptions, list[SubscriptionData])
    except msgspec.ValidationError as error:
        raise BodyError(f"subscriptions of a client: {error}") from error


class ConsumeDirectlyExt(ConsumerGroupExt, rename=wire(message_id="msgId")):
    """The header of 309. ``message_id`` is an offset message id. RocketMQ's further fields are not needed."""

    client_id: str | None = None
    message_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None


class ConsumeMessageDirectly(Request, tag=int(Code.CONSUME_MESSAGE_DIRECTLY)):
    """Request code 309, relayed to the client with the record in the body: consume this message now."""

    ext: ConsumeDirectlyExt = msgspec.field(name="extFields")


class ConsumeResult(Body, rename=wire(spent_ms="spentTimeMills")):
    """The result of consuming the message of request code 309."""

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: str = ""
    spent_ms: int = 0
