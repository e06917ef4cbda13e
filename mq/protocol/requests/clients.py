"""Requests in which clients report to brokers: heartbeats, subscriptions, members of groups, locks of queues."""

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
    """Request code 34: a heartbeat of a client, with its groups and subscriptions in the body."""


class SubscriptionData(
    Body, gc=False, rename=wire(expression="subString", version="subVersion", tags="tagsSet", codes="codeSet")
):
    """A group's subscription to a topic. ``version`` grows with each change; ``codes`` are the hashes of the tags.

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
    """A client's membership in a consumer group, as a heartbeat reports it."""

    group: str
    subscriptions: Sequence[SubscriptionData] = ()
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    unit_mode: bool = False


class ProducerData(Body, rename=wire(group="groupName")):
    """A client's membership in a producer group, as a heartbeat reports it."""

    group: str


HEARTBEAT_NAMES: Final = {"client_id": "clientID", "consumers": "consumerDataSet", "producers": "producerDataSet"}


class HeartbeatData(Body, rename=wire(**HEARTBEAT_NAMES)):
    """The body of a heartbeat: a client and its groups (request code 34)."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    client_id: str
    consumers: Sequence[ConsumerData] = ()
    producers: Sequence[ProducerData] = ()


class ClientBehindProxy(Body, rename=wire()):
    """A member of a consumer group whose requests come over a proxy's connection. Our own popping clients describe
    themselves so, too, without an address.

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
    """The header of request code 35: a client leaves its producer group, its consumer group, or both."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class UnregisterClient(Request, tag=int(Code.UNREGISTER_CLIENT)):
    """Request code 35: remove a client from its groups."""

    ext: UnregisterClientExt = msgspec.field(name="extFields")


class ConsumerGroupExt(Ext):
    """The header of a request about one consumer group."""

    consumer_group: str


class GetConsumerListByGroup(Request, tag=int(Code.GET_CONSUMER_LIST_BY_GROUP)):
    """Request code 38: return the client ids of a group's members."""

    ext: ConsumerGroupExt = msgspec.field(name="extFields")


class ConsumerList(Body, rename=wire(consumer_ids="consumerIdList")):
    """The client ids of a group's members (request code 38)."""

    consumer_ids: Sequence[str] = ()


class ConsumerListReply(Reply):
    """The response header of 38, not RocketMQ's: says that the members' subscriptions differ. Missing if they agree."""

    raftmq_subscriptions_differ: bool | None = None


class NotifyConsumerIdsChanged(Request, tag=int(Code.NOTIFY_CONSUMER_IDS_CHANGED)):
    """Request code 40, broker to client, one-way: the members of a group have changed."""

    ext: ConsumerGroupExt = msgspec.field(name="extFields")


class LockBatchMq(Request, tag=int(Code.LOCK_BATCH_MQ)):
    """Request code 41: lock the queues in the body for ordered consumption."""


class QueueLocks(Body, rename=wire(group="consumerGroup", queues="mqSet")):
    """Queues that a member of a group locks or unlocks (request codes 41 and 42)."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    client_id: str
    group: str
    queues: Sequence[QueueRef] = ()


class LockedQueues(Body, rename=wire(queues="lockOKMQSet")):
    """The requested queues that the client has locked now (request code 41)."""

    queues: Sequence[QueueRef] = ()


class UnlockBatchMq(Request, tag=int(Code.UNLOCK_BATCH_MQ)):
    """Request code 42: unlock the queues in the body."""


class CheckClientConfig(Request, tag=int(Code.CHECK_CLIENT_CONFIG)):
    """Request code 46: check whether the subscription in the body is valid."""


class CheckClientConfigBody(Body, rename=wire(subscription="subscriptionData")):
    """A client and the subscription that it wants checked (request code 46)."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    client_id: str = ""
    group: str = ""
    subscription: SubscriptionData | None = None
    namespace: str | None = None
