"""Handing leadership over, and who is preferred as a leader (Raft thesis 3.10)."""

from __future__ import annotations

import pytest

from raftlog.consensus.messages import PreVoteReq, TimeoutNow
from raftlog.consensus.types import ConfChange, ConfChangeKind, NodeId, Refusal, Role
from tests.paper.group import A, B, C, D, Group


def leads(group: Group, node: NodeId) -> bool:
    return group[node].role is Role.LEADER and group[node].ready


def settled_group(size: int = 3, voters: int = 0, **priorities: int) -> Group:
    """A leads, and everybody has been heard lately."""
    by_node = {NodeId(name): value for name, value in priorities.items()}
    return Group(size, voters=voters, priorities=by_node).led_by(A, 0.5)


@pytest.fixture
def group() -> Group:
    return settled_group()


def test_transfer_keeps_open_proposals(group: Group) -> None:
    """Without any time passing, with proposals under way: none of them is in doubt, all are in the new term's log."""
    group.propose(A, 5)
    assert group[A].transfer(B, group.now) is None
    assert group[A].transferring
    assert group[A].propose(1, 100, group.now) is Refusal.TRANSFERRING
    group.pump()
    assert not [message for message in group.mail if isinstance(message, TimeoutNow)]
    group.deliver()
    assert leads(group, B)
    assert not group[A].transferring
    assert group.failed_from == {}
    assert group.terms(B) == group.terms(A) == group.terms(C) == [1] * 6 + [2]


def test_transfer_ok_waits_for_the_disk_of_the_target(group: Group) -> None:
    """What the target has only received could be lost with it."""
    group.slow_disks.add(B)
    group.propose(A)
    group[A].transfer(B, group.now)
    group.deliver()
    assert not [message for message in group.delivered if isinstance(message, TimeoutNow)]
    group.slow_disks.clear()
    group.finish_writes(B)
    group.deliver()
    assert leads(group, B)


def test_transfer_waits_until_pending_proposals_are_committed() -> None:
    """It waits until all are committed, though not for longer than until the next heartbeat."""
    for patient in (True, False):
        group = settled_group()
        group.slow_disks |= {A, C}
        group.propose(A)
        group[A].transfer(B, group.now)
        group.deliver()
        assert not [message for message in group.delivered if isinstance(message, TimeoutNow)]
        if patient:
            group.finish_writes(A)
            group.deliver()
        group.slow_disks.clear()
        group.pass_time(0.0 if patient else 0.3)
        group.finish_writes(A)
        group.finish_writes(C)
        group.deliver()
        assert group[B].role is Role.LEADER
        assert (group.failed_from == {}) == patient


def test_transfer_without_a_target_chooses_the_best_voter() -> None:
    """Nobody in particular is asked for: priority goes first, then who has more; never a learner."""
    group = settled_group(4, voters=3, c=-1, b=-2, a=0, d=7)
    group[A].propose_conf(ConfChange(ConfChangeKind.ADD_LEARNER, D, "d:1"), group.now)
    group.pass_time(1.0)
    assert group[A].transfer(D, group.now) is Refusal.UNKNOWN_NODE
    assert group[A].transfer(None, group.now) is None
    assert group[A].transfer(None, group.now) is None, "the one under way is meant"
    assert group[A].transfer(B, group.now) is Refusal.TRANSFERRING
    group.deliver()
    assert leads(group, C)


def test_transfer_refuses_followers_and_unknown_nodes(group: Group) -> None:
    """Only a leader hands over, only to a voter; to itself nothing is to be done."""
    assert group[B].transfer(C, group.now) is Refusal.NOT_LEADER
    assert group[A].transfer(D, group.now) is Refusal.UNKNOWN_NODE
    assert group[A].transfer(A, group.now) is None
    assert not group[A].transferring


def test_transfer_to_silent_node_is_refused(group: Group) -> None:
    """Who has not been heard is not waited for."""
    group.isolate(C)
    group.pass_time(2.0, [A, B])
    assert group[A].transfer(C, group.now) is Refusal.NOT_CAUGHT_UP
    group.propose(A)


def test_transfer_to_lagging_node_is_refused(group: Group) -> None:
    """Who lacks much of what is committed would take long; nothing is stopped for it."""
    group.slow_disks.add(C)
    for _ in range(3):
        group.replicate(A, 10_000)
    assert group[A].commit == group[A].last_index
    assert group[A].transfer(C, group.now) is Refusal.NOT_CAUGHT_UP
    group.propose(A)
    group.slow_disks.clear()
    group.finish_writes(C)
    group.deliver()
    assert group[A].transfer(C, group.now) is None


def test_transfer_to_one_with_a_slow_disk(group: Group) -> None:
    """A node that may not lead is not asked to."""
    group[C].disk_slow(2.0, group.now)
    group.pass_time(0.5)
    assert group[A].transfer(C, group.now) is Refusal.NOT_CAUGHT_UP


def test_transfer_target_crashes(group: Group) -> None:
    """After an election timeout the old leader goes on as before."""
    group[A].transfer(B, group.now)
    group.isolate(B)
    group.deliver()
    began = group.now
    group.pass_time(1.4, [A, C])
    assert group[A].propose(1, 100, group.now) is Refusal.TRANSFERRING
    group.pass_time(0.2, [A, C])
    assert (group[A].role, group[A].term, group[A].transferring) == (Role.LEADER, 1, False)
    index = group.replicate(A)
    assert group[A].commit == index
    assert group.now - began < group.config.election_timeout_seconds_max


def test_transfer_target_crashes_for_certain(group: Group) -> None:
    """When its process is known to have ended, nothing is waited for."""
    group[A].transfer(B, group.now)
    group[A].peer_lost(C, group.now)
    assert group[A].transferring
    group[A].peer_lost(B, group.now)
    assert not group[A].transferring
    group.propose(A)


def test_transfer_survives_a_dropped_message(group: Group) -> None:
    """The target is told again with the next heartbeat."""
    group[A].transfer(B, group.now)
    group.pump()
    assert [message.dst for message in group.drop() if isinstance(message, TimeoutNow)] == [B]
    group.pass_time(0.3)
    assert leads(group, B)


def test_late_leadership_transfer_is_ignored(group: Group) -> None:
    """The target stands after the old leader went on: the newer term wins, and what was committed stays."""
    group[A].transfer(B, group.now)
    group.pump()
    late = [message for message in group.drop() if isinstance(message, TimeoutNow)]
    group.cut.add((A, B))
    group.pass_time(1.6)
    index = group.replicate(A)
    assert group[A].commit == index
    group.cut.clear()
    for message in late:
        group.hand_over(message)
    group.pass_time(5.0)
    assert sum(leads(group, node) for node in group.nodes) == 1
    assert all(group[node].commit >= index for node in group.nodes)


def test_transfer_during_conf_change() -> None:
    """The change goes on under the new leader; another one cannot begin meanwhile. Who leaves is no target."""
    group = settled_group(4, voters=3)
    group[A].propose_conf(ConfChange(ConfChangeKind.ADD_LEARNER, D, "d:1"), group.now)
    group.pass_time(1.0)
    group[A].propose_conf(ConfChange(ConfChangeKind.REPLACE, D, replaced=C), group.now)
    assert group[A].transfer(C, group.now) is Refusal.UNKNOWN_NODE
    assert group[A].transfer(B, group.now) is None
    other = ConfChange(ConfChangeKind.REMOVE, B)
    assert group[A].propose_conf(other, group.now) is Refusal.TRANSFERRING
    group.deliver()
    assert leads(group, B)
    assert {group[node].conf.voters for node in (A, B, D)} == {(A, B, D)}
    assert not group[B].conf.is_joint


# -- priorities ------------------------------------------------------------------------------------------------


def test_preferred_follower_is_made_leader() -> None:
    """Once it has been fit to lead for a while; and it stays leader."""
    group = settled_group(b=5, c=3)
    group.pass_time(2.0)
    assert leads(group, A), "a new leader is not changed at once"
    group.pass_time(3.0)
    assert leads(group, B)
    assert group.failed_from == {}
    group.pass_time(30.0)
    assert (group[B].role, group[B].term) == (Role.LEADER, 2)


def test_equal_priorities_change_nothing() -> None:
    """Nor does a leader give way to somebody of lower priority."""
    group = settled_group(a=3, b=3, c=1)
    group.pass_time(60.0)
    assert (group[A].role, group[A].term) == (Role.LEADER, 1)


def test_leader_pauses_transfers_to_a_preferred_follower_that_failed() -> None:
    """After a failed attempt proposals are not stopped again for ten election timeouts."""
    group = settled_group(b=5)
    stopped = 0
    before = False
    for _ in range(300):
        group.drop(lambda message: isinstance(message, TimeoutNow))
        group.now += 0.1
        for node in group.nodes:
            group[node].tick(group.now)
        group.deliver(lambda message: not isinstance(message, TimeoutNow))
        stopped += group[A].transferring and not before
        before = group[A].transferring
    assert (stopped, group[A].role) == (1, Role.LEADER)


@pytest.mark.parametrize("moment", [0.0, 0.3, 0.7, 1.1, 1.9])
def test_preferred_node_wins_election_if_up_to_date(moment: float) -> None:
    """The preferred node wins when it is up to date; otherwise the other one does, a little later."""
    group = settled_group(a=9, b=0, c=5)
    group.pass_time(moment)
    group.isolate(A)
    group.pass_time(8.0, [B, C])
    assert leads(group, C)
    assert not any(isinstance(m, PreVoteReq) and m.src == B and m.term > 0 for m in group.delivered)

    group = settled_group(a=9, b=0, c=5)
    group.pass_time(moment)
    group.cut |= {(A, C)}
    group.replicate(A)
    group.isolate(A)
    began = group.now
    while not leads(group, B):
        group.pass_time(0.1, [B, C])
        assert group.now < began + 8.0, "the preferred node cannot win, and nobody else does"
    assert group.terms(B)[:2] == [1, 1]


def test_priorities_hardly_delay_the_replacement_of_a_silent_leader() -> None:
    """Equal ones not at all, a lower one for a tenth of a second."""
    for priority, delay in ((9, 0.0), (5, 0.1)):
        group = settled_group(a=9, b=priority, c=9)
        group.isolate(A)
        group.cut |= {(C, B)}
        group.drop()
        group[B].peer_lost(A, group.now)
        assert group[B].next_deadline() <= group.now + delay or delay == 0.0
        if delay:
            assert group[B].role is Role.FOLLOWER
            group.now += delay
            group[B].tick(group.now)
        assert group[B].role is Role.PRE_CANDIDATE


def test_leader_does_not_wait_for_a_missing_preferred_node() -> None:
    """The leader tells who is fit to follow it; the rest wait no longer than without priorities."""
    group = settled_group(a=9, b=0, c=5)
    group.isolate(C)
    group.pass_time(3.0, [A, B])
    group[B].peer_lost(A, group.now)
    assert group[B].role is Role.PRE_CANDIDATE
