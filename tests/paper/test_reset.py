"""Peers that cannot be helped with entries: they are offered a reset, and get entries again once they have had it."""

from __future__ import annotations

import itertools

import pytest

from raftlog.consensus.messages import AppendReq, AppendResp, HeartbeatResp
from raftlog.consensus.types import NONE, CoreConfig, HardState, NodeId, PeerState
from raftlog.log_numbers import LogIndex, Term
from tests.paper.group import A, B, C, Group
from tests.support.log_values import log_id

SMALL = CoreConfig(install_entries_min=20)


def state_of(group: Group, leader: NodeId, peer: NodeId) -> PeerState:
    return next(status.state for status in group[leader].status().peers if status.peer == peer)


def below_base() -> Group:
    """A leads with a log from entry 9 on; C has lost everything."""
    group = Group(3).led_by(A)
    group.isolate(C)
    group.replicate(A, 9)
    group.compact(A, 8)
    group.disks[C].terms.clear()
    group.start(C)
    group.heal()
    group.drop()
    group.delivered.clear()
    return group


def test_follower_below_base_is_offered_reset() -> None:
    """It is offered a reset every two seconds, gets no entries, and does not keep the others from committing."""
    group = below_base()
    group.pass_time(9.0)
    assert state_of(group, A, C) is PeerState.SNAPSHOT
    assert {(leader, peer) for _, leader, peer in group.offers} == {(A, C)}
    times = [time for time, _, _ in group.offers]
    assert len(times) >= 4
    assert all(2.0 <= later - earlier <= 2.5 for earlier, later in itertools.pairwise(times))
    requests = [message for message in group.delivered if isinstance(message, AppendReq) and message.dst == C]
    assert not any(message.spans for message in requests)
    assert len(requests) <= 9.0 / (2 * group.config.heartbeat_seconds) + 5
    index = group.replicate(A)
    assert group[A].commit == index
    assert group[C].leader_id == A, "it hears heartbeats meanwhile"


def test_appends_during_reset_arrive_once() -> None:
    """Appends go on during a reset. What was appended meanwhile comes as entries behind it, each once."""
    group = below_base()
    group.pass_time(2.0)
    for _ in range(20):
        group.propose(A)
        group.pass_time(0.1)
    group.install(C, A, 10)
    group.propose(A, 5)
    group.pass_time(1.5)
    assert state_of(group, A, C) is PeerState.REPLICATE
    assert group.terms(C) == group.terms(A)
    assert group[C].commit == group[A].commit == 35
    offers = len(group.offers)
    group.pass_time(5.0)
    assert len(group.offers) == offers


def test_peer_behind_the_base_during_its_reset_gets_the_next_offer() -> None:
    group = below_base()
    group.pass_time(1.0)
    group.replicate(A, 20)
    group.disks[C].base = log_id(8, 1)
    group.disks[C].terms = [Term(1), Term(1)]
    group.start(C, 10)
    group.compact(A, 25)
    group.offers.clear()
    group.pass_time(3.0)
    assert state_of(group, A, C) is PeerState.SNAPSHOT
    assert group.offers
    group.install(C, A, 28)
    group.pass_time(1.0)
    assert group.terms(C) == group.terms(A)


def ask(group: Group) -> list[AppendResp]:
    """Let A beat until C was asked whether it has the base; the answers, which do not arrive."""
    while not any(m.dst == C and isinstance(m, AppendReq) and m.prev.index == 8 for m in group.delivered):
        group.tick(A, group.config.heartbeat_seconds)
        group.deliver(lambda message: not (message.src == C and isinstance(message, AppendResp)))
    return [message for message in group.drop() if isinstance(message, AppendResp)]


def test_older_answer_does_not_accept_a_rejected_offer(group: Group) -> None:
    """C rejects a question about the base, which is lost, and then answers an older request. Taken for consent, that
    would have the leader look for entries that it has deleted.
    """
    group.replicate(A, 4)
    older = [m for m in group.delivered if isinstance(m, AppendReq) and m.dst == C and m.seq][-1]
    group.cut.add((A, C))
    group.replicate(A, 5)
    group.compact(A, 8)
    group.pass_time(2.0, [A, B])
    group.heal()
    (rejection,) = ask(group)
    assert not rejection.ok
    group.hand_over(older)
    for message in group.drop():
        group[A].receive(message, group.now)
    group[A].receive(HeartbeatResp(C, A, Term(1), rejection.seq + 1, 0, LogIndex(5)), group.now)
    group.pump()
    group.pass_time(3.0)
    assert state_of(group, A, C) is PeerState.SNAPSHOT


def test_reset_offer_is_renewed_if_the_base_moves_before_consent() -> None:
    """Its consent comes too late, and a heartbeat's answer with it: what lies between the two bases is gone."""
    group = below_base()
    group.pass_time(1.0)
    group.delivered.clear()
    group.install(C, A, 8)
    (consent,) = ask(group)
    assert (consent.ok, consent.accepted) == (True, 8)
    group.compact(A, 10)
    group[A].receive(consent, group.now)
    group[A].receive(HeartbeatResp(C, A, Term(1), consent.seq + 1, 0, LogIndex(8)), group.now)
    group.pump()
    group.pass_time(3.0)
    assert state_of(group, A, C) is PeerState.SNAPSHOT


def test_retention_races_replication() -> None:
    """A range is deleted while it is being sent: the peer is reset, also before the core learns of the deletion."""
    config = CoreConfig(append_bytes_max=100, tail_spans_max=3, catch_up_bytes_max=300, accept_ack_bytes=0)
    group = Group(3, config=config).led_by(A)
    group.isolate(C)
    for _ in range(50):
        group.replicate(A)
    group.disks[A].drop_prefix(40)
    group.heal()
    group.pass_time(3.0)
    assert state_of(group, A, C) is PeerState.SNAPSHOT
    assert 1 <= len(group.offers) <= 2
    group[A].compact(LogIndex(40), group.now)
    group.pump()
    group.install(C, A, 45)
    group.pass_time(1.0)
    assert group.terms(C) == group.terms(A)


def test_silent_peer_that_has_the_deleted_entries_needs_no_snapshot(group: Group) -> None:
    """Entries that a silent peer had not confirmed are deleted; it had them all the same and needs no reset."""
    group.cut.add((C, A))
    group.replicate(A, 9)
    group.pass_time(3.0)
    assert group[C].last_index == 10
    group.compact(A, 8)
    group.heal()
    group.pass_time(2.0)
    assert not group.offers
    assert state_of(group, A, C) is PeerState.REPLICATE


def test_log_that_left_the_leaders_before_its_base_is_reset() -> None:
    """Its entries reach behind the base, but they are of older terms: they are others than those that were deleted."""
    group = Group(3, logs={A: [1, 1, 4, 4, 4, 4, 4], B: [1, 1, 4, 4, 4, 4, 4], C: [1, 1, 2, 2, 2, 2, 2, 2, 2]}, term=4)
    group.isolate(C)
    group.elect(A)
    group.compact(A, 5)
    group.heal()
    group.pass_time(5.0)
    assert state_of(group, A, C) is PeerState.SNAPSHOT
    assert group.offers
    group.install(C, A, 8)
    group.pass_time(1.0)
    assert group.terms(C) == group.terms(A)


@pytest.mark.parametrize(("entries", "resets"), [(15, False), (30, True)])
@pytest.mark.parametrize("asked_anew", [False, True])
def test_empty_log_gets_segments_instead_of_many_entries(entries: int, resets: bool, asked_anew: bool) -> None:
    """A node that has nothing fetches segments where that is quicker, although entries would do."""
    group = Group(3, config=SMALL).led_by(A)
    if asked_anew:
        group[A].peer_lost(C, group.now)
    group.isolate(C)
    group.replicate(A, entries)
    group.disks[C].terms.clear()
    group.start(C)
    if asked_anew:
        group[A].peer_lost(C, group.now)
    group.heal()
    group.pass_time(3.0)
    assert bool(group.offers) is resets
    assert (state_of(group, A, C) is PeerState.SNAPSHOT) is resets
    assert (group.terms(C) == group.terms(A)) is not resets
    if resets:
        group.install(C, A, 25)
        group.pass_time(1.0)
        assert group.terms(C) == group.terms(A)


def test_peer_with_few_entries_gets_the_rest_as_entries() -> None:
    group = Group(3, config=SMALL).led_by(A)
    group.isolate(C)
    group.replicate(A, 100)
    group.heal()
    group.pass_time(3.0)
    assert not group.offers
    assert group.terms(C) == group.terms(A)


def test_new_leader_detects_peers_that_need_a_reset() -> None:
    group = below_base()
    group.pass_time(1.0)
    group.compact(B, 7)
    group.isolate(A)
    group.offers.clear()
    group.elect(B)
    group.pass_time(1.0, alive=[B, C])
    assert (B, C) in {(leader, peer) for _, leader, peer in group.offers}
    assert state_of(group, B, C) is PeerState.SNAPSHOT


def test_retention_keeps_entries_for_active_peers(group: Group) -> None:
    """A slow peer holds deletion back; one that is silent does not, and one that is being reset needs everything."""
    group.slow_disks.add(C)
    group.replicate(A, 9)
    assert group[A].retain_from() == 2
    assert group[B].retain_from() == group[B].last_index + 1 == 11
    group.isolate(C)
    group.pass_time(2.0)
    assert group[A].retain_from() == 11
    group = below_base()
    group.pass_time(1.0)
    group.replicate(A, 5)
    assert group[A].retain_from() == 9


@pytest.mark.parametrize("kind", [AppendResp, HeartbeatResp])
def test_late_answer_does_not_confirm_lost_entries(group: Group, kind: type[AppendResp | HeartbeatResp]) -> None:
    """A peer acknowledged entries and lost them. An answer from before that arrives when it is known: it is void."""
    group.replicate(A, 4)
    group.isolate(B)
    index = group.propose(A, 3)
    group.deliver(lambda message: message.dst == C)
    if kind is HeartbeatResp:
        group.tick(A, group.config.heartbeat_seconds)
        group.deliver(lambda message: message.dst == C)
    late = [message for message in group.drop() if isinstance(message, kind) and message.src == C]
    assert late[-1].durable == index + 2
    group.disks[C].terms.clear()
    group.disks[C].hard_state = HardState(Term(1))
    group.slow_disks.add(C)
    group.start(C)
    group.pass_time(1.0)
    assert group[A].commit == index - 1
    for message in late:
        group.hand_over(message)
    assert group[A].commit == index - 1
    group.slow_disks.clear()
    group.finish_writes(C)
    group.deliver()
    assert group[A].commit == index + 2


def test_empty_follower_of_an_uncut_log_gets_entries_without_a_reset() -> None:
    """An empty follower of a short log whose beginning is there gets entries from the first on."""
    group = Group(3, logs={A: [1] * 10, B: [1] * 10}, term=1).led_by(A, 1.0)
    assert group.disks[C].base == NONE
    assert group.terms(C) == group.terms(A)
    assert not group.offers
