"""Name servers: routes, clusters, topics, their key-value table and their settings."""

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
    """One topic. With ``accept_standard_json_only`` numeric keys must be quoted, as our answers always do."""

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
    """A broker group: ``host:port`` of each broker by its id. Id 0 is the leader."""

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
    """All broker groups by name, and the names of the groups in each cluster (request code 106)."""

    brokers: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    clusters: dict[str, list[str]] = msgspec.field(default_factory=dict)


class GetAllTopicListFromNameserver(Request, tag=int(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)):
    """Request code 206: return all topics."""


class DeleteTopicInNamesrvExt(Ext):
    """One topic, in all clusters or in one."""

    topic: str
    cluster_name: str | None = None


class DeleteTopicInNamesrv(Request, tag=int(Code.DELETE_TOPIC_IN_NAMESRV)):
    """Request code 216: delete the route of a topic."""

    ext: DeleteTopicInNamesrvExt = msgspec.field(name="extFields")


class BrokerNameExt(Ext):
    """One broker group."""

    broker_name: str


class WipeWritePermOfBroker(Request, tag=int(Code.WIPE_WRITE_PERM_OF_BROKER)):
    """Request code 205: revoke the write permission of a broker group."""

    ext: BrokerNameExt = msgspec.field(name="extFields")


class WipedTopicsReply(Reply):
    """The number of topics that a broker group lost its write permission for (205)."""

    wipe_topic_count: int


class AddWritePermOfBroker(Request, tag=int(Code.ADD_WRITE_PERM_OF_BROKER)):
    """Request code 327: restore the write permission of a broker group."""

    ext: BrokerNameExt = msgspec.field(name="extFields")


class AddedTopicsReply(Reply):
    """The number of topics that a broker group got its write permission for (327)."""

    add_topic_count: int


class NamespaceExt(Ext):
    """A namespace of the key-value table."""

    namespace: str


class KvKeyExt(NamespaceExt):
    """A key of the key-value table."""

    key: str


class KvExt(KvKeyExt):
    """A key of the key-value table and its value."""

    value: str


class PutKvConfig(Request, tag=int(Code.PUT_KV_CONFIG)):
    """Request code 100: store a value."""

    ext: KvExt = msgspec.field(name="extFields")


class GetKvConfig(Request, tag=int(Code.GET_KV_CONFIG)):
    """Request code 101: read a value."""

    ext: KvKeyExt = msgspec.field(name="extFields")


class DeleteKvConfig(Request, tag=int(Code.DELETE_KV_CONFIG)):
    """Request code 102: delete a value."""

    ext: KvKeyExt = msgspec.field(name="extFields")


class GetKvlistByNamespace(Request, tag=int(Code.GET_KVLIST_BY_NAMESPACE)):
    """Request code 219: return all values of a namespace."""

    ext: NamespaceExt = msgspec.field(name="extFields")


class RegisterTopicInNamesrv(Request, tag=int(Code.REGISTER_TOPIC_IN_NAMESRV)):
    """Request code 217: register a topic; its queues are in the body."""

    ext: TopicExt = msgspec.field(name="extFields")


class ClusterExt(Ext):
    """One cluster."""

    cluster: str


class GetTopicsByCluster(Request, tag=int(Code.GET_TOPICS_BY_CLUSTER)):
    """Request code 224: return the topics of a cluster."""

    ext: ClusterExt = msgspec.field(name="extFields")


class GetSystemTopicListFromNs(Request, tag=int(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)):
    """Request code 304: return topics named like clusters and broker groups."""


class GetUnitTopicList(Request, tag=int(Code.GET_UNIT_TOPIC_LIST)):
    """Request code 311: return topics of units."""


class GetHasUnitSubTopicList(Request, tag=int(Code.GET_HAS_UNIT_SUB_TOPIC_LIST)):
    """Request code 312: return topics subscribed by a unit."""


class GetHasUnitSubUnunitTopicList(Request, tag=int(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)):
    """Request code 313: return topics subscribed by a unit that do not belong to a unit."""


class UpdateNamesrvConfig(Request, tag=int(Code.UPDATE_NAMESRV_CONFIG)):
    """Request code 318: change settings of a running name server; they are in the body."""


class GetNamesrvConfig(Request, tag=int(Code.GET_NAMESRV_CONFIG)):
    """Request code 319: return the settings of a name server."""


class MemberGroupExt(Ext, rename=wire(cluster="clusterName")):
    """One broker group."""

    cluster: str
    broker_name: str


class GetBrokerMemberGroup(Request, tag=int(Code.GET_BROKER_MEMBER_GROUP)):
    """Request code 901: return the brokers of a group."""

    ext: MemberGroupExt = msgspec.field(name="extFields")


class BrokerMemberGroup(Body, rename=wire(group="brokerMemberGroup")):
    """The brokers of a group (request code 901)."""

    group: BrokerData
