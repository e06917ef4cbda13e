"""Our own requests 9026 and 9027, with which operators remove members from consumer groups for a while."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests.clients import ConsumerGroupExt
from mq.protocol.wire.fields import I64, wire
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request

KEPT_OUT_MS_MAX: Final = 7 * 24 * 3600 * 1000
"""The longest time for which a member is kept out: a week."""

NOBODY: Final = "(removed by an operator)"
"""The only member in the list of a group, for one that was removed from it and has no other member.

A Java client keeps its queues when the list is empty or missing, and gives them up when it is not in it.
"""


class RemoveMemberExt(Ext, rename=wire(keep_out_ms="keepOutMs")):
    """The header of 9026: a client of a consumer group, and for how long it may not join; 0 lets it join again."""

    group: str
    client_id: str
    keep_out_ms: I64
    reason: str = ""
    operator: str = ""


class RemoveMember(Request, tag=int(Code.REMOVE_MEMBER)):
    """Request code 9026, our own: remove a client from a group, and refuse it as a member for a while."""

    ext: RemoveMemberExt = msgspec.field(name="extFields")


class MemberRemoved(Reply):
    """The response of one replica to 9026. ``was_member``: the replica knew the client as a member, or as removed."""

    was_member: bool


class ListKeptOut(Request, tag=int(Code.LIST_KEPT_OUT)):
    """Request code 9027, our own: return the clients that were removed from a group and may not join yet."""

    ext: ConsumerGroupExt = msgspec.field(name="extFields")


class KeptOutMember(msgspec.Struct, frozen=True, kw_only=True):
    """A removed client that may join again in ``seconds``. ``connected``: otherwise it would be a member now."""

    client_id: str
    seconds: float
    reason: str = ""
    operator: str = ""
    connected: bool = False


class KeptOutList(Body, kw_only=True):
    """The removed clients that may not join a group yet (request code 9027)."""

    members: Sequence[KeptOutMember] = ()


class KeptOutReply(Reply, rename=wire(kept_out_ms="raftmqKeptOutMs", reason="raftmqKeptOutReason")):
    """Tells a removed client for how many milliseconds it may not join, and why. Other clients ignore these fields."""

    kept_out_ms: I64 = 0
    reason: str = ""
