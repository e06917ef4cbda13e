"""A process that did not run for a while takes nobody for silent because of it (compare etcd, which counts ticks)."""

from __future__ import annotations

import pytest

from raftlog.consensus.types import CoreConfig, Role
from tests.paper.group import A, B, C, Group

STALLS = (0.01, 0.4, 1.4, 1.6, 3.5, 30.0)
"""Seconds; a heartbeat is sent every 0.2, silence is borne for 1.5 to 3."""


@pytest.mark.parametrize("seconds", STALLS)
def test_stalled_leader_reads_pending_answers_before_stepping_down(seconds: float) -> None:
    group = Group()
    leader = group.elect(A)
    group.pass_time(1.0)
    group.now = leader.next_deadline()
    leader.tick(group.now)
    group.deliver(lambda message: message.src == A)
    term = leader.term
    # The answers lie in its sockets while it does not run; the timer comes before they are read.
    group.now += seconds
    leader.record_stall(seconds, group.now)
    leader.tick(group.now)
    assert leader.role is Role.LEADER
    group.deliver()
    group.pass_time(2.0, alive=(A,))
    assert (leader.role, leader.term) == (Role.LEADER, term)


@pytest.mark.parametrize("seconds", STALLS)
def test_stalled_leader_steps_down_if_no_peer_answers(seconds: float) -> None:
    group = Group()
    leader = group.elect(A)
    group.pass_time(1.0)
    group.cut = {(B, A), (C, A)}
    group.now += seconds
    leader.record_stall(seconds, group.now)
    group.pass_time(2.0, alive=(A,))
    assert leader.role is Role.FOLLOWER


@pytest.mark.parametrize("seconds", STALLS)
def test_stalled_follower_reads_pending_messages_before_campaigning(seconds: float) -> None:
    group = Group().led_by(A, 1.0)
    group.now += seconds
    group[B].record_stall(seconds, group.now)
    group[B].tick(group.now)
    assert group[B].role is Role.FOLLOWER
    assert group[B].leader_id == A
    # It waits no longer for a leader that has really gone.
    assert group[B].next_deadline() <= group.now + group.config.election_timeout_seconds_max


def test_stalled_leader_does_not_consider_lagging_peers_silent() -> None:
    group = Group()
    leader = group.elect(A)
    group.pass_time(1.0)
    group.now += 5.0
    leader.record_stall(5.0, group.now)
    assert [peer.active for peer in leader.status().peers] == [True, True]


def test_stall_does_not_prolong_a_lease() -> None:
    """Others may have been elected while this process did not run."""
    group = Group(config=CoreConfig(lease_reads=True))
    leader = group.elect(A)
    group.pass_time(1.0)
    group.now += 1.3
    leader.record_stall(1.3, group.now)
    ctx = group.read(A)
    assert ctx not in group.answers
    group.deliver()
    assert group.answers[ctx] is not None


def test_stall_does_not_shorten_the_promise_of_a_voter() -> None:
    """With leases a voter stays with the leader that it has heard for the shortest election timeout at least."""
    group = Group(config=CoreConfig(lease_reads=True)).led_by(A, 1.0)
    heard_at = group.now
    for _ in range(6):
        group.now += 0.2
        group[B].record_stall(0.2, group.now)
        assert group[B]._follows_another(C)
    assert group.now < heard_at + group.config.election_timeout_seconds_min


def test_stall_does_not_move_silence_into_the_future() -> None:
    """A message that was taken just before a stall was noticed does not make silence begin in the future."""
    group = Group().led_by(A, 1.0)
    before = group[B].next_deadline() - group.now
    group[B].record_stall(30.0, group.now)
    assert group[B].next_deadline() <= group.now + max(before, group.config.election_timeout_seconds_max)
