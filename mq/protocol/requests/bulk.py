"""Our own requests 9006 to 9009 and 9029, for bulk reads of topics.

The bodies of requests and answers are in `mq.protocol.bulk` and `mq.protocol.topic_ends`; `docs/wire-protocol.md`
describes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.wire.fields import I32, I64, PhysicalOffset64
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class PlanTopicExt(Ext):
    """A topic and the first queue id of the requested queues.

    With ``detail`` the answer contains sizes of queues and their offsets at the beginnings of log files. With
    ``current`` the replica first asks the leader for the commit index.
    """

    topic: str
    first_queue: I32 = 0
    detail: bool = False
    current: bool = False


class PlanTopic(Request, tag=int(Code.PLAN_TOPIC)):
    """Request code 9006, our own: return the extent of a topic on a replica, for planning a read."""

    ext: PlanTopicExt = msgspec.field(name="extFields")


class BulkReadExt(Ext):
    """The request of a bulk read, apart from the ranges in the body.

    ``topic_identity`` empty matches any; ``bytes_max`` limits the records in the answer; without ``bodies`` these are
    removed from records. With ``offsets_only`` the answer only says up to which offsets messages exist, unless tags are
    selected. ``client_id`` is for figures. ``wait_ms`` is how long the answer may wait for messages.
    """

    topic: str
    bytes_max: I32
    topic_identity: str = ""
    bodies: bool = True
    offsets_only: bool = False
    tags: str = "*"
    client_id: str = ""
    allow_leader: bool = False
    wait_ms: I32 = 0


class BulkRead(Request, tag=int(Code.BULK_READ)):
    """Request code 9007, our own: return messages of some queues of a topic in log order."""

    ext: BulkReadExt = msgspec.field(name="extFields")


class HoldLogExt(Ext):
    """A lease: this replica keeps its log from the physical offset ``position`` on for this many seconds.

    The same ``lease_id`` renews or moves it; 0 seconds release it.
    """

    lease_id: str
    position: PhysicalOffset64
    seconds: I32


class HoldLog(Request, tag=int(Code.HOLD_LOG)):
    """Request code 9008, our own: keep log files for a reader."""

    ext: HoldLogExt = msgspec.field(name="extFields")


class ListLeases(Request, tag=int(Code.LIST_LEASES)):
    """Request code 9029, our own: return the readers for which this replica keeps its log."""


class LeaseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A reader: the log is kept for it from ``position`` on, for ``seconds`` from now."""

    lease_id: str
    position: PhysicalOffset
    seconds: int


class LeaseList(Body, kw_only=True):
    """The leases of one replica, the one that holds most first (request code 9029)."""

    leases: Sequence[LeaseInfo]


class AskTopicEndsExt(Ext):
    """Whether the replica first asks the leader for the commit index (``current``). The body names the topics."""

    current: bool = False


class AskTopicEnds(Request, tag=int(Code.ASK_TOPIC_ENDS)):
    """Request code 9009, our own: return the first and last offsets of the queues of many topics."""

    ext: AskTopicEndsExt = msgspec.field(name="extFields", default_factory=AskTopicEndsExt)


class TopicPlanReply(Reply):
    """Fields besides the plan of a topic (9006): identities of topic and log, and where the next page begins, -1 for
    none.

    The fields of the archive are set if the group has one: its place, and the last archived entry, whose file ends at
    ``archive_position``.
    """

    topic_identity: str
    log_identity: str
    role: str
    read_queues: I32
    next_queue: I32
    base_position: PhysicalOffset64
    segment_bytes: I64 | None = None
    archive_url: str | None = None
    archive_endpoint_url: str | None = None
    archive_index: I64 | None = None
    archive_term: I64 | None = None
    archive_position: PhysicalOffset64 | None = None
    archive_chain: I64 | None = None


class TopicEndsReply(Reply):
    """The role of the answering replica."""

    role: str


class LogLeaseReply(Reply):
    """The number of seconds for which the log is kept, and the physical offset at which it begins."""

    seconds: int
    base_position: PhysicalOffset64
