"""Replication and commit: logs converge, and what is committed stays (Raft thesis 3.5, 3.6)."""

from __future__ import annotations

import random
from typing import TypeGuard

import pytest

from raftlog.consensus.messages import AppendReq, AppendResp, Heartbeat, HeartbeatResp, Message
from raftlog.consensus.types import CoreConfig, Refusal, Role, Span
from raftlog.consensus.validation import PeerMessageInvalid
from raftlog.log_numbers import NO_INDEX, LogIndex, Term
from tests.paper.group import ENTRY_BYTES, A, B, C, D, E, Group
from tests.support.log_values import log_id, span_of


def is_append(message: Message) -> TypeGuard[AppendReq]:
    return isinstance(message, AppendReq)


def test_entry_of_older_term_needs_newer_entry_to_commit() -> None:
    """An older term's entry on a majority is not committed until an entry of the own term is (figure 3.7)."""
    group = Group(5, logs={A: [1, 2], B: [1, 2], C: [1], D: [1], E: [1, 3]}, term=3)
    group.cut |= {(E, A), (A, E)}
    group.time_out(A)
    group.deliver(lambda message: not is_append(message))
    assert (group[A].role, group[A].term) == (Role.LEADER, 4)
    # The old entry reaches C, the one that opens term 4 does not.
    old = AppendReq(A, C, Term(4), log_id(1, 1), (span_of(2, 2, 2, ENTRY_BYTES),), NO_INDEX, 1)
    group.drop(is_append)
    group.hand_over(old)
    group.deliver(lambda message: isinstance(message, AppendResp))
    for node in (B, C):
        group[A].receive(AppendResp(node, A, Term(4), 99, True, LogIndex(2), LogIndex(2), log_id(2, 2)), group.now)
    group[A].take_effects()
    assert group.terms(A)[:2] == group.terms(B) == group.terms(C) == [1, 2]
    assert group[A].commit == 0
    # So E may still win and overwrite it ...
    group.isolate(A)
    group.drop()
    group.now += group.config.election_timeout_seconds_max
    group.time_out(E)
    group.deliver()
    group.elect(E)
    assert group.terms(C)[:2] == [1, 3]


def test_figure_8_commits_with_the_own_term() -> None:
    """... unless the entry of term 4 got to a majority: then both are committed, and E cannot win."""
    group = Group(5, logs={A: [1, 2], B: [1, 2], C: [1], D: [1], E: [1, 3]}, term=3)
    group.isolate(D, E)
    group.elect(A)
    assert group[A].commit == 3
    group.heal()
    group.isolate(A)
    group.time_out(E)
    group.deliver()
    assert group[E].role is not Role.LEADER


def test_follower_with_diverged_log_gets_log_of_leader() -> None:
    """A thousand entries in ten terms that differ are found in one round trip per term, and replaced."""
    ours = [term for term in range(1, 20, 2) for _ in range(100)]
    theirs = [1] * 50 + [term for term in range(2, 20, 2) for _ in range(105)]
    group = Group(3, logs={A: ours, B: ours, C: theirs}, term=20)
    group.isolate(C)
    group.elect(A)
    group.heal()
    group.delivered.clear()
    group.pass_time(4.0)
    assert group.terms(C) == group.terms(A)
    refusals = [m for m in group.delivered if isinstance(m, AppendResp) and m.src == C and not m.ok]
    assert 1 <= len(refusals) <= 11


@pytest.mark.parametrize("seed", range(20))
def test_repeated_appends_in_any_order_give_same_log(seed: int) -> None:
    """Any cut, repetition and order of requests gives the same log, and nothing that matches is ever cut off."""
    rng = random.Random(seed)
    terms = sorted(rng.choices(range(1, 5), k=30))
    group = Group(3, term=4)
    core = group[C]
    requests: list[AppendReq] = []
    for _ in range(60):
        prev = rng.randint(0, 29)
        last = rng.randint(prev, 30)
        requests.append(_request(terms, prev, last, seq=len(requests) + 1))
    requests += [_request(terms, first, first + 1, seq=100 + first) for first in range(30)]
    longest = 0
    for request in requests:
        group.hand_over(request)
        assert len(group.terms(C)) >= longest
        longest = len(group.terms(C))
        assert group.terms(C) == terms[:longest]
    assert core.last_index == 30


def _request(terms: list[int], prev: int, last: int, *, seq: int) -> AppendReq:
    """What a leader with a log of ``terms`` sends for the entries behind ``prev`` up to ``last``."""
    spans: list[Span] = []
    for index in range(prev + 1, last + 1):
        if spans and spans[-1].term == terms[index - 1]:
            spans[-1] = Span(spans[-1].first, LogIndex(index), spans[-1].term, spans[-1].nbytes + ENTRY_BYTES)
        else:
            spans.append(span_of(index, index, terms[index - 1], ENTRY_BYTES))
    return AppendReq(A, C, Term(5), log_id(prev, terms[prev - 1] if prev else 0), tuple(spans), NO_INDEX, seq)


def test_delayed_append_after_truncate(group: Group) -> None:
    """A request of a deposed leader that arrives after its entries were replaced does not bring them back."""
    group.propose(A)
    delayed = [m for m in group.mail if is_append(m) and m.dst == C]
    group.deliver(lambda message: message.dst == C)
    group.drop()
    assert group.terms(C) == [1, 1]
    group.isolate(A, C)
    group.start(B)
    group.heal()
    group.isolate(A)
    group.elect(C)
    group.isolate(C)
    group.cut -= {(B, C), (C, B)}
    before = list(group.terms(B))
    for message in delayed:
        group[B].receive(AppendReq(A, B, Term(1), message.prev, message.spans, NO_INDEX, message.seq), group.now)
    group.pump()
    assert group.terms(B) == before


def test_deposed_leader_cannot_truncate_log_of_successor(group: Group) -> None:
    """A deposed leader cannot cut off what its successor wrote."""
    group.propose(A, 3)
    group.isolate(A)
    group.drop()
    group.elect(B)
    group.replicate(B)
    committed = list(group.terms(C))
    group.heal()
    group.hand_over(AppendReq(A, C, Term(1), log_id(1, 1), (span_of(2, 4, 1, 300),), LogIndex(4), 77))
    assert group.terms(C) == committed
    group.deliver()
    group.pass_time(1.0)
    assert group.terms(A) == committed
    assert group.failed_from[A] == 2


def test_commit_hint_beyond_log() -> None:
    """A follower commits what a message has verified, never an unverified end of its log."""
    group = Group(3, logs={C: [1, 1, 1, 1]})
    group.hand_over(Heartbeat(A, C, Term(2), 1, LogIndex(4)))
    assert group[C].commit == 0
    group.hand_over(AppendReq(A, C, Term(2), log_id(2, 1), (), LogIndex(4), 2))
    assert group[C].commit == 2
    group.hand_over(Heartbeat(A, C, Term(2), 3, LogIndex(4)))
    assert group[C].commit == 2
    group.hand_over(AppendReq(A, C, Term(2), log_id(2, 1), (span_of(3, 3, 2, 100),), LogIndex(9), 4))
    assert (group[C].commit, group.terms(C)) == (3, [1, 1, 2])


def test_acknowledgement_excludes_unverified_entries() -> None:
    """A durable end of the log that the leader has not confirmed is not acknowledged."""
    group = Group(3, logs={C: [1, 1, 1, 1]})
    group.hand_over(AppendReq(A, C, Term(2), log_id(2, 1), (), NO_INDEX, 1))
    group.hand_over(Heartbeat(A, C, Term(2), 2, NO_INDEX))
    answers = group.drop()
    assert [(m.accepted, m.durable) for m in answers if isinstance(m, AppendResp)] == [(2, 2)]
    assert [m.durable for m in answers if isinstance(m, HeartbeatResp)] == [2]


@pytest.mark.parametrize("lost", [AppendReq, AppendResp])
def test_heartbeat_recovers_a_lost_final_acknowledgement(group: Group, lost: type[Message]) -> None:
    """The last request, or its answer, is lost and nothing follows: a heartbeat finds out and the entry commits."""
    index = group.propose(A)
    group.deliver(lambda message: not isinstance(message, lost))
    group.drop()
    assert group[A].commit < index
    group.pass_time(3 * group.config.heartbeat_seconds)
    assert {group[node].commit for node in group.nodes} == {index}


def test_noop_unblocks_commit() -> None:
    """Entries of older terms commit after an election although no client writes anything."""
    group = Group(3, logs={A: [1, 1, 1], B: [1, 1, 1], C: [1, 1]}, term=1).led_by(A)
    assert {group[node].commit for node in group.nodes} == {4}
    assert group.terms(C) == [1, 1, 1, 2]


def test_proposal_timeout_unknown(group: Group) -> None:
    """A proposal nobody answered may still commit, once, when the partition heals before anybody else leads."""
    group.isolate(A)
    index = group.replicate(A)
    assert group[A].commit < index
    assert A not in group.failed_from
    group.heal()
    group.pass_time(1.0)
    assert {group[node].commit for node in group.nodes} == {index}
    assert len(group.terms(B)) == index


def test_pending_failed_on_stepdown(group: Group) -> None:
    """Stepping down names the first proposal whose outcome is open; committed ones are not among them."""
    done = group.replicate(A)
    group.isolate(A)
    open_index = group.replicate(A, 5)
    assert group[A].commit == done
    group.pass_time(3.0, alive=[A])
    assert group[A].role is not Role.LEADER
    assert group.failed_from[A] == open_index == done + 1
    assert group[A].propose(1, 100, group.now) is Refusal.NOT_LEADER


def test_replacing_committed_entry_is_refused() -> None:
    """A leader that would replace a committed entry is a broken promise: it is refused."""
    group = Group(3, logs={C: [1, 1, 1]}, commit=3)
    with pytest.raises(PeerMessageInvalid, match="settled with terms 1 to 1"):
        group[C].receive(
            AppendReq(A, C, Term(2), log_id(1, 1), (span_of(2, 2, 2, 100),), NO_INDEX, 1),
            group.now,
        )


def test_second_leader_of_a_term_is_refused(group: Group) -> None:
    with pytest.raises(PeerMessageInvalid, match="b claims to lead in term 1, in which a leads"):
        group[A].receive(Heartbeat(B, A, Term(1), 1, NO_INDEX), group.now)
    with pytest.raises(PeerMessageInvalid, match="b claims to lead in term 1, in which a leads"):
        group[C].receive(Heartbeat(B, C, Term(1), 1, NO_INDEX), group.now)


def test_write_of_replaced_entries_does_not_make_successors_durable() -> None:
    """The write of entries that were replaced meanwhile does not make their successors durable."""
    group = Group(3, term=1)
    group.slow_disks.add(C)
    core = group[C]
    group.hand_over(AppendReq(A, C, Term(1), log_id(0, 0), (span_of(1, 5, 1, 500),), NO_INDEX, 1))
    group.hand_over(AppendReq(B, C, Term(2), log_id(2, 1), (span_of(3, 5, 2, 300),), NO_INDEX, 1))
    assert core.durable == 0
    group.finish_writes(C, 1)
    assert core.durable == 2
    group.pump()
    assert not [m for m in group.mail if isinstance(m, AppendResp) and m.durable > 2]
    group.finish_writes(C)
    group.pump()
    assert core.durable == 5
    assert group.terms(C) == [1, 1, 2, 2, 2]
    assert [m.durable for m in group.mail if isinstance(m, AppendResp) and m.dst == B][-1] == 5


def test_write_replaced_before_its_start_needs_no_truncation() -> None:
    """Entries that come and go between two looks at the effects are never asked to be cut off a log without them."""
    group = Group(3, term=1)
    core = group[C]
    core.receive(
        AppendReq(A, C, Term(1), log_id(0, 0), (span_of(1, 5, 1, 500),), NO_INDEX, 1),
        group.now,
    )
    core.receive(
        AppendReq(B, C, Term(2), log_id(2, 1), (span_of(3, 3, 2, 100),), NO_INDEX, 1),
        group.now,
    )
    op = core.take_effects().storage
    assert op is not None
    assert op.truncate_from is None
    assert [(span.first, span.last, span.term) for span in op.spans] == [(1, 2, 1), (3, 3, 2)]


def test_commit_before_own_disk(group: Group) -> None:
    """Two followers commit what the leader has not written yet; its crash loses nothing."""
    group.slow_disks.add(A)
    index = group.replicate(A)
    assert (group[A].commit, group[A].durable) == (index, index - 1)
    group.start(A)
    group.slow_disks.clear()
    assert group[A].last_index == index - 1
    group.elect(B)
    assert group.terms(A) == group.terms(B) == group.terms(C)
    assert group[A].commit == index + 1


def test_follower_acknowledges_only_its_disk(group: Group) -> None:
    """Nothing commits while both followers' disks are still writing."""
    group.slow_disks |= {B, C}
    index = group.replicate(A)
    assert group[A].commit == index - 1
    group.finish_writes(B)
    group.deliver()
    assert group[A].commit == index


def test_relaxed_commit_does_not_wait_for_the_disk() -> None:
    """Without durable commit an entry is committed when a majority has received it."""
    group = Group(3, config=CoreConfig(durable_commit=False)).led_by(A)
    group.slow_disks |= {A, B, C}
    index = group.replicate(A)
    assert {group[node].commit for node in group.nodes} == {index}
    assert group[A].durable == index - 1


def test_proposals_between_two_polls_are_sent_together() -> None:
    """They are one write and one request per peer, or more requests where one would be too large."""
    group = Group(3, config=CoreConfig(append_bytes_max=3 * ENTRY_BYTES))
    core = group.elect(A)
    for _ in range(7):
        core.propose(1, ENTRY_BYTES, group.now)
    effects = core.take_effects()
    assert effects.storage is not None
    assert [span.last for span in effects.storage.spans] == list(range(2, 9))
    sizes = [len(m.spans) for m in effects.send if isinstance(m, AppendReq) and m.dst == B]
    assert sizes == [3, 3, 1]
    assert not core.has_effects


def test_idle_commit_is_announced_at_once_and_not_answered(group: Group) -> None:
    """Followers learn of a commit without waiting for a heartbeat, and say nothing to it."""
    index = group.replicate(A)
    assert {group[node].commit for node in group.nodes} == {index}
    assert not any(isinstance(message, Heartbeat) for message in group.delivered)
    announcements = [m for m in group.delivered if isinstance(m, AppendReq) and m.commit == index]
    assert [(m.spans, m.seq) for m in announcements] == [((), 0), ((), 0)]
    assert group.mail == []


def test_commit_index_travels_with_the_next_entries() -> None:
    """With a delay a commit index is told by the next entries, or alone when the delay is over and none came."""
    group = Group(3, config=CoreConfig(announce_seconds=0.005))
    core = group.elect(A)
    first = group.replicate(A)
    assert (core.commit, group[B].commit) == (first, first - 1)
    second = group.replicate(A)
    assert (core.commit, group[B].commit) == (second, first)
    assert not any(isinstance(m, AppendReq) and not m.spans for m in group.delivered)
    assert core.next_deadline() <= group.now + 0.005
    group.pass_time(0.006)
    assert {group[node].commit for node in group.nodes} == {second}
    assert not any(isinstance(message, Heartbeat) for message in group.delivered)


def test_entries_that_carry_the_commit_index_postpone_its_announcement() -> None:
    """In a steady trickle of entries, faster than the delay, nobody is woken up only for a commit index."""
    group = Group(3, config=CoreConfig(announce_seconds=0.005))
    core = group.elect(A)
    for _ in range(10):
        committed = group.replicate(A)
        assert core.commit == committed
        group.pass_time(0.004)
    assert not any(isinstance(m, AppendReq) and not m.spans for m in group.delivered)
    group.pass_time(0.002)
    assert {group[node].commit for node in group.nodes} == {committed}


def test_uncommitted_limit_refuses_proposals_until_commit() -> None:
    """Too much on its way is refused until something commits; what can never fit is told apart."""
    group = Group(3, config=CoreConfig(uncommitted_bytes_max=1000))
    core = group.elect(A)
    assert core.propose(1, 1001, group.now) is Refusal.TOO_LARGE
    assert isinstance(core.propose(1, 600, group.now), int)
    assert core.propose(1, 600, group.now) is Refusal.BUSY
    group.deliver()
    assert isinstance(core.propose(1, 600, group.now), int)


def test_slow_follower_gets_one_window_of_appends() -> None:
    """A peer that does not answer gets a window full and no more; the others go on, and it catches up later."""
    config = CoreConfig(
        append_bytes_max=ENTRY_BYTES,
        inflight_messages_max=4,
        inflight_bytes_max=1000,
        accept_ack_bytes=0,
        tail_spans_max=3,
        catch_up_bytes_max=300,
    )
    group = Group(3, config=config)
    core = group.elect(A)
    for _ in range(50):
        group.propose(A)
        group.deliver(lambda message: message.dst != C)
    assert core.commit == 51
    assert sum(is_append(m) and m.dst == C and m.seq > 0 for m in group.mail) == 4
    group.deliver()
    assert group.terms(C) == group.terms(A)
    assert {fetch.peer for fetch in group.fetches} == {C}
    assert len(core._tail) <= 4


def test_acceptance_is_reported_early_after_much_data() -> None:
    """A follower with a slow disk frees the leader's window without vouching for its disk."""
    group = Group(3, config=CoreConfig(accept_ack_bytes=250), term=1)
    group.slow_disks.add(C)
    group.hand_over(Heartbeat(A, C, Term(1), 1, NO_INDEX))
    group.drop()
    for number in range(3):
        prev = log_id(number, min(number, 1))
        group.hand_over(
            AppendReq(
                A,
                C,
                Term(1),
                prev,
                (span_of(number + 1, number + 1, 1, 100),),
                NO_INDEX,
                number + 2,
            )
        )
        answers = [m for m in group.drop() if isinstance(m, AppendResp)]
        assert [(m.accepted, m.durable) for m in answers] == ([(3, 0)] if number == 2 else [])


def test_wiped_follower_is_refilled(group: Group) -> None:
    """A follower that comes back with nothing gets everything, although nobody writes."""
    group.replicate(A, 4)
    group.disks[C].terms.clear()
    group.start(C)
    group.pass_time(1.0)
    assert group.terms(C) == group.terms(A)


def test_silent_peer_is_probed_before_getting_more_entries() -> None:
    """After silence the leader does not fill a window for a peer that may be gone."""
    group = Group(3)
    core = group.elect(A)
    group.isolate(C)
    group.pass_time(3.0)
    group.drop()
    for _ in range(20):
        group.propose(A)
    assert not any(is_append(message) and message.dst == C for message in group.mail)
    group.heal()
    group.deliver()
    group.pass_time(1.0)
    assert group.terms(C) == group.terms(A)
    assert core.commit == core.last_index
