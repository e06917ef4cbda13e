"""Our own requests 9019 and 9023, which list and restore deleted topics."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests.topics import TopicExt
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.request import Request


class ListDeletedTopics(Request, tag=int(Code.LIST_DELETED_TOPICS)):
    """Request code 9019, our own, to a leader: return the deleted topics that can be restored."""


class RestoreTopic(Request, tag=int(Code.RESTORE_TOPIC)):
    """Request code 9023, our own: restore a deleted topic."""

    ext: TopicExt = msgspec.field(name="extFields")


class DeletedTopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted topic that can be restored. Times are milliseconds since 1970.

    ``by`` says who deleted it. ``messages`` are the stored messages; from ``until_ms`` on, retention has deleted the
    last of them, if its settings stay as they are and the disk does not fill. ``groups`` had offsets in it.
    ``along_with`` is the topic with which this one was deleted and comes back; empty for all others.
    """

    topic: str
    deleted_ms: int
    by: str
    queues: int
    messages: int
    groups: Sequence[str]
    until_ms: int
    along_with: str = ""


class DeletedTopicList(Body, kw_only=True):
    """The deleted topics of a broker group, in order of deletion."""

    topics: Sequence[DeletedTopicInfo]
