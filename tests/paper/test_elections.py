"""Elections: who may lead, when, and who must not be disturbed (Raft thesis 3.4, 3.6.1, 4.2.3, 9.6)."""

from __future__ import annotations

import random

import pytest

from raftlog.consensus.messages import (
    AppendReq,
    AppendResp,
    Denial,
    Heartbeat,
    HeartbeatResp,
    PreVoteReq,
    PreVoteResp,
    TimeoutNow,
    VoteReq,
    VoteResp,
)
from raftlog.consensus.types import NONE, ConfState, CoreConfig, Refusal, Role
from raftlog.log_numbers import NO_INDEX, Term
from tests.paper.group import ENTRY_BYTES, A, B, C, D, E, Group
from tests.support.log_values import log_id


def test_single_node_elects_itself_at_first_tick() -> None:
    """It leads at its first tick and commits when its own disk is done, not before."""
    group = Group(1)
    group.slow_disks.add(A)
    core = group[A]
    assert core.next_deadline() <= group.now
    core.tick(group.now)
    assert core.role is Role.LEADER
    assert core.propose(1, ENTRY_BYTES, group.now) is Refusal.NOT_READY, "nobody has the entry that opens its term"
    group.pump()
    group.propose(A)
    assert (core.last_index, core.commit, core.ready) == (2, 0, False)
    group.finish_writes(A)
    assert (core.commit, core.ready) == (2, True)


def test_three_nodes_elect_one_leader() -> None:
    check_first_election(3)


def test_five_nodes_elect_one_leader() -> None:
    check_first_election(5)


def check_first_election(size: int) -> None:
    """One leader comes out and commits the entry that opens its term, everywhere."""
    group = Group(size)
    group.pass_time(5.0)
    leaders = [node for node in group.nodes if group[node].role is Role.LEADER]
    assert len(leaders) == 1
    assert group[leaders[0]].ready
    assert {group[node].commit for node in group.nodes} == {1}
    assert {group[node].leader_id for node in group.nodes} == set(leaders)


@pytest.mark.parametrize("size", [3, 5])
def test_split_vote_settles_within_three_rounds(size: int) -> None:
    """All campaign at once: nobody wins that term, and jitter settles it within three rounds."""
    group = Group(size)
    for node in group.nodes:
        group.time_out(node)
    group.drop()
    for node in group.nodes:
        for peer in group.nodes:
            if peer != node:
                group.hand_over(PreVoteResp(peer, node, Term(1), True, NONE))
    assert {group[node].role for node in group.nodes} == {Role.CANDIDATE}
    group.deliver()
    assert {group[node].role for node in group.nodes} == {Role.CANDIDATE}
    group.pass_time(3 * 4 * group.config.vote_retry_seconds_max)
    assert sum(group[node].role is Role.LEADER for node in group.nodes) == 1
    assert max(group[node].term for node in group.nodes) <= 4


def test_split_vote_is_avoided_between_two_that_notice_at_once() -> None:
    """Both followers of a leader that ended ask at the same moment; one of them yields and the first round decides."""
    group = Group(3).led_by(C)
    for node in (A, B):
        group[node].peer_lost(C, group.now)
    group.cut |= {(A, C), (B, C)}
    group.deliver()
    assert (group[A].role, group[A].term, group[B].leader_id) == (Role.LEADER, 2, A)


def test_even_split_of_four_alive() -> None:
    """Two candidates with two votes each: neither wins."""
    group = Group(5)
    group.isolate(E)
    for node in (A, B):
        group.time_out(node)
        group.drop(lambda message: isinstance(message, PreVoteReq))
        group.hand_over(PreVoteResp(C, node, Term(1), True, NONE))
        group.hand_over(PreVoteResp(D, node, Term(1), True, NONE))
    requests = group.drop(lambda message: isinstance(message, VoteReq))
    for src, dst in ((A, C), (B, D), (A, D), (B, C)):
        for message in requests:
            if (message.src, message.dst) == (src, dst):
                group.hand_over(message)
    group.deliver()
    assert group[A].role is group[B].role is Role.CANDIDATE
    assert group.disks[C].hard_state.voted_for == A
    assert group.disks[D].hard_state.voted_for == B


def test_vote_once_per_term_across_restart() -> None:
    """A vote is remembered over a restart, and never leaves before it is on disk."""
    group = Group(3)
    group.slow_disks.add(C)
    group.hand_over(VoteReq(A, C, Term(1), NONE))
    assert group.mail == []
    group.finish_writes(C)
    group.pump()
    assert [m.granted for m in group.drop() if isinstance(m, VoteResp)] == [True]
    group.start(C)
    group.hand_over(VoteReq(B, C, Term(1), NONE))
    group.hand_over(VoteReq(A, C, Term(1), NONE))
    answers = [(m.dst, m.granted) for m in group.drop() if isinstance(m, VoteResp)]
    assert answers == [(B, False), (A, True)]


def test_unwritten_vote_was_not_granted() -> None:
    """A crash before the write leaves the vote free, and the answer was never sent."""
    group = Group(3)
    group.slow_disks.add(C)
    group.hand_over(VoteReq(A, C, Term(1), NONE))
    group.slow_disks.clear()
    group.start(C)
    assert group.mail == []
    group.hand_over(VoteReq(B, C, Term(1), NONE))
    assert [(m.dst, m.granted) for m in group.drop() if isinstance(m, VoteResp)] == [(B, True)]


@pytest.mark.parametrize("log", [[1, 1], [1, 1, 1, 1]], ids=["by term", "by index"])
def test_candidate_with_stale_log_cannot_win(log: list[int]) -> None:
    """A candidate whose log ends earlier than a majority's cannot win."""
    longer = [1, 2] if log == [1, 1] else [1, 1, 1, 1, 1]
    group = Group(3, logs={A: log, B: longer, C: longer}, term=2)
    group.time_out(A)
    group.deliver()
    assert group[A].role is Role.PRE_CANDIDATE
    group.hand_over(VoteReq(A, B, Term(9), group[A].last))
    assert [m.granted for m in group.drop() if isinstance(m, VoteResp)] == [False]
    group.elect(B)
    assert group.terms(A) == group.terms(B) == group.terms(C)


FIGURE_7 = {
    "leader": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6],
    "a": [1, 1, 1, 4, 4, 5, 5, 6, 6],
    "b": [1, 1, 1, 4],
    "c": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    "d": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    "e": [1, 1, 1, 4, 4, 4, 4],
    "f": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


@pytest.mark.parametrize("case", "abcdef")
def test_followers_of_figure_7_end_with_log_of_leader(case: str) -> None:
    """Whatever a follower has behind or instead of the leader's log, it ends with the leader's log.

    The leader of the figure wins with the vote of its own kind; the follower cannot win unless its log is newer.
    """
    group = Group(3, logs={A: FIGURE_7["leader"], B: FIGURE_7["leader"], C: FIGURE_7[case]}, term=7)
    newer = case in "cd"
    group.time_out(C)
    group.deliver(lambda message: isinstance(message, PreVoteReq | PreVoteResp))
    assert (group[C].role is Role.CANDIDATE) is newer
    group = Group(3, logs={A: FIGURE_7["leader"], B: FIGURE_7["leader"], C: FIGURE_7[case]}, term=7)
    group.cut |= {(C, A)} if newer else set()
    leader = group.elect(A)
    group.heal()
    group.pass_time(1.0)
    assert group.terms(C) == group.terms(A) == [*FIGURE_7["leader"], leader.term]
    assert group[C].commit == 11


def test_returning_node_does_not_raise_term(group: Group) -> None:
    """A node that was cut off for long comes back without raising anybody's term."""
    group.isolate(C)
    group.pass_time(60.0)
    assert group[C].role is Role.PRE_CANDIDATE
    assert group[C].term == 1
    group.heal()
    group.pass_time(1.0)
    assert (group[A].role, group[A].term) == (Role.LEADER, 1)
    assert group[C].leader_id == A


def test_removed_server_campaigns(group: Group) -> None:
    """A server with a newer term and log is ignored while a leader is heard; a stranger too."""
    group.hand_over(VoteReq(C, B, Term(9), log_id(99, 8)))
    group.hand_over(VoteReq(D, B, Term(9), log_id(99, 8)))
    assert group.mail == []
    group.hand_over(PreVoteReq(D, B, Term(9), Term(10), log_id(99, 8)))
    assert [m.denial for m in group.drop() if isinstance(m, PreVoteResp)] == [Denial.LEADER_ALIVE]
    assert (group[B].term, group[B].leader_id) == (1, A)


def test_asymmetric_partition_one_way(group: Group) -> None:
    """A follower that hears nothing but is heard keeps asking; the leader stays."""
    group.cut |= {(A, C), (B, C)}
    group.pass_time(30.0)
    assert any(isinstance(message, PreVoteReq) and message.src == C for message in group.delivered)
    assert (group[A].role, group[A].term) == (Role.LEADER, 1)


def test_leader_without_answers_steps_down(group: Group) -> None:
    """A leader that is heard but hears nobody steps down within the check-quorum window, and another one is elected."""
    group.cut |= {(B, A), (C, A)}
    group.pass_time(group.config.election_timeout_seconds_min + 2 * group.config.heartbeat_seconds + 0.01)
    assert group[A].role is not Role.LEADER
    group.pass_time(5.0)
    assert any(group[node].role is Role.LEADER for node in (B, C))


def test_leader_stays_when_two_nodes_are_cut_off_from_each_other(group: Group) -> None:
    """A and C do not see each other, B sees both: whoever leads, it stays."""
    group.cut |= {(A, C), (C, A)}
    group.pass_time(10.0)
    term = max(group[node].term for node in group.nodes)
    assert term <= 2
    group.pass_time(30.0)
    assert max(group[node].term for node in group.nodes) == term
    assert any(group[node].ready for node in group.nodes)


def test_leader_two_in_flight_terms(group: Group) -> None:
    """What a leader sent in an older term is answered with the new term and changes nothing."""
    group.propose(A)
    old = group.drop(lambda message: isinstance(message, AppendReq) and message.dst == C)
    group.deliver()
    group.isolate(A)
    group.elect(B)
    group.heal()
    before = list(group.terms(C))
    for message in old:
        group.hand_over(message)
    assert group.terms(C) == before
    answers = [m for m in group.mail if isinstance(m, AppendResp) and m.dst == A]
    assert [(answer.ok, answer.term) for answer in answers] == [(False, 2)]
    group.deliver()
    assert (group[A].role, group[A].term) == (Role.FOLLOWER, 2)


def test_prevote_lower_term_deadlock() -> None:
    """A node behind in term but ahead in log learns the term from the refusal, and wins then."""
    group = Group(3, logs={A: [1, 1, 1], B: [1], C: [1]})
    for node in (B, C):
        group.hand_over(Heartbeat(C if node == B else B, node, Term(7), 1, NO_INDEX))
        group[node].peer_lost(group[node].leader_id or node, group.now)
    group.drop()
    group.isolate(C)
    group.cut -= {(A, C), (C, A)}
    group.pass_time(4.0)
    assert (group[A].role, group[A].term) == (Role.LEADER, 8)


def test_candidate_higher_term_shorter_log(group: Group) -> None:
    """A node stuck in a higher term comes back as a follower after one more election."""
    group.replicate(A)
    group.isolate(C)
    group[C].receive(VoteReq(B, C, Term(5), NONE, force=True), group.now)
    group.pump()
    group.drop()
    group.heal()
    group.pass_time(5.0)
    leaders = [node for node in group.nodes if group[node].role is Role.LEADER]
    assert len(leaders) == 1
    assert {group[node].term for node in group.nodes} == {6}
    assert group.terms(C) == group.terms(A) == group.terms(B)


def test_late_denial_does_not_depose_a_leader() -> None:
    """A question that is no longer asked has no answer: whoever follows a leader again is not carried away by it."""
    group = Group(3).led_by(A, 1.0)
    group.hand_over(PreVoteResp(C, B, Term(5), False, log_id(0, 0), Denial.STALE_TERM))
    group.pass_time(6.0)
    assert (group[A].role, group[A].term) == (Role.LEADER, 1)


def test_ended_leader_process_is_replaced_at_once(group: Group) -> None:
    """When the end of the leader's process is certain nobody waits for its silence."""
    group.cut |= {(B, A), (C, A)}
    group[B].peer_lost(A, group.now)
    group.deliver()
    assert group[B].role is Role.PRE_CANDIDATE, "C still hears its leader"
    group[C].peer_lost(A, group.now)
    group.deliver()
    assert {group[B].role, group[C].role} == {Role.LEADER, Role.FOLLOWER}


def test_election_with_slow_fsync() -> None:
    """Disks that need longer for a vote than a round lasts delay the election, and do not prevent it."""
    group = Group(3)
    group.slow_disks |= {A, B, C}
    due: dict[tuple[str, int], float] = {}
    end = group.now + 20.0
    while group.now < end and not any(group[node].role is Role.LEADER for node in group.nodes):
        group.now += 0.05
        for node in group.nodes:
            for op in list(group.writes[node]):
                if group.now >= due.setdefault((node, op.ticket), group.now + 0.5):
                    group.finish_writes(node, 1)
            group[node].tick(group.now)
        group.deliver()
    assert sum(group[node].role is Role.LEADER for node in group.nodes) == 1


@pytest.mark.slow
def test_elections_with_slow_and_uneven_fsync() -> None:
    """Rounds get so much longer than a vote takes to be written that candidates do not split the votes for ever.

    One of five abstains, and a write takes up to four times the longest wait for the next round.
    """
    config = CoreConfig(
        heartbeat_seconds=0.04,
        election_timeout_seconds_min=0.3,
        election_timeout_seconds_max=0.6,
        vote_retry_seconds_min=0.04,
        vote_retry_seconds_max=0.1,
    )
    needed: list[float] = []
    for seed in range(100):
        rng = random.Random(seed)
        group = Group(5, config=config)
        group.now += seed  # which the time-outs are drawn from
        for node in group.nodes:
            group.start(node, abstaining=node == E)
        group.slow_disks |= set(group.nodes)
        due: dict[tuple[str, int], float] = {}
        idle_at = dict.fromkeys(group.nodes, group.now)
        began = group.now
        while group.now < began + 60.0 and not any(group[node].role is Role.LEADER for node in group.nodes):
            group.now += 0.02
            for node in group.nodes:
                for op in list(group.writes[node]):
                    if (node, op.ticket) not in due:
                        due[node, op.ticket] = idle_at[node] = max(group.now, idle_at[node]) + rng.uniform(0.0, 0.4)
                    if group.now >= due[node, op.ticket]:
                        group.finish_writes(node, 1)
                group[node].tick(group.now)
            group.deliver()
        needed.append(group.now - began)
    assert max(needed) < 4.5, sorted(needed)[-6:]


def test_leader_with_stalled_disk_hands_over(group: Group) -> None:
    """A leader whose disk hangs asks the best peer to take over, and does not campaign until the disk works."""
    group.slow_disks.add(A)
    group.propose(A)
    group[A].disk_slow(1.5, group.now)
    group.pump()
    assert any(isinstance(message, TimeoutNow) for message in group.mail)
    group.deliver()
    leaders = [node for node in group.nodes if group[node].role is Role.LEADER]
    assert leaders in ([B], [C])
    assert group[leaders[0]].ready
    group.isolate(A)
    group.time_out(A)
    assert group[A].role is Role.FOLLOWER
    group.finish_writes(A)
    group.time_out(A)
    assert group[A].role is Role.PRE_CANDIDATE


def test_follower_with_stalled_disk_is_not_elected(group: Group) -> None:
    """A follower whose disk hangs delays no commit, is not elected, and catches up when the disk works again."""
    group.slow_disks.add(C)
    for _ in range(5):
        group.replicate(A, 10)
        group[C].disk_slow(1.5, group.now)
        group.pass_time(1.0)
    assert group[A].role is Role.LEADER
    assert group[A].commit == group[B].commit == 51
    assert len(group.terms(C)) == 1
    peers = {peer.peer: peer for peer in group[A].status().peers}
    assert (peers[C].match, peers[C].disk_ok, peers[B].disk_ok) == (1, False, True)
    group.isolate(C)
    group.time_out(C)
    assert group[C].role is Role.FOLLOWER
    group.heal()
    group.slow_disks.clear()
    group.finish_writes(C)
    group.pass_time(1.0)
    assert len(group.terms(C)) >= 51
    assert group.terms(C) == group.terms(A)


def test_unhealthy_peers_are_not_asked_to_take_over(group: Group) -> None:
    """A peer whose disk hangs is no better than oneself."""
    group[B].disk_slow(2.0, group.now)
    group.pass_time(0.5)
    answers = [m for m in group.delivered if isinstance(m, HeartbeatResp) and m.src == B]
    assert not answers[-1].disk_ok
    group[A].disk_slow(1.5, group.now)
    group.pump()
    assert [m.dst for m in group.mail if isinstance(m, TimeoutNow)] == [C]


def test_voter_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="voter"):
        ConfState((A, A, B))
