"""Requests about consumer groups: their configuration, members and subscriptions. Also about producer groups."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests.clients import ConsumerGroupExt, SubscriptionData
from mq.protocol.requests.topics import DataVersion, TopicExt
from mq.protocol.wire.fields import I32, I64, wire
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class UpdateAndCreateSubscriptionGroup(Request, tag=int(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)):
    """Request code 200: create or change the consumer group in the body."""


class GroupRetryPolicy(Body):
    """The retry delays of a group. Brokers support only the default steps."""

    type: str = "CUSTOMIZED"


class SubscriptionGroupConfig(Body, rename=wire()):
    """The configuration of a consumer group (request codes 200 and 352)."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: I32 = 1
    retry_max_times: I32 = 16
    broker_id: I64 = 0
    which_broker_when_consume_slowly: I64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: I32 = 0
    consume_timeout_minute: I32 = 15
    group_retry_policy: GroupRetryPolicy = msgspec.field(default_factory=GroupRetryPolicy)
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class UpdateAndCreateSubscriptionGroupList(Request, tag=int(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)):
    """Request code 225: create or change the consumer groups in the body."""


class SubscriptionGroupList(Body, rename=wire(groups="groupConfigList")):
    """Consumer groups to create or change (request code 225)."""

    groups: Sequence[SubscriptionGroupConfig] = ()


class GetAllSubscriptionGroupConfig(Request, tag=int(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)):
    """Request code 201: return all consumer groups."""


class GroupCountReply(Reply):
    """The response header of request code 201: the number of consumer groups."""

    total_group_num: int


class SubscriptionGroupTable(Body, rename=wire(groups="subscriptionGroupTable")):
    """All consumer groups of a broker (request code 201)."""

    groups: dict[str, SubscriptionGroupConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)


class GroupExt(Ext):
    """The header of a request about one consumer group."""

    group: str


class GetSubscriptionGroupConfig(Request, tag=int(Code.GET_SUBSCRIPTIONGROUP_CONFIG)):
    """Request code 352: return one consumer group's configuration."""

    ext: GroupExt = msgspec.field(name="extFields")


class DeleteSubscriptionGroupExt(Ext):
    """The header of request code 207. Either flag also deletes the group's offsets; 4.9 and 5.x name it differently."""

    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False


class DeleteSubscriptionGroup(Request, tag=int(Code.DELETE_SUBSCRIPTIONGROUP)):
    """Request code 207: delete a consumer group."""

    ext: DeleteSubscriptionGroupExt = msgspec.field(name="extFields")


class GetConsumerConnectionList(Request, tag=int(Code.GET_CONSUMER_CONNECTION_LIST)):
    """Request code 203: return the members of a consumer group, with their connections and subscriptions."""

    ext: ConsumerGroupExt = msgspec.field(name="extFields")


class ClientConnectionData(Body, rename=wire(subscriptions="raftmqSubscriptions")):
    """A member of a group and its connection.

    ``subscriptions`` are only there for a client behind a proxy: its own, each with topic, expression and type.
    """

    client_id: str
    client_addr: str
    language: str
    version: int
    subscriptions: Sequence[tuple[str, str, str]] | msgspec.UnsetType = msgspec.UNSET


class ConsumerConnection(Body, rename=wire(connections="connectionSet", subscriptions="subscriptionTable")):
    """The members of a consumer group and their subscriptions (request code 203)."""

    connections: Sequence[ClientConnectionData]
    subscriptions: dict[str, SubscriptionData]
    consume_type: str
    message_model: str
    consume_from_where: str


class ProducerGroupExt(Ext):
    """The header of request code 204: a producer group."""

    producer_group: str


class GetProducerConnectionList(Request, tag=int(Code.GET_PRODUCER_CONNECTION_LIST)):
    """Request code 204: return the members of a producer group."""

    ext: ProducerGroupExt = msgspec.field(name="extFields")


class ProducerConnection(Body, rename=wire(connections="connectionSet")):
    """The members of a producer group (request code 204)."""

    connections: Sequence[ClientConnectionData]


class GetAllProducerInfo(Request, tag=int(Code.GET_ALL_PRODUCER_INFO)):
    """Request code 328: return all producers."""


class ProducerInfo(Body, rename=wire(remote_ip="remoteIP", last_update_ms="lastUpdateTimestamp")):
    """A member of a producer group and its connection (request code 328)."""

    client_id: str
    remote_ip: str
    language: str
    version: int
    last_update_ms: int


class ProducerTable(Body):
    """All producers by group (request code 328)."""

    data: dict[str, list[ProducerInfo]]


class QueryTopicConsumeByWho(Request, tag=int(Code.QUERY_TOPIC_CONSUME_BY_WHO)):
    """Request code 300: return the consumer groups that read a topic."""

    ext: TopicExt = msgspec.field(name="extFields")


class GroupNames(Body, rename=wire(groups="groupList")):
    """Names of groups (request code 300)."""

    groups: Sequence[str]


class QueryTopicsByConsumer(Request, tag=int(Code.QUERY_TOPICS_BY_CONSUMER)):
    """Request code 343: return the topics in which a group has offsets."""

    ext: GroupExt = msgspec.field(name="extFields")


class GroupAndTopicExt(GroupExt):
    """The header of a request about a consumer group and a topic."""

    topic: str


class QuerySubscriptionByConsumer(Request, tag=int(Code.QUERY_SUBSCRIPTION_BY_CONSUMER)):
    """Request code 345: return a group's subscription to a topic."""

    ext: GroupAndTopicExt = msgspec.field(name="extFields")


class GroupSubscriptionData(Body, rename=wire(subscription="subscriptionData")):
    """A group's subscription to a topic (request code 345)."""

    group: str
    topic: str
    subscription: SubscriptionData | None


class GroupForbiddenExt(GroupAndTopicExt):
    """The header of request code 353. If ``readable`` is None, the permission is only returned, not changed."""

    readable: bool | None = None


class UpdateAndGetGroupForbidden(Request, tag=int(Code.UPDATE_AND_GET_GROUP_FORBIDDEN)):
    """Request code 353: set or return whether a group may read a topic."""

    ext: GroupForbiddenExt = msgspec.field(name="extFields")


class GroupForbidden(Body):
    """Whether a group may read a topic (request code 353)."""

    group: str
    topic: str
    readable: bool
