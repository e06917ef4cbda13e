"""Membership: learners, joint changes, and what a crash or a lost message leaves of them (Raft thesis 4)."""

from __future__ import annotations

import pytest

from raftlog.consensus.messages import AppendReq, VoteReq, VoteResp
from raftlog.consensus.types import (
    NONE,
    ConfChange,
    ConfChangeKind,
    ConfState,
    NodeId,
    Refusal,
    Role,
)
from tests.paper.group import A, B, C, D, E, Group


def add(node: NodeId) -> ConfChange:
    return ConfChange(ConfChangeKind.ADD_LEARNER, node, f"{node}:1")


def promote(node: NodeId) -> ConfChange:
    return ConfChange(ConfChangeKind.PROMOTE, node)


def remove(node: NodeId) -> ConfChange:
    return ConfChange(ConfChangeKind.REMOVE, node)


def replace(old: NodeId, new: NodeId) -> ConfChange:
    return ConfChange(ConfChangeKind.REPLACE, new, replaced=old)


def change(group: Group, leader: NodeId, wish: ConfChange) -> int:
    """Begin a change; nothing travels before `Group.deliver`."""
    index = group[leader].propose_conf(wish, group.now)
    assert not isinstance(index, Refusal), f"{wish} was refused: {index}"
    group.pump()
    return index


def with_learner(size: int = 4, voters: int = 3, learner: NodeId = D) -> Group:
    """A group that A leads, with a learner that has the whole log."""
    group = Group(size, voters=voters)
    group.elect(A)
    change(group, A, add(learner))
    group.deliver()
    group.pass_time(1.0)
    assert group[learner].conf.learners == (learner,)
    return group


def leader_of(group: Group, *nodes: NodeId) -> NodeId:
    """The only leader of the newest term."""
    term = max(group[node].term for node in nodes)
    leaders = [node for node in nodes if group[node].role is Role.LEADER and group[node].term == term]
    assert len(leaders) == 1, f"{leaders} lead"
    return leaders[0]


def test_add_learner_promote() -> None:
    """A learner gets the log and counts nowhere; it is promoted once it has caught up, and counts from then on."""
    group = Group(4, voters=3)
    group.elect(A)
    group.isolate(D)
    change(group, A, add(D))
    group.deliver()
    assert group[A].conf.learners == (D,)
    assert group[B].conf.learners == (D,)
    assert group[A].propose_conf(promote(D), group.now) is Refusal.NOT_CAUGHT_UP
    group.heal()
    group.pass_time(1.0)
    assert group[D].commit == group[A].commit == 2

    group.isolate(A, D)
    group.propose(A)
    group.deliver()
    assert group.terms(D) == [1, 1, 1]
    assert group[A].commit == 2, "the learner is no second voter"
    group.heal()
    group.pass_time(1.0)
    assert group[A].commit == 3

    change(group, A, promote(D))
    group.pass_time(1.0)
    assert group[A].conf == group[D].conf == ConfState((A, B, C, D), (), (), ((D, "d:1"),))
    assert group[A].commit == 5
    group.isolate(A, D)
    group.propose(A)
    group.deliver()
    assert group[A].commit == 5, "two of four are no majority"


def test_a_node_that_has_not_joined_waits_and_votes_for_nobody() -> None:
    """It never campaigns, however long it hears nothing."""
    group = Group(4, voters=3)
    group.pass_time(30.0, [D])
    assert (group[D].role, group[D].term, group.mail) == (Role.FOLLOWER, 0, [])
    group.hand_over(VoteReq(A, D, 1, NONE))
    assert group.mail == []


def test_change_before_noop() -> None:
    """Before an entry of the own term is committed, older changes may be undecided: refused."""
    group = Group(4, voters=3)
    group.time_out(A)
    group.deliver(lambda message: not isinstance(message, AppendReq))
    assert group[A].role is Role.LEADER
    assert group[A].propose_conf(add(D), group.now) is Refusal.NOT_READY
    group.deliver()
    change(group, A, add(D))


def test_two_changes() -> None:
    """The second waits until the first is committed, its last step included."""
    group = with_learner()
    change(group, A, promote(D))
    assert group[A].propose_conf(remove(C), group.now) is Refusal.CHANGE_PENDING
    group.deliver(lambda message: not (isinstance(message, AppendReq) and message.prev.index > 2))
    assert group[A].conf.voters == (A, B, C, D)
    assert not group[A].conf.is_joint
    assert group[A].propose_conf(remove(C), group.now) is Refusal.CHANGE_PENDING
    group.deliver()
    change(group, A, remove(C))
    group.pass_time(1.0)
    assert group[A].conf.voters == (A, B, D)


@pytest.mark.parametrize("wish", [add(B), promote(B), promote(E), remove(E), replace(A, E), replace(E, D)])
def test_contradicting_changes(wish: ConfChange) -> None:
    """A change that makes no sense is refused before anything happens."""
    group = with_learner()
    last = group[A].last_index
    assert group[A].propose_conf(wish, group.now) is Refusal.INVALID_CHANGE
    assert group[B].propose_conf(wish, group.now) is Refusal.NOT_LEADER
    assert group[A].last_index == last


def test_config_entry_truncated() -> None:
    """A change that never was committed goes with its entry: the configuration before it is in force again."""
    group = with_learner()
    before = group[A].conf
    group.isolate(A, D)
    change(group, A, promote(D))
    group.deliver()
    assert group[A].conf.is_joint
    assert group[D].conf.is_joint
    group.pass_time(10.0, [B, C])
    leader = leader_of(group, B, C)
    group.heal()
    group.pass_time(5.0)
    assert leader_of(group, A, B, C, D) == leader
    assert [group[node].conf for node in group.nodes] == [before] * 4
    assert group.terms(A) == group.terms(leader)
    assert A not in group[A]._peers
    assert set(group[A]._peers) == {B, C, D}


def test_learner_must_vote_when_promoted_unknowingly() -> None:
    """A learner whose promotion it has not heard of is needed for the majority, and votes."""
    group = with_learner(3, voters=2, learner=C)
    group.cut |= {(A, C), (C, A)}
    change(group, A, promote(C))
    group.deliver()
    assert group[B].conf == ConfState((A, B, C), (), (), ((C, "c:1"),))
    assert group[C].conf.learners == (C,)
    group.isolate(A)
    group.pass_time(5.0, [B])
    assert (group[B].role, group[C].conf) == (Role.LEADER, group[B].conf)
    assert any(isinstance(m, VoteResp) and m.src == C and m.granted for m in group.delivered)
    assert group[B].ready
