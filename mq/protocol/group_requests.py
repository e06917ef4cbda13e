"""Typed requests about consumer groups, from tools to brokers and from brokers to clients. See
`mq.protocol.requests`.
"""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.replies import Reply
from mq.protocol.requests import Ext, Request
from mq.protocol.wire_names import I32, I64, QueueOffset64, wire

# -- members -----------------------------------------------------------------------------------------------------------


class MembersOfGroupExt(Ext):
    """One consumer group."""

    consumer_group: str


class GetConsumerConnectionList(Request, tag=int(Code.GET_CONSUMER_CONNECTION_LIST)):
    """203: the members of a consumer group, with their connections and subscriptions."""

    ext: MembersOfGroupExt = msgspec.field(name="extFields")


class ProducerGroupExt(Ext):
    """One producer group."""

    producer_group: str


class GetProducerConnectionList(Request, tag=int(Code.GET_PRODUCER_CONNECTION_LIST)):
    """204: the members of a producer group."""

    ext: ProducerGroupExt = msgspec.field(name="extFields")


class GetAllProducerInfo(Request, tag=int(Code.GET_ALL_PRODUCER_INFO)):
    """328: all producers."""


class GroupTopicExt(Ext):
    """A topic whose groups are requested."""

    topic: str


class QueryTopicConsumeByWho(Request, tag=int(Code.QUERY_TOPIC_CONSUME_BY_WHO)):
    """300: which groups consume a topic."""

    ext: GroupTopicExt = msgspec.field(name="extFields")


class GroupExt(Ext):
    """One consumer group."""

    group: str


class QueryTopicsByConsumer(Request, tag=int(Code.QUERY_TOPICS_BY_CONSUMER)):
    """343: the topics in which a group has offsets."""

    ext: GroupExt = msgspec.field(name="extFields")


class GroupAndTopicExt(GroupExt):
    """One consumer group and one topic."""

    topic: str


class QuerySubscriptionByConsumer(Request, tag=int(Code.QUERY_SUBSCRIPTION_BY_CONSUMER)):
    """345: a group's subscription to a topic."""

    ext: GroupAndTopicExt = msgspec.field(name="extFields")


class GroupForbiddenExt(GroupAndTopicExt):
    """``readable`` None only queries."""

    readable: bool | None = None


class UpdateAndGetGroupForbidden(Request, tag=int(Code.UPDATE_AND_GET_GROUP_FORBIDDEN)):
    """353: whether a group may read a topic."""

    ext: GroupForbiddenExt = msgspec.field(name="extFields")


# -- progress ----------------------------------------------------------------------------------------------------------


class ConsumeStatsExt(Ext):
    """One consumer group; without a topic, all topics in which it has offsets. ``topic_list`` is separated by
    semicolons.
    """

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumeStats(Request, tag=int(Code.GET_CONSUME_STATS)):
    """208: a group's offsets, and the ends of the queues."""

    ext: ConsumeStatsExt = msgspec.field(name="extFields")


class BrokerConsumeStatsExt(Ext):
    """Only topics that are, or are not, ordered."""

    is_order: bool = False


class GetBrokerConsumeStats(Request, tag=int(Code.GET_BROKER_CONSUME_STATS)):
    """317: 208 for all groups."""

    ext: BrokerConsumeStatsExt = msgspec.field(name="extFields")


class CorrectionOffsetExt(Ext):
    """Groups in ``filter_groups`` are ignored; names are separated by commas."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class QueryCorrectionOffset(Request, tag=int(Code.QUERY_CORRECTION_OFFSET)):
    """308: the lowest offset of all groups in each queue."""

    ext: CorrectionOffsetExt = msgspec.field(name="extFields")


class CloneGroupOffsetExt(Ext, rename=wire(source="srcGroup", target="destGroup")):
    """Without a topic, all topics in which the source has offsets."""

    source: str
    target: str
    topic: str | None = None
    offline: bool = False


class CloneGroupOffset(Request, tag=int(Code.CLONE_GROUP_OFFSET)):
    """314: set the offsets of one group to those of another."""

    ext: CloneGroupOffsetExt = msgspec.field(name="extFields")


class OffsetsWereResetExt(Ext, rename=wire(timestamp_ms="timestamp", force="isForce")):
    """``timestamp_ms`` -1 means the end. Without ``force`` offsets only move backwards."""

    topic: str
    group: str
    timestamp_ms: I64
    force: bool = False


class ResetOffsetExt(OffsetsWereResetExt, rename=wire(timestamp_ms="timestamp", force="isForce")):
    """``queue_id`` below 0 means all queues."""

    queue_id: I32 = -1
    offset: QueueOffset64 | None = None


class InvokeBrokerToResetOffset(Request, tag=int(Code.INVOKE_BROKER_TO_RESET_OFFSET)):
    """222: set the offsets of a group by store time."""

    ext: ResetOffsetExt = msgspec.field(name="extFields")


class SkipMessageExt(Ext):
    """A message at which a group stands, and who skips it."""

    group: str
    topic: str
    queue_id: I32
    offset: QueueOffset64
    operator: str = ""


class SkipMessage(Request, tag=int(Code.SKIP_MESSAGE)):
    """9010, our own: make a message a dead letter of a group, and move the group behind it."""

    ext: SkipMessageExt = msgspec.field(name="extFields")


class MessageSkipped(Reply):
    """Where the group goes on, and the topic with the dead letter (9010)."""

    next_offset: QueueOffset64
    dead_letter_topic: str


class ResetConsumerClientOffset(Request, tag=int(Code.RESET_CONSUMER_CLIENT_OFFSET)):
    """220, broker to client, one-way: continue from the offsets in the body."""

    ext: OffsetsWereResetExt = msgspec.field(name="extFields")


# -- relayed to clients ------------------------------------------------------------------------------------------------


class ConsumerStatusExt(GroupAndTopicExt, rename=wire(client_id="clientAddr")):
    """``client_id`` limits it to this client."""

    client_id: str | None = None


class InvokeBrokerToGetConsumerStatus(Request, tag=int(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)):
    """223: the in-memory offsets of a group's members."""

    ext: ConsumerStatusExt = msgspec.field(name="extFields")


class GetConsumerStatusFromClient(Request, tag=int(Code.GET_CONSUMER_STATUS_FROM_CLIENT)):
    """221, broker to client: its in-memory offsets."""

    ext: ConsumerStatusExt = msgspec.field(name="extFields")


class RunningInfoExt(MembersOfGroupExt, rename=wire(stack="jstackEnable")):
    """One member; with ``stack`` also the stacks of its threads."""

    client_id: str
    stack: bool = False


class GetConsumerRunningInfo(Request, tag=int(Code.GET_CONSUMER_RUNNING_INFO)):
    """307, relayed to the client: its state."""

    ext: RunningInfoExt = msgspec.field(name="extFields")


class ConsumeDirectlyExt(MembersOfGroupExt, rename=wire(message_id="msgId")):
    """``message_id`` is an offset message id. Further fields between brokers and tools are not needed."""

    client_id: str | None = None
    message_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None


class ConsumeMessageDirectly(Request, tag=int(Code.CONSUME_MESSAGE_DIRECTLY)):
    """309, relayed to the client with the record as its body: consume this message now."""

    ext: ConsumeDirectlyExt = msgspec.field(name="extFields")
