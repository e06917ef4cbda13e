"""Disks without room: who has room leads, and nothing else stops."""

from __future__ import annotations

from raftlog.consensus.messages import TimeoutNow
from raftlog.consensus.types import ConfChange, ConfChangeKind, NodeId, Refusal, Role
from tests.paper.group import ENTRY_BYTES, A, B, C, Group


def leader_of(group: Group) -> NodeId:
    (leader,) = [node for node in group.nodes if group[node].role is Role.LEADER]
    return leader


def fill(group: Group, *nodes: NodeId) -> None:
    for node in nodes:
        group[node].disk_full(True, group.now)
    group.pump()


def test_disk_full_on_leader() -> None:
    """It hands over to somebody with room, within a round trip."""
    group = Group(3).led_by(A, 1.0)
    group.propose(A)
    fill(group, A)
    assert group[A].propose(1, ENTRY_BYTES, group.now) is Refusal.TRANSFERRING
    group.deliver()
    assert leader_of(group) in (B, C)
    group.pass_time(20.0)
    assert leader_of(group) in (B, C)
    group.replicate(leader_of(group))
    assert len(group.terms(A)) == len(group.terms(B)), "it still takes over what the others have"


def test_leader_stays_when_all_disks_are_full() -> None:
    """The leader stays, refuses proposals, answers reads, changes its members, and goes on when there is room."""
    group = Group(4, voters=3).led_by(A, 1.0)
    fill(group, B, C)
    group.pass_time(0.5)
    fill(group, A)
    group.pass_time(5.0)
    assert leader_of(group) == A
    assert group[A].term == 1
    assert group[A].propose(1, ENTRY_BYTES, group.now) is Refusal.DISK_FULL
    ctx = group.read(A)
    group.deliver()
    assert group.answers[ctx] == group[A].commit
    index = group[A].propose_conf(ConfChange(ConfChangeKind.ADD_LEARNER, NodeId("d"), "d:1"), group.now)
    assert isinstance(index, int)
    group.deliver()
    assert group[A].commit >= index
    group[A].disk_full(False, group.now)
    group.replicate(A)
    assert group[A].commit == group[A].last_index


def test_disk_full_leader_hands_over_when_a_peer_has_room() -> None:
    group = Group(3).led_by(A, 1.0)
    fill(group, B, C)
    group.pass_time(0.5)
    fill(group, A)
    group.pass_time(4.0)
    assert leader_of(group) == A
    group[C].disk_full(False, group.now)
    group.pass_time(1.0)
    assert leader_of(group) == C


def test_disk_full_on_follower() -> None:
    """It acknowledges and votes, but somebody with room is elected, also when it is asked to lead."""
    group = Group(3).led_by(A, 1.0)
    fill(group, B)
    index = group.replicate(A)
    assert group[A].commit == index
    group.hand_over(TimeoutNow(A, B, group[A].term))
    group.deliver()
    assert leader_of(group) == A
    group.isolate(A)
    group.pass_time(8.0, alive=[B, C])
    assert group[C].role is Role.LEADER
    assert group[C].term == 2


def test_disk_full_leader_hands_over_only_to_peers_with_room(group: Group) -> None:
    fill(group, B)
    group.pass_time(1.0)
    fill(group, A)
    group.deliver()
    assert leader_of(group) == C


def test_leader_is_elected_even_if_all_remaining_disks_are_full() -> None:
    """Reads go on: after those with room have had time to come forward, one without is elected."""
    group = Group(3).led_by(A, 1.0)
    fill(group, A, B, C)
    group.pass_time(1.0)
    group.isolate(A)
    group.pass_time(12.0, alive=[B, C])
    assert Role.LEADER in (group[B].role, group[C].role)
    leader = B if group[B].role is Role.LEADER else C
    assert group[leader].propose(1, ENTRY_BYTES, group.now) is Refusal.DISK_FULL
    ctx = group.read(leader)
    group.deliver()
    assert group.answers[ctx] == group[leader].commit


def test_disk_full_on_a_single_voter() -> None:
    group = Group(1)
    fill(group, A)
    group.elect(A)
    assert group[A].propose(1, ENTRY_BYTES, group.now) is Refusal.DISK_FULL
    group[A].disk_full(False, group.now)
    assert group.propose(A) == 2
