"""Our own request 9001, with which operators show and change the members of a Raft group.

Unknown to stock clients and brokers. The request's body is a `GroupCommand`; the answer always has code SUCCESS and a
`GroupAnswer` as its body, which describes the result or the reason of a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.json_body import CLIENT_VALUES_MAX, Body
from mq.protocol.wire.request import Request

GroupAction = Literal["status", "add", "promote", "remove", "replace", "transfer"]
MemberRole = Literal["voter", "learner", "incoming", "outgoing"]
"""During a change of voters, added ones are incoming and removed ones outgoing; the others are voters."""


class ManageGroup(Request, tag=int(Code.MANAGE_GROUP)):
    """Request code 9001, our own: carry out the command in the body, which shows or changes the group's members."""


class GroupCommand(Body):
    """An operator's command. ``add`` needs ``node`` and ``address`` (HOST:PORT for replication), ``replace`` the
    learner ``node`` and the voter ``replaced``. For ``transfer`` without ``node`` the leader chooses one.
    """

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    action: GroupAction
    node: str = ""
    address: str = ""
    replaced: str = ""


class MemberView(Body):
    """A member of the group, as the responding replica knows it. Unknown numbers are -1: only a leader knows them.

    ``reason`` says why the answering replica's last connection attempt failed, empty while it is connected.
    """

    node_id: str
    role: MemberRole
    address: str = ""
    active: bool = False
    state: str = ""
    match_index: int = -1
    lag_entries: int = -1
    priority: int = 0
    disk_ok: bool = True
    reason: str = ""


class GroupView(Body):
    """The group as the responding replica knows it. ``disk_used``: a fraction of 1. ``leader``: empty if unknown."""

    node_id: str
    cluster: str
    group: str
    role: str
    term: int
    leader: str
    base_index: int
    last_index: int
    commit_index: int
    abstaining: bool
    disk_used: float
    members: Sequence[MemberView] = ()

    def member(self, node_id: str) -> MemberView | None:
        """Return the member with this id; None if there is none."""
        return next((member for member in self.members if member.node_id == node_id), None)


class GroupAnswer(Body):
    """The result of a command. ``code`` is empty on success, else the name of the reason; ``text`` describes either.
    After OUTCOME_UNKNOWN it may still take effect.
    """

    done: bool
    code: str
    text: str
    view: GroupView
