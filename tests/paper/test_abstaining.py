"""Replicas that may have lost what they acknowledged: they elect nobody before they have it again."""

from __future__ import annotations

import pytest

from raftlog.consensus.messages import (
    AppendReq,
    Denial,
    Heartbeat,
    PreVoteReq,
    PreVoteResp,
    ReadIndexResp,
    VoteReq,
    VoteResp,
)
from raftlog.consensus.types import ConfState, CoreConfig, HardState, Role
from raftlog.log_numbers import NO_TERM, Term
from tests.paper.group import A, B, C, D, E, Group
from tests.support.log_values import log_id

RELAXED = CoreConfig(durable_commit=False)


@pytest.mark.parametrize("abstaining", [True, False])
def test_relaxed_mode_power_loss(abstaining: bool) -> None:
    """Committed in memory on A and B, lost on B by a power cut: then B and C must not elect a leader without it."""
    group = Group(3, config=RELAXED).led_by(A, 1.0)
    group.isolate(C)
    group.slow_disks.add(B)
    index = group.replicate(A)
    assert group[A].commit == index
    group.start(B, abstaining=abstaining)
    group.slow_disks.clear()
    group.heal()
    group.isolate(A)
    group.drop()
    if not abstaining:
        with pytest.raises(AssertionError, match=f"differ behind entry {index - 1}, both committed {index}"):
            group.pass_time(10.0, alive=[B, C])
        return
    group.pass_time(10.0, alive=[B, C])
    assert Role.LEADER not in (group[B].role, group[C].role)
    group.heal()
    group.pass_time(6.0)
    assert not group[B].abstaining
    assert group.terms(B)[index - 1] == group.terms(A)[index - 1] == 1
    assert all(group[node].commit > index for node in group.nodes)


def test_idle_follower_wiped_is_refilled_and_votes_again(group: Group) -> None:
    """A follower without its log is filled up again although nobody writes, and has a vote again when it is."""
    group.replicate(A, 4)
    group.disks[C].terms.clear()
    group.start(C, abstaining=True)
    assert group[C].abstaining
    assert group[C].status().abstaining
    group.pass_time(2.0)
    assert group.terms(C) == group.terms(A)
    assert not group[C].abstaining
    group.isolate(A)
    group.pass_time(10.0, alive=[B, C])
    assert Role.LEADER in (group[B].role, group[C].role)


def test_abstaining_replica_denies_votes_and_does_not_campaign() -> None:
    group = Group(3)
    group.start(C, abstaining=True)
    group.hand_over(PreVoteReq(A, C, NO_TERM, Term(1), log_id(9, 9)))
    group.hand_over(VoteReq(A, C, Term(5), log_id(9, 9), force=True))
    answers = [message for message in group.drop() if isinstance(message, PreVoteResp | VoteResp)]
    assert [(message.granted, message.denial) for message in answers] == [(False, Denial.ABSTAINING)] * 2
    group.pass_time(20.0, alive=[C])
    assert group[C].role is Role.FOLLOWER
    assert group.mail == []


def test_leader_commits_with_acknowledgements_of_an_abstaining_voter(group: Group) -> None:
    """One voter is cut off and one abstains: the leader goes on committing, since what it sends now is kept."""
    group.isolate(B)
    group.start(C, abstaining=True)
    group.slow_disks.add(C)
    group.pass_time(0.5)
    index = group.replicate(A)
    assert group[A].commit == index - 1
    group.finish_writes(C)
    group.deliver()
    assert group[A].commit == index


def test_abstaining_replica_abstains_until_refetched_entries_are_on_disk(group: Group) -> None:
    group.replicate(A, 4)
    group.disks[C].terms.clear()
    group.slow_disks.add(C)
    group.start(C, abstaining=True)
    group.pass_time(3.0)
    assert group[C].last_index == 5
    assert group[C].abstaining
    group.finish_writes(C)
    group.pump()
    assert not group[C].abstaining


def test_abstention_lasts_until_the_first_commit_of_a_new_leader() -> None:
    """An entry was committed by three of five, one of them lost it, and the new leader has not learnt that it was
    committed. Its announcement is too low to go by: had E a vote, C, D and E could elect C without the entry.
    """
    group = Group(5, config=RELAXED).led_by(A, 1.0)
    group.isolate(C, D)
    group.slow_disks.add(E)
    index = group.propose(A)
    group.deliver(lambda message: not (isinstance(message, AppendReq) and message.commit >= index))
    assert group[A].commit == index
    assert group[B].commit == index - 1
    group.start(E, index - 1, abstaining=True)
    group.slow_disks.clear()
    group.heal()
    group.isolate(A)
    group.drop()
    while group[B].role is not Role.LEADER:
        group.time_out(B)
        group.deliver(lambda message: not isinstance(message, AppendReq | Heartbeat))
    assert group[B].commit == index - 1
    group.deliver(lambda message: isinstance(message, Heartbeat) or not isinstance(message, AppendReq))
    group.tick(B, group.config.heartbeat_seconds)
    group.deliver(lambda message: not isinstance(message, AppendReq))
    assert group[E].leader_id == B
    assert group[E].abstaining
    group.drop()
    group.pass_time(3.0, alive=[B, C, D, E])
    assert not group[E].abstaining
    assert group.terms(E)[index - 1] == 1


@pytest.mark.parametrize("config", [CoreConfig(), RELAXED])
def test_acknowledgement_of_an_earlier_run_is_counted_later(config: CoreConfig) -> None:
    """B acknowledges an entry, loses it, and is told what is committed; only then the entry is, by that very
    acknowledgement. B must hold it before it votes: it, D and E would elect a leader without it.
    """
    group = Group(5, config=config).led_by(A, 1.0)
    group.isolate(D, E)
    index = group.propose(A)
    group.deliver(lambda message: B in (message.src, message.dst))
    assert group[A].commit == index - 1
    withheld = group.drop()
    del group.disks[B].terms[index - 1 :]
    group.start(B, index - 1, abstaining=True)
    # Heartbeats and questions pass between A and B, entries do not.
    group.cut |= {(A, C)}
    for _ in range(8):
        group.tick(A, group.config.heartbeat_seconds)
        group.heal()
        group.cut |= {(A, D), (A, E), (D, A), (E, A)}
        group.deliver(lambda message: not isinstance(message, AppendReq))
        group.drop(lambda message: isinstance(message, AppendReq))
    assert group.terms(B) == [1] * (index - 1)
    assert group[B].abstaining
    for message in withheld:
        if message.dst == C:
            group.hand_over(message)
    group.deliver(lambda message: message.src == C)
    assert group[A].commit == index
    group.drop()
    group.heal()
    group.isolate(A, C)
    group.pass_time(10.0, alive=[B, D, E])
    assert not [node for node in (B, D, E) if group[node].role is Role.LEADER]
    group.heal()
    group.pass_time(8.0)
    assert not group[B].abstaining
    assert all(group[node].commit >= index for node in group.nodes)


def test_release_does_not_wait_for_entries_that_were_cut_off() -> None:
    """What the leader had and nobody else got is waited for no more under the next one, whose log is shorter."""
    group = Group(3).led_by(A, 1.0)
    group.slow_disks.add(A)
    group.propose(A, 50)
    group.drop()
    group.start(C, 1, abstaining=True)
    for _ in range(3):
        group.tick(A, group.config.heartbeat_seconds)
        group.deliver(lambda message: not isinstance(message, AppendReq))
    assert any(isinstance(message, ReadIndexResp) and message.last == 51 for message in group.delivered)
    assert group[C].abstaining
    group.drop()
    group.slow_disks.clear()
    group.start(A, 1)
    group.pass_time(8.0)
    assert max(core.last_index for core in group.cores.values()) < 51
    assert not group[C].abstaining


def test_abstaining_majority_elects_no_leader() -> None:
    """Whoever still has everything cannot tell; an operator must say whom to trust."""
    group = Group(3, logs={A: [1, 1]}, term=1)
    group.start(B, abstaining=True)
    group.start(C, abstaining=True)
    group.pass_time(20.0)
    assert not any(group[node].role is Role.LEADER for node in group.nodes)
    assert group[A].term == 1


def test_single_voter_that_abstains_waits_without_haste() -> None:
    group = Group(1)
    group.start(A, abstaining=True)
    for _ in range(5):
        deadline = group[A].next_deadline()
        group.now = max(group.now, deadline)
        group.tick(A)
        assert group[A].next_deadline() > group.now
    assert group[A].role is Role.FOLLOWER


def test_abstaining_ends_despite_dropped_questions_and_leader_change(group: Group) -> None:
    group.replicate(A, 3)
    group.disks[C].terms.clear()
    group.disks[C].hard_state = HardState(Term(1))
    group.start(C, abstaining=True)
    group.cut.add((C, A))
    group.pass_time(1.0)
    assert group[C].leader_id == A
    assert group[C].abstaining
    group.heal()
    assert group[A].transfer(B, group.now) is None
    group.pump()
    group.pass_time(6.0)
    assert group[B].role is Role.LEADER
    assert not group[C].abstaining
    assert group[C].conf == ConfState((A, B, C))
