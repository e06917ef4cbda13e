"""Typed requests, second half: clients and groups, topic administration, name servers. See `mq.protocol.requests`."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests import Ext, Request
from mq.protocol.wire_names import I32, I64, QueueOffset64, wire

# -- clients and groups ------------------------------------------------------------------------------------------------


class HeartBeat(Request, tag=int(Code.HEART_BEAT)):
    """34: a heartbeat of a client; its groups and subscriptions are in the body."""


class UnregisterClientExt(Ext, rename=wire(client_id="clientID")):
    """A client leaves its producer group, its consumer group, or both."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class UnregisterClient(Request, tag=int(Code.UNREGISTER_CLIENT)):
    """35: a client unregisters."""

    ext: UnregisterClientExt = msgspec.field(name="extFields")


class ConsumerGroupExt(Ext):
    """One consumer group."""

    consumer_group: str


class GetConsumerListByGroup(Request, tag=int(Code.GET_CONSUMER_LIST_BY_GROUP)):
    """38: the client ids of a group."""

    ext: ConsumerGroupExt = msgspec.field(name="extFields")


class NotifyConsumerIdsChanged(Request, tag=int(Code.NOTIFY_CONSUMER_IDS_CHANGED)):
    """40, broker to client, one-way: the members of a group have changed."""

    ext: ConsumerGroupExt = msgspec.field(name="extFields")


class LockBatchMq(Request, tag=int(Code.LOCK_BATCH_MQ)):
    """41: lock queues for ordered consumption; they are in the body."""


class UnlockBatchMq(Request, tag=int(Code.UNLOCK_BATCH_MQ)):
    """42: unlock queues; they are in the body."""


class CheckClientConfig(Request, tag=int(Code.CHECK_CLIENT_CONFIG)):
    """46: check whether a subscription is valid; it is in the body."""


# -- brokers -----------------------------------------------------------------------------------------------------------


class UpdateAndCreateTopicExt(Ext):
    """A topic. ``perm`` is a sum of 4 read, 2 write, 1 inherit."""

    topic: str
    default_topic: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 | None = None
    order: bool = False
    attributes: str | None = None


class UpdateAndCreateTopic(Request, tag=int(Code.UPDATE_AND_CREATE_TOPIC)):
    """17: create a topic or change its queues."""

    ext: UpdateAndCreateTopicExt = msgspec.field(name="extFields")


class TopicExt(Ext):
    """One topic."""

    topic: str


class DeleteTopicInBrokerExt(TopicExt, rename=wire(access_key="AccessKey")):
    """A topic. ``operator``, which only our tools send, and ``access_key`` of the signature say who deletes it.

    ``restorable``, which only our tools send, says that it may be restored.
    """

    operator: str = ""
    restorable: bool = False
    access_key: str = ""


class DeleteTopicInBroker(Request, tag=int(Code.DELETE_TOPIC_IN_BROKER)):
    """215: delete a topic with its messages."""

    ext: DeleteTopicInBrokerExt = msgspec.field(name="extFields")


class GetAllTopicConfig(Request, tag=int(Code.GET_ALL_TOPIC_CONFIG)):
    """21: all topics of a broker."""


class GetBrokerRuntimeInfo(Request, tag=int(Code.GET_BROKER_RUNTIME_INFO)):
    """28: status figures of a broker."""


class ConsumeTimeSpanExt(Ext):
    """A topic and a consumer group."""

    topic: str
    group: str


class QueryConsumeTimeSpan(Request, tag=int(Code.QUERY_CONSUME_TIME_SPAN)):
    """303: the range of store times in each queue, and the progress of a group."""

    ext: ConsumeTimeSpanExt = msgspec.field(name="extFields")


class QueryConsumeQueueExt(Ext):
    """Entries of a consume queue from ``index`` on."""

    topic: str
    queue_id: I32
    index: QueueOffset64
    count: I32
    consumer_group: str | None = None


class QueryConsumeQueue(Request, tag=int(Code.QUERY_CONSUME_QUEUE)):
    """321: the content of a consume queue."""

    ext: QueryConsumeQueueExt = msgspec.field(name="extFields")


class ManageGroup(Request, tag=int(Code.MANAGE_GROUP)):
    """9001, our own: show or change the group's members; the command is in the body."""


class ForwardExt(Ext):
    """The origin of the request. ``identity`` is that of the replicated log; ``born_host`` the client's IPv4 address
    and port in the format of records, in hexadecimal; ``serialization`` the client's header encoding; ``client_id`` its
    id in the consumer group of the request, if known and relevant.
    """

    identity: str
    born_host: str
    serialization: I32
    client_id: str = ""


class Forward(Request, tag=int(Code.FORWARD)):
    """9002, our own: a replica forwards a client's request; the body is the complete frame of the request."""

    ext: ForwardExt = msgspec.field(name="extFields")


class AnnounceReplicaExt(Ext):
    """A replica and its client address ``host:port``; ``identity`` is that of the replicated log."""

    identity: str
    node_id: str
    address: str


class AnnounceReplica(Request, tag=int(Code.ANNOUNCE_REPLICA)):
    """9004, our own, to the leader of a group: the sender's client address."""

    ext: AnnounceReplicaExt = msgspec.field(name="extFields")


class ReportArchivedExt(Ext):
    """The archive at ``url`` has the log up to the entry ``index`` of ``term``, which ends before the physical offset
    ``pos``; ``chain`` is that after the entry. ``identity`` is that of the replicated log.

    ``begin_pos`` is where the archive begins; -1 if the sender does not know. ``manifest`` is "older" if the manifest
    has less than the group knows to be archived, "whole" if it has all of that again, and empty without news.
    """

    identity: str
    url: str
    index: int
    term: int
    pos: int
    chain: int
    begin_pos: int = -1
    manifest: str = ""


class ReportArchived(Request, tag=int(Code.REPORT_ARCHIVED)):
    """9018, our own, to the leader of a group: how much of the log the sender has archived."""

    ext: ReportArchivedExt = msgspec.field(name="extFields")


class AuthenticateReplicaExt(Ext):
    """``call`` and ``bound`` in the first request of a connection; the others in the second one. Bytes are hexadecimal.

    ``bound``: the proofs cover the listener's certificate. ``identity`` is that of the replicated log, ``node_id`` the
    calling replica, ``address`` the address that it dialled.
    """

    call: str = ""
    bound: bool = False
    proof: str = ""
    identity: str = ""
    node_id: str = ""
    address: str = ""


class AuthenticateReplica(Request, tag=int(Code.AUTHENTICATE_REPLICA)):
    """9005, our own, between replicas: both prove that they know the secret, see `raftlog.net.authentication`."""

    ext: AuthenticateReplicaExt = msgspec.field(name="extFields")


# -- name servers ------------------------------------------------------------------------------------------------------


class BrokerExt(Ext, rename=wire(address="brokerAddr", cluster="clusterName")):
    """One broker process: its group ("broker name"), its id in the group (0 is the leader) and its ``host:port``."""

    broker_name: str
    address: str
    cluster: str
    broker_id: I64


class RegisterBrokerExt(
    BrokerExt,
    rename=wire(ha_server_address="haServerAddr", heartbeat_timeout_ms="heartbeatTimeoutMillis", whole="raftmqWhole"),
):
    """``body_crc32`` is masked with 0x7FFFFFFF; 0 means that it was not computed.

    ``whole`` is our own: the body contains all topics of the group, so missing ones were deleted.
    """

    ha_server_address: str
    compressed: bool = False
    body_crc32: I32 = 0
    heartbeat_timeout_ms: I64 | None = None
    enable_acting_master: bool | None = None
    whole: bool = False


class RegisterBroker(Request, tag=int(Code.REGISTER_BROKER)):
    """103: a broker registers; its topics are in the body."""

    ext: RegisterBrokerExt = msgspec.field(name="extFields")


class UnregisterBroker(Request, tag=int(Code.UNREGISTER_BROKER)):
    """104: a broker unregisters."""

    ext: BrokerExt = msgspec.field(name="extFields")


class QueryDataVersion(Request, tag=int(Code.QUERY_DATA_VERSION)):
    """322: whether the name server has this version of the topics; the version is in the body."""

    ext: BrokerExt = msgspec.field(name="extFields")


class RouteExt(Ext):
    """One topic. With ``accept_standard_json_only`` numeric keys must be quoted, as our answers always do."""

    topic: str
    accept_standard_json_only: bool = False


class GetRouteinfoByTopic(Request, tag=int(Code.GET_ROUTEINFO_BY_TOPIC)):
    """105: the route of a topic."""

    ext: RouteExt = msgspec.field(name="extFields")


class GetBrokerClusterInfo(Request, tag=int(Code.GET_BROKER_CLUSTER_INFO)):
    """106: all brokers."""


class GetAllTopicListFromNameserver(Request, tag=int(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)):
    """206: all topics."""


class DeleteTopicInNamesrvExt(Ext):
    """One topic, in all clusters or in one."""

    topic: str
    cluster_name: str | None = None


class DeleteTopicInNamesrv(Request, tag=int(Code.DELETE_TOPIC_IN_NAMESRV)):
    """216: delete the route of a topic."""

    ext: DeleteTopicInNamesrvExt = msgspec.field(name="extFields")


class BrokerNameExt(Ext):
    """One broker group."""

    broker_name: str


class WipeWritePermOfBroker(Request, tag=int(Code.WIPE_WRITE_PERM_OF_BROKER)):
    """205: revoke the write permission of a broker group."""

    ext: BrokerNameExt = msgspec.field(name="extFields")


class AddWritePermOfBroker(Request, tag=int(Code.ADD_WRITE_PERM_OF_BROKER)):
    """327: restore the write permission of a broker group."""

    ext: BrokerNameExt = msgspec.field(name="extFields")


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
    """100: store a value."""

    ext: KvExt = msgspec.field(name="extFields")


class GetKvConfig(Request, tag=int(Code.GET_KV_CONFIG)):
    """101: read a value."""

    ext: KvKeyExt = msgspec.field(name="extFields")


class DeleteKvConfig(Request, tag=int(Code.DELETE_KV_CONFIG)):
    """102: delete a value."""

    ext: KvKeyExt = msgspec.field(name="extFields")


class GetKvlistByNamespace(Request, tag=int(Code.GET_KVLIST_BY_NAMESPACE)):
    """219: all values of a namespace."""

    ext: NamespaceExt = msgspec.field(name="extFields")
