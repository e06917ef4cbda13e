"""Reports of clients to brokers: heartbeats, subscriptions, members of groups, locks of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import I32, I64, wire
from mq.protocol.wire.json_body import CLIENT_VALUES_MAX, Body
from mq.protocol.wire.queue_tables import QueueRef
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class HeartBeat(Request, tag=int(Code.HEART_BEAT)):
    """34: a heartbeat of a client; its groups and subscriptions are in the body."""


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
    """A client of a proxy, as a member of a consumer group: one of many on the proxy's connection. Our own clients that
    pop name themselves so, too, without an address.

    ``subscriptions`` are its topics, each with the expression and its type.
    """

    client_id: str
    group: str
    address: str
    language: str = "OTHER"
    consume_type: str = "CONSUME_PASSIVELY"
    subscriptions: Sequence[tuple[str, str, str]] = ()


class HeartbeatOfProxy(HeartbeatData, rename=wire(proxied_clients="raftmqClientsBehind", **HEARTBEAT_NAMES)):
    """A heartbeat (request code 34) from a proxy, with all clients behind it. Other clients leave them out."""

    proxied_clients: Sequence[ClientBehindProxy] = ()


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


class ConsumerList(Body, rename=wire(consumer_ids="consumerIdList")):
    """The client ids of a group (request code 38)."""

    consumer_ids: Sequence[str] = ()


class ConsumerListReply(Reply):
    """38: whether members of the group do not all subscribe to the same; not RocketMQ's, and missing if they do."""

    raftmq_subscriptions_differ: bool | None = None


class NotifyConsumerIdsChanged(Request, tag=int(Code.NOTIFY_CONSUMER_IDS_CHANGED)):
    """40, broker to client, one-way: the members of a group have changed."""

    ext: ConsumerGroupExt = msgspec.field(name="extFields")


class LockBatchMq(Request, tag=int(Code.LOCK_BATCH_MQ)):
    """41: lock queues for ordered consumption; they are in the body."""


class QueueLocks(Body, rename=wire(group="consumerGroup", queues="mqSet")):
    """Queues that a client of a group locks, or unlocks (request codes 41 and 42)."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    client_id: str
    group: str
    queues: Sequence[QueueRef] = ()


class LockedQueues(Body, rename=wire(queues="lockOKMQSet")):
    """The requested queues that the client now holds (request code 41)."""

    queues: Sequence[QueueRef] = ()


class UnlockBatchMq(Request, tag=int(Code.UNLOCK_BATCH_MQ)):
    """42: unlock queues; they are in the body."""


class CheckClientConfig(Request, tag=int(Code.CHECK_CLIENT_CONFIG)):
    """46: check whether a subscription is valid; it is in the body."""


class CheckClientConfigBody(Body, rename=wire(subscription="subscriptionData")):
    """A client's query whether a subscription is valid (request code 46)."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    client_id: str = ""
    group: str = ""
    subscription: SubscriptionData | None = None
    namespace: str | None = None
