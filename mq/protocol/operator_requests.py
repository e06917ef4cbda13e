"""Typed requests, third part: operators' tools to brokers and name servers. See `mq.protocol.requests`."""

from __future__ import annotations

import msgspec

from mq.protocol.admin_requests import BrokerExt, TopicExt
from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests import Ext, Request
from mq.protocol.wire_names import I32, I64, wire

# -- brokers: topics ---------------------------------------------------------------------------------------------------


class UpdateAndCreateTopicList(Request, tag=int(Code.UPDATE_AND_CREATE_TOPIC_LIST)):
    """18: create or change topics; they are in the body."""


class TopicOfBrokerExt(TopicExt):
    """One topic; ``lo`` belongs to static topics, which we do not have."""

    lo: bool | None = None


class GetTopicConfig(Request, tag=int(Code.GET_TOPIC_CONFIG)):
    """351: one topic's configuration."""

    ext: TopicOfBrokerExt = msgspec.field(name="extFields")


class GetTopicStatsInfo(Request, tag=int(Code.GET_TOPIC_STATS_INFO)):
    """202: the ends of a topic's queues."""

    ext: TopicExt = msgspec.field(name="extFields")


class GetSystemTopicListFromBroker(Request, tag=int(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)):
    """305: the broker's internal topics."""


class CleanExpiredConsumequeue(Request, tag=int(Code.CLEAN_EXPIRED_CONSUMEQUEUE)):
    """306: remove queue entries of deleted messages."""


class CleanUnusedTopic(Request, tag=int(Code.CLEAN_UNUSED_TOPIC)):
    """316: remove queues of topics that do not exist."""


class DeleteExpiredCommitlog(Request, tag=int(Code.DELETE_EXPIRED_COMMITLOG)):
    """329: delete expired log files."""


class ResumeCheckHalfMessageExt(Ext, rename=wire(message_id="msgId")):
    """``message_id`` is the message's place; only newer tools send the topic."""

    message_id: str
    topic: str | None = None


class ResumeCheckHalfMessage(Request, tag=int(Code.RESUME_CHECK_HALF_MESSAGE)):
    """323: restart check-backs for a half message that was given up."""

    ext: ResumeCheckHalfMessageExt = msgspec.field(name="extFields")


# -- brokers: groups ---------------------------------------------------------------------------------------------------


class UpdateAndCreateSubscriptionGroup(Request, tag=int(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)):
    """200: create or change a consumer group; it is in the body."""


class UpdateAndCreateSubscriptionGroupList(Request, tag=int(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)):
    """225: create or change consumer groups; they are in the body."""


class GetAllSubscriptionGroupConfig(Request, tag=int(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)):
    """201: all consumer groups."""


class GroupExt(Ext):
    """One consumer group."""

    group: str


class GetSubscriptionGroupConfig(Request, tag=int(Code.GET_SUBSCRIPTIONGROUP_CONFIG)):
    """352: one consumer group's configuration."""

    ext: GroupExt = msgspec.field(name="extFields")


class DeleteSubscriptionGroupExt(Ext):
    """One consumer group; either flag also deletes its offsets: 4.9 and 5.x use different names."""

    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False


class DeleteSubscriptionGroup(Request, tag=int(Code.DELETE_SUBSCRIPTIONGROUP)):
    """207: delete a consumer group."""

    ext: DeleteSubscriptionGroupExt = msgspec.field(name="extFields")


class GetAllConsumerOffset(Request, tag=int(Code.GET_ALL_CONSUMER_OFFSET)):
    """43: every group's offsets."""


class GetAllDelayOffset(Request, tag=int(Code.GET_ALL_DELAY_OFFSET)):
    """45: the delivery progress of each delay level."""


class QueryAssignment(Request, tag=int(Code.QUERY_ASSIGNMENT)):
    """400: the queues of a group member; the member is in the body."""


class SetMessageRequestMode(Request, tag=int(Code.SET_MESSAGE_REQUEST_MODE)):
    """401: set whether a group pulls or pops; it is in the body."""


class GetAllMessageRequestMode(Request, tag=int(Code.GET_ALL_MESSAGE_REQUEST_MODE)):
    """402: all request modes that were set."""


# -- brokers: settings and figures -------------------------------------------------------------------------------------


class UpdateBrokerConfig(Request, tag=int(Code.UPDATE_BROKER_CONFIG)):
    """25: change settings of a running broker; they are in the body."""


class GetBrokerConfig(Request, tag=int(Code.GET_BROKER_CONFIG)):
    """26: the settings of a broker."""


class StatsExt(Ext):
    """The name of the figure, and its subject: a topic, ``topic@group`` or a cluster."""

    stats_name: str
    stats_key: str


class ViewBrokerStatsData(Request, tag=int(Code.VIEW_BROKER_STATS_DATA)):
    """315: a figure over the last minute, hour and day."""

    ext: StatsExt = msgspec.field(name="extFields")


# -- name servers ------------------------------------------------------------------------------------------------------


class RegisterTopicInNamesrv(Request, tag=int(Code.REGISTER_TOPIC_IN_NAMESRV)):
    """217: a topic's queues; they are in the body."""

    ext: TopicExt = msgspec.field(name="extFields")


class ClusterExt(Ext):
    """One cluster."""

    cluster: str


class GetTopicsByCluster(Request, tag=int(Code.GET_TOPICS_BY_CLUSTER)):
    """224: the topics of a cluster."""

    ext: ClusterExt = msgspec.field(name="extFields")


class GetSystemTopicListFromNs(Request, tag=int(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)):
    """304: topics named like clusters and broker groups."""


class GetUnitTopicList(Request, tag=int(Code.GET_UNIT_TOPIC_LIST)):
    """311: topics of units."""


class GetHasUnitSubTopicList(Request, tag=int(Code.GET_HAS_UNIT_SUB_TOPIC_LIST)):
    """312: topics subscribed by a unit."""


class GetHasUnitSubUnunitTopicList(Request, tag=int(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)):
    """313: topics subscribed by a unit that do not belong to a unit."""


class UpdateNamesrvConfig(Request, tag=int(Code.UPDATE_NAMESRV_CONFIG)):
    """318: change settings of a running name server; they are in the body."""


class GetNamesrvConfig(Request, tag=int(Code.GET_NAMESRV_CONFIG)):
    """319: the settings of a name server."""


class MemberGroupExt(Ext, rename=wire(cluster="clusterName")):
    """One broker group."""

    cluster: str
    broker_name: str


class GetBrokerMemberGroup(Request, tag=int(Code.GET_BROKER_MEMBER_GROUP)):
    """901: the brokers of a group."""

    ext: MemberGroupExt = msgspec.field(name="extFields")


class HeartbeatExt(BrokerExt, rename=wire(address="brokerAddr", cluster="clusterName")):
    """A broker, and for how long it counts as alive."""

    broker_id: I64 = -1
    heartbeat_timeout_millis: I64 | None = None
    epoch: I32 | None = None


class BrokerHeartbeat(Request, tag=int(Code.BROKER_HEARTBEAT)):
    """904: a broker is alive, without changes."""

    ext: HeartbeatExt = msgspec.field(name="extFields")
