"""What an operator is told of a change when the replica that was asked stops leading."""

from __future__ import annotations

from typing import Any, cast

import pytest
import structlog

from mq.broker.admin.raft_group_members import RaftMembers, _MembershipCall
from raftlog import ConfState, NodeId, Role, RoleChange
from raftlog.consensus.causes import Cause, CauseKind
from raftlog.log_numbers import LogIndex, Term
from tests.support.broker_contexts import context_of

LEFT = ConfState(voters=(NodeId("n0"), NodeId("n2")))


def admin_with(answers: list[tuple[bool, str, str]]) -> RaftMembers:
    """Somebody waits for the removal of n1 from the leader n1, which began with entry 5."""
    nobody = cast("Any", None)
    admin = RaftMembers(
        context_of(
            settings=nobody,
            replica=nobody,
            disk_used=lambda: 0.0,
            environment__connect_failure=lambda _: "",
            clock=lambda: 0.0,
            log=structlog.get_logger(),
        )
    )
    admin._calls.append(
        _MembershipCall(
            LogIndex(5), 0.0, "n1 is no longer a member", lambda done, code, text: answers.append((done, code, text))
        )
    )
    return admin


def resigned(kind: CauseKind) -> RoleChange:
    return RoleChange(Role.FOLLOWER, Term(1), None, Cause(kind))


def test_self_removed_leader_answers_the_change() -> None:
    """It stops leading because the change is committed, and applies it after that."""
    answers: list[tuple[bool, str, str]] = []
    admin = admin_with(answers)
    admin.role_changed(resigned(CauseKind.NOT_A_VOTER))
    assert answers == []
    admin.members_changed(LogIndex(6), LEFT, ())
    assert answers == [(True, "", "n1 is no longer a member")]


@pytest.mark.parametrize("kind", [kind for kind in CauseKind if kind is not CauseKind.NOT_A_VOTER])
def test_resigned_leader_reports_an_unknown_outcome(kind: CauseKind) -> None:
    answers: list[tuple[bool, str, str]] = []
    admin_with(answers).role_changed(resigned(kind))
    [(done, code, _)] = answers
    assert (done, code) == (False, "OUTCOME_UNKNOWN")
