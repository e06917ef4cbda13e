"""Requests about lite topics. Their codes do not fit the binary header, so clients send them in JSON."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import ClassVar

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.topics import QueueEnds
from mq.protocol.wire.fields import I32, I64, QueueOffset64, wire
from mq.protocol.wire.json_body import CLIENT_VALUES_MAX, Body
from mq.protocol.wire.request import Ext, Request


class PopLiteExt(
    Ext,
    rename=wire(
        max_messages="maxMsgNum",
        invisible_ms="invisibleTime",
        poll_ms="pollTime",
        born_ms="bornTime",
        says_subscriptions="raftmqSaysSubscriptions",
    ),
):
    """The header of request code 200070: the client, its group, the parent topic, and the maximum number of messages.

    Messages stay invisible to others for ``invisible_ms``. The request may be held for ``poll_ms`` from its arrival on.
    A request with the ``attempt_id`` of an earlier one gets the same messages again. ``says_subscriptions``: the client
    sends its subscriptions again when the broker does not know it; then the request is not held.
    """

    client_id: str
    consumer_group: str
    topic: str
    max_messages: I32
    invisible_ms: I64
    poll_ms: I64
    born_ms: I64 = 0
    attempt_id: str | None = None
    says_subscriptions: bool = False


class PopLiteMessage(Request, tag=int(Code.POP_LITE_MESSAGE)):
    """Request code 200070: pop messages of the lite topics that a client subscribes to."""

    ext: PopLiteExt = msgspec.field(name="extFields")


class ControlLiteSubscriptions(Request, tag=int(Code.LITE_SUBSCRIPTION_CTL)):
    """Request code 200071: change the subscriptions of clients. The body is a `LiteSubscriptionSet`."""


class Action(Enum):
    """The content of a client's report: a change of its subscriptions, or all of them."""

    PARTIAL_ADD = "PARTIAL_ADD"
    PARTIAL_REMOVE = "PARTIAL_REMOVE"
    COMPLETE_ADD = "COMPLETE_ADD"
    COMPLETE_REMOVE = "COMPLETE_REMOVE"


class OffsetKind(Enum):
    """The unit in which a client says where its group starts to read."""

    POLICY = "POLICY"
    OFFSET = "OFFSET"
    TAIL_N = "TAIL_N"
    TIMESTAMP = "TIMESTAMP"


class OffsetOption(Body):
    """The place at which a group starts to read the lite topics of a request: offset ``value``, ``value`` messages
    before the end, or the first message stored at or after ``value`` (ms since the epoch).
    """

    type: OffsetKind
    value: I64 = 0


class LiteSubscription(Body, rename=wire(lite_topics="liteTopicSet")):
    """Lite topics to which a client subscribes, or from which it unsubscribes. ``topic`` is their parent."""

    action: Action
    client_id: str
    group: str
    topic: str
    lite_topics: list[str] = msgspec.field(default_factory=list)
    offset_option: OffsetOption | None = None
    version: I64 = 0


class LiteSubscriptionSet(Body, rename=wire(subscriptions="subscriptionSet")):
    """The subscriptions of several clients (body of request code 200071)."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    subscriptions: list[LiteSubscription] = msgspec.field(default_factory=list)


class AckLiteExt(Ext):
    """The header of request code 200072: a message, named by its receipt in ``extra_info``, and its lite topic."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: QueueOffset64
    lite_topic: str


class AckLiteMessage(Request, tag=int(Code.ACK_LITE_MESSAGE)):
    """Request code 200072: acknowledge a message of a lite topic. `AckMessage` with a lite topic does the same."""

    ext: AckLiteExt = msgspec.field(name="extFields")


class NotifyUnsubscribeLiteExt(Ext):
    """The header of request code 200073: the client, its group, and the lite topic that another client reads now."""

    lite_topic: str
    consumer_group: str
    client_id: str


class NotifyUnsubscribeLite(Request, tag=int(Code.NOTIFY_UNSUBSCRIBE_LITE)):
    """Request code 200073, broker to client: another client of the group reads this lite topic now."""

    ext: NotifyUnsubscribeLiteExt = msgspec.field(name="extFields")


class GetBrokerLiteInfo(Request, tag=int(Code.GET_BROKER_LITE_INFO)):
    """Request code 200074: return figures of a broker's lite topics, and the topics and groups that have some."""


class BrokerLiteInfo(
    Body,
    rename=wire(
        topics_max="maxLmqNum",
        topic_count="currentLmqNum",
        subscription_count="liteSubscriptionCount",
        open_count="orderInfoCount",
        queue_count="cqTableSize",
        offset_count="offsetTableSize",
        news_count="eventMapSize",
        expirations="topicMeta",
        groups="groupMeta",
    ),
):
    """Figures of all lite topics of a broker (response to request code 200074).

    ``topic_count`` of at most ``topics_max`` lite topics exist. From ``open_count`` of them, groups have popped
    messages that are not acknowledged yet. ``queue_count`` are the queues of all topics, ``offset_count`` the offsets
    of groups in lite topics, and for ``news_count`` clients there may be messages. ``expirations``: by parent topic,
    the minutes after its last message at which a lite topic ends; ``groups``: the groups that are bound to it.
    """

    store_type: str = ""
    topics_max: int = 0
    topic_count: int = 0
    subscription_count: int = 0
    open_count: int = 0
    queue_count: int = 0
    offset_count: int = 0
    news_count: int = 0
    expirations: dict[str, int] = msgspec.field(default_factory=dict)
    groups: dict[str, list[str]] = msgspec.field(default_factory=dict)


class ParentTopicExt(Ext):
    """The header of request code 200075: a topic that has lite topics."""

    topic: str


class GetParentTopicInfo(Request, tag=int(Code.GET_PARENT_TOPIC_INFO)):
    """Request code 200075: return the number of lite topics of a topic, and the groups that are bound to the topic."""

    ext: ParentTopicExt = msgspec.field(name="extFields")


class ParentTopicInfo(Body, rename=wire(expiration_minutes="ttl", broker_count="lmqNum", topic_count="liteTopicCount")):
    """The response to 200075. ``topic_count`` counts the lite topics of the topic, ``broker_count`` the broker's."""

    topic: str
    expiration_minutes: int = -1
    groups: list[str] | None = None
    broker_count: int = 0
    topic_count: int = 0


class LiteTopicExt(Ext):
    """The header of request code 200076: a lite topic and its parent."""

    parent_topic: str
    lite_topic: str


class GetLiteTopicInfo(Request, tag=int(Code.GET_LITE_TOPIC_INFO)):
    """Request code 200076: return the offsets of a lite topic, and the clients that subscribe to it."""

    ext: LiteTopicExt = msgspec.field(name="extFields")


class LiteSubscriber(Body, rename=wire()):
    """A client that subscribes to a lite topic. ``*`` means all clients of a group that reads all lite topics."""

    client_id: str
    group: str


class LiteTopicInfo(Body, rename=wire(subscribers="subscriber", ends="topicOffset", is_there="shardingToBroker")):
    """The response to request code 200076. ``is_there``: whether the broker stores messages of the lite topic."""

    parent_topic: str
    lite_topic: str
    subscribers: list[LiteSubscriber] = msgspec.field(default_factory=list)
    ends: QueueEnds = msgspec.field(default_factory=QueueEnds)
    is_there: bool = False


class LiteClientExt(Ext):
    """The header of request code 200077: a client of a group, and the maximum number of subscriptions to return."""

    parent_topic: str
    group: str
    client_id: str
    max_count: I32 = 1000


class GetLiteClientInfo(Request, tag=int(Code.GET_LITE_CLIENT_INFO)):
    """Request code 200077: return the subscriptions of a client."""

    ext: LiteClientExt = msgspec.field(name="extFields")


class LiteClientInfo(
    Body,
    rename=wire(
        heard_ms="lastAccessTime",
        consumed_ms="lastConsumeTime",
        topic_count="liteTopicCount",
        lite_topics="liteTopicSet",
    ),
):
    """The subscriptions of a client (response to request code 200077).

    ``topic_count`` is -1 for a client that has not sent its subscriptions. ``lite_topics`` is ``*`` for one that
    reads all. The broker heard from it last at ``heard_ms``; ``consumed_ms`` is always 0.
    """

    parent_topic: str
    group: str
    client_id: str
    heard_ms: int = 0
    consumed_ms: int = 0
    topic_count: int = -1
    lite_topics: list[str] | None = None


class LiteGroupExt(Ext, rename=wire(top_count="topK")):
    """The header of 200078: a group, and one lite topic or the ``top_count`` ones in which the group is behind most."""

    group: str
    lite_topic: str | None = None
    top_count: I32 = 0


class GetLiteGroupInfo(Request, tag=int(Code.GET_LITE_GROUP_INFO)):
    """Request code 200078: return how far a group is behind in lite topics."""

    ext: LiteGroupExt = msgspec.field(name="extFields")


class LiteLag(Body, rename=wire(lag="lagCount", oldest_ms="earliestUnconsumedTimestamp")):
    """A lite topic with ``lag`` messages not consumed by a group. The oldest of them was stored at ``oldest_ms``."""

    lite_topic: str
    lag: int = 0
    oldest_ms: int = -1


class LiteGroupInfo(
    Body,
    rename=wire(
        oldest_ms="earliestUnconsumedTimestamp",
        lag="totalLagCount",
        progress="liteTopicOffsetWrapper",
        longest="lagCountTopK",
        oldest="lagTimestampTopK",
    ),
):
    """The lag of a group in the requested lite topic, or in all of them (response to request code 200078).

    ``lag`` messages are not consumed, and the first of them was stored at ``oldest_ms`` (-1: there is none).
    ``longest`` are the lite topics with the longest lag, ``oldest`` the lite topics that have waited longest. For a
    lite topic that is not there, ``lag`` is -1.
    """

    group: str
    parent_topic: str
    lite_topic: str | None = None
    oldest_ms: int = -1
    lag: int = 0
    progress: GroupProgress | None = None
    longest: list[LiteLag] | None = None
    oldest: list[LiteLag] | None = None


class LiteDispatchExt(Ext):
    """The header of request code 200079: a group, and one of its clients, or none for all clients."""

    group: str
    client_id: str | None = None


class TriggerLiteDispatch(Request, tag=int(Code.TRIGGER_LITE_DISPATCH)):
    """Request code 200079: serve the waiting pops of these clients now, in case an arrival was missed."""

    ext: LiteDispatchExt = msgspec.field(name="extFields")


class Policy(IntEnum):
    """The values of an `OffsetOption` of kind `OffsetKind.POLICY`."""

    LAST = 0
    """Where the group left off; a group that was not there before begins at the first message."""
    MIN = 1
    MAX = 2
