"""Reads: an answer is never older than what was committed when the read came in (Raft thesis 6.4)."""

from __future__ import annotations

import pytest

from raftlog.consensus.messages import (
    AppendReq,
    Denial,
    Heartbeat,
    HeartbeatResp,
    Message,
    PreVoteReq,
    PreVoteResp,
    ReadIndexReq,
    ReadIndexResp,
    TimeoutNow,
    VoteReq,
    VoteResp,
)
from raftlog.consensus.types import ConfChange, ConfChangeKind, CoreConfig, NodeId, Role
from raftlog.log_numbers import NO_INDEX, LogIndex, Term
from tests.paper.group import A, B, C, D, Group
from tests.support.log_values import log_id

LEASES = CoreConfig(lease_reads=True)


def with_leases(*, seconds: float = 0.0, silent: tuple[NodeId, ...] = ()) -> Group:
    """A leads with leases, and ``seconds`` have passed; it was not heard by the ``silent``, which are reachable now."""
    group = Group(3, config=LEASES)
    group.now += LEASES.election_timeout_seconds_min
    group.isolate(*silent)
    group.elect(A)
    group.pass_time(seconds, alive=[node for node in group.nodes if node not in silent])
    group.heal()
    return group


def check_election_waits_for_the_lease(group: Group) -> None:
    """A is cut off and goes on answering by its lease; B and C elect a leader, and only when that is over."""
    while group.read(A) in group.answers:
        assert Role.LEADER not in (group[B].role, group[C].role)
        group.pass_time(0.05, alive=[B, C])
    group.pass_time(6.0, alive=[B, C])
    assert Role.LEADER in (group[B].role, group[C].role)


def is_beat(message: Message) -> bool:
    return isinstance(message, Heartbeat | HeartbeatResp)


def test_read_is_answered_after_one_round_trip() -> None:
    """A read does not wait for the next heartbeat, and all that come in together share one round."""
    group = Group(3)
    core = group.elect(A)
    group.replicate(A)
    for ctx in (1, 2, 3):
        core.read(ctx, group.now)
    effects = core.take_effects()
    assert [type(message) for message in effects.send] == [Heartbeat, Heartbeat]
    assert not effects.reads
    group[B].receive(effects.send[0], group.now)
    core.receive(group[B].take_effects().send[0], group.now)
    assert core.take_effects().reads == [(1, 2), (2, 2), (3, 2)]


def test_single_voter_answers_at_once() -> None:
    group = Group(1)
    core = group.elect(A)
    assert group.answers == {}
    assert group.answers.get(group.read(A)) == core.commit == 1


def test_stale_read_old_leader(group: Group) -> None:
    """A leader that was cut off cannot answer, and says so when it finds out that it leads no more."""
    group.isolate(A)
    first = group.read(A)
    group.drop()
    group.elect(B)
    group.replicate(B)
    second = group.read(A)
    group.pass_time(1.0)
    assert group[A].role is Role.LEADER or group.answers[first] is None
    assert all(group.answers.get(ctx) is None for ctx in (first, second))
    group.pass_time(2.0)
    assert group[A].role is not Role.LEADER
    assert (group.answers[first], group.answers[second]) == (None, None)


def test_new_leader_answers_reads_after_its_first_commit() -> None:
    """A new leader does not know yet what its predecessors committed: it answers when its first entry is committed."""
    group = Group(3, logs={A: [1, 1], B: [1, 1], C: [1]}, term=1)
    group.time_out(A)
    group.deliver(lambda message: not isinstance(message, AppendReq))
    assert group[A].role is Role.LEADER
    ctx = group.read(A)
    group.pass_time(group.config.heartbeat_seconds / 2, alive=[A])
    group.deliver(is_beat)
    assert ctx not in group.answers
    assert group[A].commit == 0
    group.deliver()
    assert group.answers[ctx] == 3


def test_readindex_duplicate_round_ack() -> None:
    """Answers to heartbeats that left before a read came in confirm nothing about it, however often they arrive."""
    group = Group(3)
    core = group.elect(A)
    first = group.read(A)
    group.deliver(lambda message: isinstance(message, Heartbeat))
    old = group.drop()
    assert old
    assert all(isinstance(message, HeartbeatResp) for message in old)
    second = group.read(A)
    group.drop()
    for message in old + old:
        core.receive(message, group.now)
        group.pump()
    assert first in group.answers
    assert second not in group.answers
    group.pass_time(group.config.heartbeat_seconds)
    assert group.answers[second] == core.commit


def test_dropped_read_round_is_repeated_by_the_next_heartbeat(group: Group) -> None:
    ctx = group.read(A)
    assert group.drop(is_beat)
    group.pass_time(group.config.heartbeat_seconds)
    assert group.answers[ctx] == 1


@pytest.mark.parametrize("size", [4, 5])
def test_minority_does_not_confirm_reads(size: int) -> None:
    group = Group(size).led_by(A)
    ctx = group.read(A)
    group.deliver(lambda message: B in (message.src, message.dst))
    assert ctx not in group.answers
    group.deliver()
    assert group.answers[ctx] == 1


def test_follower_read_applied_wait(group: Group) -> None:
    """A follower is told the leader's commit index, which it may not have reached itself: it waits until it has."""
    group.cut.add((A, B))
    index = group.replicate(A)
    group.cut.clear()
    assert group[B].commit < index
    ctx = group.read(B)
    group.deliver(lambda message: not isinstance(message, AppendReq))
    assert group.answers[ctx] == index > group[B].commit
    group.pass_time(1.0)
    assert group[B].commit == index


def test_follower_asks_once_for_all_reads_of_a_turn(group: Group) -> None:
    for ctx in (1, 2):
        group[B].read(ctx, group.now)
    sent = group[B].take_effects().send
    assert [type(message) for message in sent] == [ReadIndexReq]


@pytest.mark.parametrize("known", [True, False])
def test_follower_read_fails_when_the_leader_changes(group: Group, known: bool) -> None:
    """Nobody is left to answer: the reader may ask the next leader."""
    group.isolate(A)
    ctx = group.read(B)
    if known:
        group.elect(C)
        assert group[B].leader_id == C
    else:
        group[B].peer_lost(A, group.now)
        group.pump()
    assert group.answers == {ctx: None}


def test_read_without_a_leader_fails_at_once() -> None:
    group = Group(3)
    assert group.answers.get(group.read(B), 0) is None


def test_deposed_leader_answers_the_pending_read_of_a_follower(group: Group) -> None:
    group.isolate(A)
    group.cut -= {(A, B), (B, A)}
    ctx = group.read(B)
    group.deliver(lambda message: isinstance(message, ReadIndexReq))
    group.cut.add((B, A))
    group.pass_time(2.0, alive=[A])
    assert group[A].role is not Role.LEADER
    assert [message.index for message in group.delivered if isinstance(message, ReadIndexResp)] == [None]
    assert group.answers[ctx] is None


def test_answer_of_an_earlier_run_is_ignored(group: Group) -> None:
    """A replica that restarts counts its reads anew; what it asked before may have been answered with less."""
    group[B].read(1, group.now)
    old = group[B].take_effects().send[0]
    assert isinstance(old, ReadIndexReq)
    group.replicate(A)
    group.now += 0.1
    group.start(B)
    group.pass_time(0.5)
    group[B].read(1, group.now)
    assert group[B].take_effects().send
    group[B].receive(ReadIndexResp(A, B, Term(1), old.ctx, LogIndex(1), LogIndex(2)), group.now)
    assert not group[B].take_effects().reads


def test_dropped_read_question_is_repeated_within_a_heartbeat(group: Group) -> None:
    """As after a restart: the leader is found before there is a connection to it."""
    lost = group.read(B)
    assert group.drop(lambda message: isinstance(message, ReadIndexReq))
    group.pass_time(2 * group.config.heartbeat_seconds)
    assert group.answers[lost] == group[A].commit


def test_answer_to_a_later_read_request_answers_dropped_earlier_ones(group: Group) -> None:
    lost = group.read(B)
    assert group.drop(lambda message: isinstance(message, ReadIndexReq))
    later = group.read(B)
    group.deliver()
    assert group.answers == {lost: group[A].commit, later: group[A].commit}


def test_answer_to_an_earlier_read_request_does_not_answer_later_ones(group: Group) -> None:
    earlier = group.read(B)
    [question] = [message for message in group.mail if isinstance(message, ReadIndexReq)]
    group.drop()
    later = group.read(B)
    group[B].receive(ReadIndexResp(A, B, Term(1), question.ctx, LogIndex(1), LogIndex(1)), group.now)
    group.pump()
    assert earlier in group.answers
    assert later not in group.answers


def test_reads_fail_if_all_their_questions_are_dropped(group: Group) -> None:
    group.cut.add((B, A))
    lost = group.read(B)
    group.pass_time(2.0)
    assert lost not in group.answers
    group.pass_time(2.0)
    assert group.answers[lost] is None


def test_lease_answers_without_a_message() -> None:
    group = with_leases(seconds=1.0)
    group.drop()
    ctx = group.read(A)
    assert group.answers[ctx] == group[A].commit
    assert group.mail == []


def test_lease_ends_before_another_leader_can_be_elected() -> None:
    """A lease runs out on the leader's clock before anybody else may be elected; then reads need a round."""
    group = with_leases()
    group.isolate(A)
    group.now += 0.79 * LEASES.election_timeout_seconds_min
    assert group.answers.get(group.read(A)) == 1
    group.now += 0.02 * LEASES.election_timeout_seconds_min
    assert group.read(A) not in group.answers


def test_no_lease_before_the_first_entry_is_committed() -> None:
    group = Group(3, config=LEASES)
    group.now += LEASES.election_timeout_seconds_min
    group.time_out(A)
    group.deliver(lambda message: not isinstance(message, AppendReq))
    assert group[A].role is Role.LEADER
    ctx = group.read(A)
    assert ctx not in group.answers
    group.deliver()
    assert group.answers[ctx] == 1


def test_lease_survives_restarts_of_the_granting_voters() -> None:
    """A voter that forgot which leader it heard waits as long as it would have had to, before it elects another."""
    group = with_leases(seconds=1.0)
    group.isolate(A)
    for node in (B, C):
        group.start(node)
    check_election_waits_for_the_lease(group)


def test_lease_outlives_a_restart_of_a_candidate() -> None:
    """The voter that forgot the leader stands for election itself no sooner than it may vote for another."""
    group = with_leases(seconds=1.0, silent=(C,))
    group.isolate(A)
    group.start(B)
    check_election_waits_for_the_lease(group)


def test_lease_outlives_the_rumor_that_its_holder_has_ended() -> None:
    """A voter that is told so, wrongly, neither stands for election nor votes before the lease is over."""
    group = with_leases(seconds=1.0)
    group.isolate(A)
    for node in (B, C):
        group[node].peer_lost(A, group.now)
    check_election_waits_for_the_lease(group)


@pytest.mark.parametrize("late", ["denial", "answer"])
def test_lease_outlives_a_newer_term(late: str) -> None:
    """A voter that learns of a newer term, from something said long ago, has promised to wait all the same."""
    group = with_leases(seconds=1.0, silent=(C,))
    group.isolate(A)
    # What C says, it says without having heard of A.
    newer = group[A].term + 3
    if late == "denial":
        group[B].receive(PreVoteResp(C, B, newer, False, log_id(0, 0), Denial.STALE_TERM), group.now)
    else:
        group[B].receive(HeartbeatResp(C, B, newer, 1, 0, NO_INDEX), group.now)
    group.pump()
    group[B].receive(PreVoteReq(C, B, newer, newer + 1, log_id(9, newer)), group.now)
    group[B].receive(VoteReq(C, B, newer, log_id(9, newer)), group.now)
    group.pump()
    assert not [m for m in group.drop() if isinstance(m, PreVoteResp | VoteResp) and m.granted]
    check_election_waits_for_the_lease(group)


@pytest.mark.parametrize("leases", [True, False])
def test_paused_leader_serves_no_stale_reads(leases: bool) -> None:
    """A leader that is stopped for a while answers no read out of its old belief when it goes on."""
    group = Group(3, config=CoreConfig(lease_reads=leases))
    group.now += LEASES.election_timeout_seconds_min
    group.elect(A)
    group.isolate(A)
    group.pass_time(6.0, alive=[B, C])
    leader = next(node for node in (B, C) if group[node].role is Role.LEADER)
    group.replicate(leader)
    group.drop()
    assert group[A].role is Role.LEADER
    ctx = group.read(A)
    assert ctx not in group.answers
    group.heal()
    group.pass_time(1.0)
    assert group.answers[ctx] is None
    assert group[leader].term == 2
    assert group[leader].role is Role.LEADER


@pytest.mark.parametrize("node", [A, B])
def test_clock_jump_causes_one_election_at_most(node: str) -> None:
    """One clock that jumps by an hour makes for no more than one election, and for no stale read."""
    group = with_leases(seconds=1.0)
    core = group[A if node == A else B]
    core.tick(group.now + 3600.0)
    core.read(77, group.now + 3600.0)
    effects = core.take_effects()
    assert all(index is None for _, index in effects.reads)
    group.mail += effects.send
    group.now += 3600.0
    group.deliver()
    group.pass_time(5.0)
    leaders = [peer for peer in group.nodes if group[peer].role is Role.LEADER]
    assert len(leaders) == 1
    assert group[leaders[0]].term <= 2


@pytest.mark.parametrize("leases", [True, False])
def test_read_during_transfer(leases: bool) -> None:
    """Who was told to take over may lead at any moment, so the leader's lease ends there; rounds tell as ever."""
    group = Group(3, config=CoreConfig(lease_reads=leases))
    group.now += LEASES.election_timeout_seconds_min
    group.elect(A)
    group.pass_time(1.0)
    assert group[A].transfer(B, group.now) is None
    group.pump()
    told = group.drop(lambda message: isinstance(message, TimeoutNow))
    confirmed = group.read(A)
    assert confirmed not in group.answers
    group.deliver()
    assert group.answers[confirmed] == group[A].commit
    group.isolate(A)
    group.cut.discard((A, B))
    group.hand_over(told[0])
    group.deliver()
    group.replicate(B)
    assert group[A].role is Role.LEADER
    stale, asked = group.read(A), group.read(C)
    group.deliver()
    assert stale not in group.answers
    assert group.answers[asked] == group[B].commit
    group.heal()
    group.pass_time(1.0)
    assert group.answers[stale] is None


def test_pending_reads_do_not_wait_for_a_removed_voter() -> None:
    """Of three voters one is removed while two are silent: the read is answered when those that are left suffice."""
    group = Group(2).led_by(A, 1.0)
    assert isinstance(group[A].propose_conf(ConfChange(ConfChangeKind.REMOVE, B), group.now), int)
    group.deliver(lambda message: not is_beat(message))
    ctx = group.read(A)
    group.drop(is_beat)
    group.cut |= {(A, B), (B, A)}
    group.pass_time(1.0)
    assert group[A].conf.voters == (A,)
    assert group.answers[ctx] is not None


def test_learner_reads_through_the_leader() -> None:
    group = Group(4, voters=3).led_by(A, 0.5)
    assert isinstance(group[A].propose_conf(ConfChange(ConfChangeKind.ADD_LEARNER, D, "d:1"), group.now), int)
    group.pump()
    group.pass_time(1.0)
    ctx = group.read(D)
    group.deliver()
    assert group.answers[ctx] == group[A].commit
    group.isolate(B, C)
    ctx = group.read(A)
    group.deliver()
    assert ctx not in group.answers, "a learner confirms nothing"


@pytest.mark.parametrize("rounds", [1, 5])
def test_answer_to_a_leader_before_its_restart_confirms_nothing(group: Group, rounds: int) -> None:
    """A heartbeat of its last run comes late, when that node leads again; rounds of reads are counted anew by then."""
    for _ in range(rounds):
        group.read(A)
        (late,) = group.drop(lambda message: isinstance(message, Heartbeat) and message.dst == B)
        group.deliver()
    group.start(A)
    group.elect(A)
    assert group[A].term == group[B].term == 2
    group.hand_over(late)
    answers = group.drop(lambda message: message.dst == A)
    assert {(message.src, message.term) for message in answers} == {(B, 2)}
    group.isolate(A)
    group.elect(B)
    group.replicate(B)
    ctx = group.read(A)
    assert group[A].role is Role.LEADER
    for answer in answers:
        group[A].receive(answer, group.now)
        group.pump()
    assert ctx not in group.answers, "a stale read"


def test_answer_to_a_leader_before_its_restart_does_not_prolong_the_lease() -> None:
    group = Group(3, config=LEASES).led_by(A, 1.0)
    group.drop()
    group.now = group[A].next_deadline()
    group.tick(A)
    late = group.drop(lambda message: isinstance(message, AppendReq | Heartbeat) and message.dst == B)
    group.start(A)
    group.elect(A)
    group.now = group[A].next_deadline()
    group.tick(A)
    assert group.drop(lambda message: message.dst == B), "the heartbeat of this term is lost"
    heard = {progress.peer: progress.contact_at for progress in group[A].status().peers}
    for message in late:
        group.hand_over(message)
    group.deliver(lambda message: message.src == B)
    assert {progress.peer: progress.contact_at for progress in group[A].status().peers}[B] == heard[B]
