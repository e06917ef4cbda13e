"""Our own request 9031: the members of many consumer groups, as one replica knows them from heartbeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests.consumer_groups import ClientConnectionData
from mq.protocol.wire.json_body import CLIENT_VALUES_MAX, Body
from mq.protocol.wire.request import Request

GROUPS_MAX: Final = 1000
"""Groups in one request, and groups with differing members in its answer."""


class AskMembers(Request, tag=int(Code.ASK_MEMBERS)):
    """Request code 9031, our own: return the members of the groups in the body."""


class MembersQuestion(Body, kw_only=True):
    """The groups whose members are requested; ``differing`` adds the groups whose members have different subscriptions.

    With ``queues``, which goes with one group, the broker asks each member which queues it has.
    """

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    groups: Sequence[str] = ()
    differing: bool = False
    queues: bool = False


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a consumer group, as one replica knows it.

    Attributes:
        subscribes: the subscriptions in its last heartbeat, as text; equal ones have the same text.
        running_info: its answer to a request 307, which has its queues; None if it was not asked, did not answer in
            time, pops, or is behind a proxy.
    """

    client: ClientConnectionData
    subscribes: str = ""
    running_info: str | None = None


class MembersOfGroups(Body, kw_only=True):
    """The members by group. Groups without members are left out.

    ``differing``: for each group whose members' subscriptions differ, one member with each subscription, at most ten.
    """

    groups: Mapping[str, Sequence[GroupMember]] = {}
    differing: Mapping[str, Sequence[GroupMember]] = {}
