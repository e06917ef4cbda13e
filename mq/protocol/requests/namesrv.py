"""Requests to name servers: routes, clusters, topics, their key-value table and their settings."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests.topics import TopicExt
from mq.protocol.wire.fields import I32, I64, wire
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class RouteExt(Ext):
    """The header of request code 105: a topic. ``accept_standard_json_only``: quote numeric keys, as we always do."""

    topic: str
    accept_standard_json_only: bool = False


class GetRouteinfoByTopic(Request, tag=int(Code.GET_ROUTEINFO_BY_TOPIC)):
    """Request code 105: return the route of a topic."""

    ext: RouteExt = msgspec.field(name="extFields")


class QueueData(Body, rename=wire()):
    """The queues of a topic in one broker group."""

    broker_name: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_sys_flag: I32 = 0


class BrokerData(Body, rename=wire()):
    """A broker group, with the ``host:port`` of each broker by its id. The leader has id 0."""

    broker_name: str
    broker_addrs: dict[I64, str]
    cluster: str = ""
    enable_acting_master: bool = False


class Route(Body, rename=wire(filter_servers="filterServerTable")):
    """The route of a topic (request code 105)."""

    queue_datas: Sequence[QueueData] = ()
    broker_datas: Sequence[BrokerData] = ()
    filter_servers: dict[str, list[str]] = msgspec.field(default_factory=dict)
    order_topic_conf: str | msgspec.UnsetType = msgspec.UNSET


class GetBrokerClusterInfo(Request, tag=int(Code.GET_BROKER_CLUSTER_INFO)):
    """Request code 106: return all brokers."""


class ClusterInfo(Body, rename=wire(brokers="brokerAddrTable", clusters="clusterAddrTable")):
    """All broker groups by name, and the names of the broker groups in each cluster (request code 106)."""

    brokers: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    clusters: dict[str, list[str]] = msgspec.field(default_factory=dict)


class GetAllTopicListFromNameserver(Request, tag=int(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)):
    """Request code 206: return all topics."""


class DeleteTopicInNamesrvExt(Ext):
    """The header of request code 216: a topic, and a cluster or none for all clusters."""

    topic: str
    cluster_name: str | None = None


class DeleteTopicInNamesrv(Request, tag=int(Code.DELETE_TOPIC_IN_NAMESRV)):
    """Request code 216: delete the route of a topic."""

    ext: DeleteTopicInNamesrvExt = msgspec.field(name="extFields")


class BrokerNameExt(Ext):
    """The header of a request about one broker group."""

    broker_name: str


class WipeWritePermOfBroker(Request, tag=int(Code.WIPE_WRITE_PERM_OF_BROKER)):
    """Request code 205: revoke the write permission of a broker group."""

    ext: BrokerNameExt = msgspec.field(name="extFields")


class WipedTopicsReply(Reply):
    """The response to request code 205: the number of topics for which the broker group lost write permission."""

    wipe_topic_count: int


class AddWritePermOfBroker(Request, tag=int(Code.ADD_WRITE_PERM_OF_BROKER)):
    """Request code 327: restore the write permission of a broker group."""

    ext: BrokerNameExt = msgspec.field(name="extFields")


class AddedTopicsReply(Reply):
    """The response to request code 327: the number of topics for which the broker group got write permission."""

    add_topic_count: int


class NamespaceExt(Ext):
    """The header of request code 219: a namespace of the key-value table."""

    namespace: str


class KvKeyExt(NamespaceExt):
    """The header of request codes 101 and 102: a key of the key-value table."""

    key: str


class KvExt(KvKeyExt):
    """The header of request code 100: a key of the key-value table, and the value to store."""

    value: str


class PutKvConfig(Request, tag=int(Code.PUT_KV_CONFIG)):
    """Request code 100: store a value in the key-value table."""

    ext: KvExt = msgspec.field(name="extFields")


class GetKvConfig(Request, tag=int(Code.GET_KV_CONFIG)):
    """Request code 101: return a value of the key-value table."""

    ext: KvKeyExt = msgspec.field(name="extFields")


class DeleteKvConfig(Request, tag=int(Code.DELETE_KV_CONFIG)):
    """Request code 102: delete a value of the key-value table."""

    ext: KvKeyExt = msgspec.field(name="extFields")


class GetKvlistByNamespace(Request, tag=int(Code.GET_KVLIST_BY_NAMESPACE)):
    """Request code 219: return all keys and values of a namespace."""

    ext: NamespaceExt = msgspec.field(name="extFields")


class RegisterTopicInNamesrv(Request, tag=int(Code.REGISTER_TOPIC_IN_NAMESRV)):
    """Request code 217: register a topic, whose queues are in the body."""

    ext: TopicExt = msgspec.field(name="extFields")


class ClusterExt(Ext):
    """The header of request code 224: a cluster."""

    cluster: str


class GetTopicsByCluster(Request, tag=int(Code.GET_TOPICS_BY_CLUSTER)):
    """Request code 224: return the topics of a cluster."""

    ext: ClusterExt = msgspec.field(name="extFields")


class GetSystemTopicListFromNs(Request, tag=int(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)):
    """Request code 304: return the system topics, which have the names of clusters and broker groups."""


class GetUnitTopicList(Request, tag=int(Code.GET_UNIT_TOPIC_LIST)):
    """Request code 311: return the topics that belong to a unit."""


class GetHasUnitSubTopicList(Request, tag=int(Code.GET_HAS_UNIT_SUB_TOPIC_LIST)):
    """Request code 312: return the topics to which a unit subscribes."""


class GetHasUnitSubUnunitTopicList(Request, tag=int(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)):
    """Request code 313: return the topics to which a unit subscribes and that belong to no unit."""


class UpdateNamesrvConfig(Request, tag=int(Code.UPDATE_NAMESRV_CONFIG)):
    """Request code 318: change the settings of a running name server to those in the body."""


class GetNamesrvConfig(Request, tag=int(Code.GET_NAMESRV_CONFIG)):
    """Request code 319: return the settings of a name server."""


class MemberGroupExt(Ext, rename=wire(cluster="clusterName")):
    """The header of request code 901: a broker group."""

    cluster: str
    broker_name: str


class GetBrokerMemberGroup(Request, tag=int(Code.GET_BROKER_MEMBER_GROUP)):
    """Request code 901: return the brokers of a broker group."""

    ext: MemberGroupExt = msgspec.field(name="extFields")


class BrokerMemberGroup(Body, rename=wire(group="brokerMemberGroup")):
    """The brokers of a broker group (request code 901)."""

    group: BrokerData
