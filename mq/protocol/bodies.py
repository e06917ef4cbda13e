"""Bodies of requests and responses, as values with our field names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from mq.protocol.json_body import CLIENT_VALUES_MAX, Body
from mq.protocol.registration import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from mq.protocol.wire_names import I32, I64, wire

__all__ = [
    "Body",
    "BrokerData",
    "CheckClientConfigBody",
    "ClientBehindProxy",
    "ClusterInfo",
    "ConsumerData",
    "ConsumerList",
    "DataVersion",
    "HeartbeatData",
    "HeartbeatOfProxy",
    "KVTable",
    "ProducerData",
    "QueueData",
    "RegisterBrokerBody",
    "Route",
    "SubscriptionData",
    "TopicConfig",
    "TopicConfigTable",
    "TopicList",
]

# -- routes ------------------------------------------------------------------------------------------------------------


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


class ClusterInfo(Body, rename=wire(brokers="brokerAddrTable", clusters="clusterAddrTable")):
    """All broker groups by name, and the names of the groups in each cluster (request code 106)."""

    brokers: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    clusters: dict[str, list[str]] = msgspec.field(default_factory=dict)


class TopicList(Body, rename=wire(topics="topicList")):
    """Names of topics (request code 206)."""

    topics: Sequence[str] = ()
    broker_addr: str | msgspec.UnsetType = msgspec.UNSET


class KVTable(Body):
    """Names and values (request codes 28 and 219)."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


# -- clients -----------------------------------------------------------------------------------------------------------


class SubscriptionData(
    Body, gc=False, rename=wire(expression="subString", version="subVersion", tags="tagsSet", codes="codeSet")
):
    """A group's subscription to a topic. ``version`` grows with each change; ``codes`` are the hashes of its tags.

    A heartbeat may contain thousands. They refer only to texts and numbers, so the garbage collector does not track
    them: scanning a few such heartbeats took 0.2 s.
    """

    topic: str
    expression: str = "*"
    tags: tuple[str, ...] = ()
    codes: tuple[I32, ...] = ()
    version: I64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ConsumerData(Body, rename=wire(group="groupName", subscriptions="subscriptionDataSet")):
    """A consumer group in a heartbeat."""

    group: str
    subscriptions: Sequence[SubscriptionData] = ()
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    unit_mode: bool = False


class ProducerData(Body, rename=wire(group="groupName")):
    """A producer group in a heartbeat."""

    group: str


HEARTBEAT_NAMES: Final = {"client_id": "clientID", "consumers": "consumerDataSet", "producers": "producerDataSet"}


class HeartbeatData(Body, rename=wire(**HEARTBEAT_NAMES)):
    """A client and its groups (request code 34)."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    client_id: str
    consumers: Sequence[ConsumerData] = ()
    producers: Sequence[ProducerData] = ()


class ClientBehindProxy(Body, rename=wire()):
    """A client of a proxy, as a member of a consumer group: one of many on the proxy's connection.

    ``subscriptions`` are its topics, each with the expression and its type.
    """

    client_id: str
    group: str
    address: str
    language: str = "OTHER"
    consume_type: str = "CONSUME_PASSIVELY"
    subscriptions: Sequence[tuple[str, str, str]] = ()


class HeartbeatOfProxy(HeartbeatData, rename=wire(behind="raftmqClientsBehind", **HEARTBEAT_NAMES)):
    """Request code 34 of a proxy: a heartbeat that also names all clients behind it. Others send none of them."""

    behind: Sequence[ClientBehindProxy] = ()


class CheckClientConfigBody(Body, rename=wire(subscription="subscriptionData")):
    """A client's query whether a subscription is valid (request code 46)."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    client_id: str = ""
    group: str = ""
    subscription: SubscriptionData | None = None
    namespace: str | None = None


class ConsumerList(Body, rename=wire(consumer_ids="consumerIdList")):
    """The client ids of a group (request code 38)."""

    consumer_ids: Sequence[str] = ()
