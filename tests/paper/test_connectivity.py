"""Elections while not everybody sees everybody, or while somebody is far behind."""

from __future__ import annotations

from raftlog.consensus.messages import AppendReq, AppendResp, Heartbeat, PreVoteReq, TimeoutNow
from raftlog.consensus.types import Role
from raftlog.log_numbers import Term
from tests.paper.group import A, B, C, Group


def test_quorum_loss_partial() -> None:
    """All five see C and nobody else. The old leader, which C hears, must make way for C, which sees a majority."""
    group = Group(5).led_by(A)
    group.cut |= {(one, other) for one in group.nodes for other in group.nodes if C not in (one, other)}
    group.pass_time(12.0)
    assert group[C].role is Role.LEADER
    assert group[C].ready
    assert group[A].role is not Role.LEADER
    term = group[C].term
    assert term <= 4
    group.pass_time(20.0)
    assert (group[C].role, group[C].term) == (Role.LEADER, term)


def test_prevote_longer_log_vs_candidate() -> None:
    """A candidate whose log is too short to win makes way for the one with the longer log that asks it."""
    group = Group(3, logs={A: [1, 1, 1], B: [1], C: [1, 1]}, term=1)
    group.isolate(A)
    group[B].receive(TimeoutNow(A, B, Term(1)), group.now)
    group.deliver()
    assert group[B].role is Role.CANDIDATE
    group.time_out(C)
    group.deliver()
    assert (group[C].role, group[C].term) == (Role.LEADER, 3)
    assert group.terms(B) == group.terms(C)


def test_prevote_storm_during_catchup() -> None:
    """Requests that fail the check of the log are a sign of life too: who is found to lag does not ask for votes."""
    ours = [term for term in range(1, 20, 2) for _ in range(10)]
    theirs = [1] * 5 + [term for term in range(2, 20, 2) for _ in range(10)]
    group = Group(3, logs={A: ours, B: ours, C: theirs}, term=20)
    group.cut.add((C, A))
    group.isolate(C)
    group.elect(A)
    group.heal()
    group.drop()
    group.delivered.clear()
    term = group[A].term
    rejections = 0
    for _ in range(12):
        # A round trip takes a second, and no heartbeat gets through to C.
        for _ in range(5):
            group.now += group.config.heartbeat_seconds
            for node in group.nodes:
                group[node].tick(group.now)
            group.pump()
            group.drop(lambda message: isinstance(message, Heartbeat) and message.dst == C)
            group.deliver(lambda message: C not in (message.src, message.dst))
        if rejections:
            assert not any(isinstance(message, PreVoteReq) for message in group.mail)
        arriving = [message for message in group.mail if isinstance(message, AppendReq) and message.dst == C]
        group.drop()
        for message in arriving[-1:]:
            group.hand_over(message)
        rejections += any(isinstance(message, AppendResp) and not message.ok for message in group.mail)
        group.deliver(lambda message: message.src == C)
        assert group[C].leader_id == A
    assert rejections >= 8
    group.pass_time(1.0)
    assert group[A].term == term
    assert group.terms(C) == group.terms(A)
