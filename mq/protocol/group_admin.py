"""Bodies of our own request 9001, by which operators look at a group's members and change them.

Stock clients and brokers know nothing of it. The request's body is a `GroupCommand`; whatever becomes of it, the answer
has code SUCCESS and a `GroupAnswer` as its body, which says in words what was done or why not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from mq.protocol.json_body import CLIENT_VALUES_MAX, Body

GroupAction = Literal["status", "add", "promote", "remove", "replace", "transfer"]

MemberRole = Literal["voter", "learner", "incoming", "outgoing"]
"""During a change of voters those that come are incoming and those that go are outgoing; the others are voters."""


class GroupCommand(Body):
    """What an operator wants. ``add`` needs ``node`` and ``address`` (HOST:PORT of its replication port), ``replace``
    the learner ``node`` and the voter ``replaced``; ``transfer`` without ``node`` leaves the choice to the leader.
    """

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    action: GroupAction
    node: str = ""
    address: str = ""
    replaced: str = ""


class MemberView(Body):
    """A member as the answering replica sees it. Numbers are -1 when it does not know: only a leader does.

    ``reason`` says why the answering replica could not connect to it last, empty while it is connected.
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
    """The group as the answering replica sees it. ``disk_used`` is a part of 1; ``leader`` is empty if unknown."""

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
        """The member of that id, None if there is none."""
        return next((member for member in self.members if member.node_id == node_id), None)


class GroupAnswer(Body):
    """What became of a command. ``code`` is empty when it was done, else the name of the reason; ``text`` says either
    in words. After OUTCOME_UNKNOWN it may still be done.
    """

    done: bool
    code: str
    text: str
    view: GroupView
