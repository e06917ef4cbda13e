"""Typed requests about lite topics. See `mq.protocol.requests`.

Their codes do not fit the binary header, so they come in JSON.
"""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests import Ext, Request
from mq.protocol.wire_names import I32, I64, QueueOffset64, wire


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
    """The client and its group, the parent topic, and how many messages it wants at most.

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
    """200070: messages of the lite topics that a client subscribes to."""

    ext: PopLiteExt = msgspec.field(name="extFields")


class ControlLiteSubscriptions(Request, tag=int(Code.LITE_SUBSCRIPTION_CTL)):
    """200071: what clients subscribe to; in the body, see `mq.protocol.lite_bodies.LiteSubscriptionSet`."""


class AckLiteExt(Ext):
    """A message by its receipt in ``extra_info``, and its lite topic."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: QueueOffset64
    lite_topic: str


class AckLiteMessage(Request, tag=int(Code.ACK_LITE_MESSAGE)):
    """200072: a message of a lite topic was handled. `AckMessage` with a lite topic does the same."""

    ext: AckLiteExt = msgspec.field(name="extFields")


class NotifyUnsubscribeLiteExt(Ext):
    """The client and its group, and the lite topic that it does not get any more."""

    lite_topic: str
    consumer_group: str
    client_id: str


class NotifyUnsubscribeLite(Request, tag=int(Code.NOTIFY_UNSUBSCRIBE_LITE)):
    """200073, from a broker to a client: another client of the group has taken over a lite topic."""

    ext: NotifyUnsubscribeLiteExt = msgspec.field(name="extFields")


class GetBrokerLiteInfo(Request, tag=int(Code.GET_BROKER_LITE_INFO)):
    """200074: figures of all lite topics of a broker, and which topics and groups have some."""


class ParentTopicExt(Ext):
    """A topic that has lite topics."""

    topic: str


class GetParentTopicInfo(Request, tag=int(Code.GET_PARENT_TOPIC_INFO)):
    """200075: how many lite topics a topic has, and which groups are bound to it."""

    ext: ParentTopicExt = msgspec.field(name="extFields")


class LiteTopicExt(Ext):
    """A lite topic and its parent."""

    parent_topic: str
    lite_topic: str


class GetLiteTopicInfo(Request, tag=int(Code.GET_LITE_TOPIC_INFO)):
    """200076: the offsets of a lite topic, and who subscribes to it."""

    ext: LiteTopicExt = msgspec.field(name="extFields")


class LiteClientExt(Ext):
    """A client of a group; of its subscriptions, ``max_count`` are wanted at most."""

    parent_topic: str
    group: str
    client_id: str
    max_count: I32 = 1000


class GetLiteClientInfo(Request, tag=int(Code.GET_LITE_CLIENT_INFO)):
    """200077: what a client subscribes to."""

    ext: LiteClientExt = msgspec.field(name="extFields")


class LiteGroupExt(Ext, rename=wire(top_count="topK")):
    """A group; a lite topic, or the ``top_count`` of those in which the group is behind most."""

    group: str
    lite_topic: str | None = None
    top_count: I32 = 0


class GetLiteGroupInfo(Request, tag=int(Code.GET_LITE_GROUP_INFO)):
    """200078: how far behind a group is."""

    ext: LiteGroupExt = msgspec.field(name="extFields")


class LiteDispatchExt(Ext):
    """A group, and one of its clients or none for all."""

    group: str
    client_id: str | None = None


class TriggerLiteDispatch(Request, tag=int(Code.TRIGGER_LITE_DISPATCH)):
    """200079: look now at all that clients subscribe to, in case news of a message was lost."""

    ext: LiteDispatchExt = msgspec.field(name="extFields")
