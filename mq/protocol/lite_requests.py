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
