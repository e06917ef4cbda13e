"""Typed requests: our own 9006 to 9009, by which topics are read in bulk. See `mq.protocol.requests`.

Their bodies and those of their answers are in `mq.protocol.bulk` and `mq.protocol.topic_ends`; `docs/wire-protocol.md`
describes them.
"""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests import Ext, Request
from mq.protocol.wire_names import I32, I64


class PlanTopicExt(Ext):
    """A topic of which some queues are asked about, from queue id ``first_queue`` on.

    With ``detail`` the answer says how large queues are and which offsets they have at the beginnings of log files.
    With ``current`` the replica first asks the leader what is committed.
    """

    topic: str
    first_queue: I32 = 0
    detail: bool = False
    current: bool = False


class PlanTopic(Request, tag=int(Code.PLAN_TOPIC)):
    """9006, our own: what a replica has of a topic, for whoever plans to read it."""

    ext: PlanTopicExt = msgspec.field(name="extFields")


class BulkReadExt(Ext):
    """What is wanted of a topic, besides the ranges in the body.

    ``topic_identity`` empty means any; ``bytes_max`` is of records in the answer; without ``bodies`` they are cut out
    of them. With ``offsets_only`` the answer only says up to where messages are there, unless some tags are wanted.
    ``client_id`` is for figures. ``wait_ms`` is how long the answer may wait for messages.
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
    """9007, our own: messages of some queues of a topic in the order of the log."""

    ext: BulkReadExt = msgspec.field(name="extFields")


class HoldLogExt(Ext):
    """A lease: this replica is to keep its log from the physical offset ``position`` on for so many seconds.

    The same ``lease_id`` renews or moves it; 0 seconds give it back.
    """

    lease_id: str
    position: I64
    seconds: I32


class HoldLog(Request, tag=int(Code.HOLD_LOG)):
    """9008, our own: keep the files of the log for a reader."""

    ext: HoldLogExt = msgspec.field(name="extFields")


class AskTopicEndsExt(Ext):
    """With ``current`` the replica first asks the leader what is committed. The body names the topics."""

    current: bool = False


class AskTopicEnds(Request, tag=int(Code.ASK_TOPIC_ENDS)):
    """9009, our own: where the queues of many topics begin and end."""

    ext: AskTopicEndsExt = msgspec.field(name="extFields", default_factory=AskTopicEndsExt)
