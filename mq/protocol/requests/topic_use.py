"""Our own request 9032: the size of a topic's queues, and the latest senders of the topic."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests.topics import TopicExt
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.request import Request


class AskTopicUse(Request, tag=int(Code.ASK_TOPIC_USE)):
    """Request code 9032, our own: return the bytes in each queue of a topic, and who sent its newest messages."""

    ext: TopicExt = msgspec.field(name="extFields")


class QueueSize(msgspec.Struct, frozen=True, array_like=True):
    """A queue and the stored bytes of its messages; an estimate from some messages if ``is_exact`` is False."""

    queue_id: int
    nbytes: int
    is_exact: bool


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    """A client that sent some of the newest messages of a topic.

    Attributes:
        address: without the port; empty if the record has none, as for an IPv6 address.
        messages: the number of its messages among the ones that were looked at.
        last_ms: when the newest of them was stored, in epoch milliseconds.
        client_id, language, version, group: of the producer, if it is connected to this replica now; else empty, or 0.
    """

    address: str
    messages: int
    last_ms: int
    client_id: str = ""
    language: str = ""
    version: int = 0
    group: str = ""


class TopicUse(Body, kw_only=True):
    """The queues and senders of a topic as one replica knows them (request code 9032).

    Attributes:
        queues: the queues, without those that the replica cannot read now.
        senders: the senders of the newest messages, the latest first.
        looked_at: how many messages were examined for this, in all queues.
    """

    queues: Sequence[QueueSize] = ()
    senders: Sequence[Sender] = ()
    looked_at: int = 0
