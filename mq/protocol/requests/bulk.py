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
    """The header of request code 9006: a topic, and the first of the requested queue ids.

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
    """The header of request code 9007. The ranges to read are in the body.

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
    """Request code 9007, our own: return the messages of some queues of a topic in log order."""

    ext: BulkReadExt = msgspec.field(name="extFields")


class HoldLogExt(Ext):
    """A lease: the replica keeps its log from the physical offset ``position`` on for this number of seconds.

    The same ``lease_id`` renews or moves a lease; 0 seconds release it.
    """

    lease_id: str
    position: PhysicalOffset64
    seconds: I32


class HoldLog(Request, tag=int(Code.HOLD_LOG)):
    """Request code 9008, our own: keep the log files that a reader still needs."""

    ext: HoldLogExt = msgspec.field(name="extFields")


class ListLeases(Request, tag=int(Code.LIST_LEASES)):
    """Request code 9029, our own: return the readers for which this replica keeps log files."""


class LeaseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A reader with a lease: the replica keeps the log from ``position`` on for it, for ``seconds`` from now."""

    lease_id: str
    position: PhysicalOffset
    seconds: int


class LeaseList(Body, kw_only=True):
    """The leases of one replica; the lease that keeps most of the log comes first (request code 9029)."""

    leases: Sequence[LeaseInfo]


class AskTopicEndsExt(Ext):
    """The header of request code 9009. ``current``: the replica first asks the leader for the commit index."""

    current: bool = False


class AskTopicEnds(Request, tag=int(Code.ASK_TOPIC_ENDS)):
    """Request code 9009, our own: return the first and last offsets of the queues of the topics in the body."""

    ext: AskTopicEndsExt = msgspec.field(name="extFields", default_factory=AskTopicEndsExt)


class TopicPlanReply(Reply):
    """The response header of request code 9006: identities of topic and log, and the queue id at which the next page
    begins (-1: none).

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
    """The response header of request code 9009: the role of the replica that responds."""

    role: str


class LogLeaseReply(Reply):
    """The response to request code 9008: for how many seconds the log is kept, and from which physical offset on."""

    seconds: int
    base_position: PhysicalOffset64
