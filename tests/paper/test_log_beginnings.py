"""Replicas whose logs begin at different entries: who may say that older entries are gone, and who leads."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from raftlog.consensus.messages import Heartbeat, HeartbeatResp, Message
from raftlog.consensus.types import Beginning, NodeId, Refusal, Role
from raftlog.log_numbers import LogIndex
from tests.paper.group import A, B, C, Group


def group_of(size: int = 3, entries: int = 20, **priorities: int) -> Group:
    """A leads, and everybody has all entries."""
    group = Group(size, priorities={NodeId(name): value for name, value in priorities.items()}).led_by(A)
    group.replicate(A, entries)
    group.pass_time(0.5)
    return group


@pytest.fixture
def group() -> Group:
    return group_of()


def beginning(group: Group, node: NodeId) -> tuple[Beginning, NodeId | None]:
    return group[node].beginning(group.now)


def test_leader_with_deleted_beginning_hands_over(group: Group) -> None:
    delete_early(group, A)
    assert beginning(group, A) == (Beginning.LATER, B)
    group.pass_time(1.0)
    assert group[A].role is Role.FOLLOWER
    leader = next(node for node in (B, C) if group[node].role is Role.LEADER)
    assert beginning(group, leader) == (Beginning.FIRST, None)
    assert beginning(group, A) == (Beginning.LATER, leader)


def delete_early(group: Group, node: NodeId) -> None:
    group.compact(node, 8)
    group[node].began_early = True


@pytest.mark.parametrize("node", [A, C])
def test_expired_entries_are_gone_despite_copies_on_other_replicas(group: Group, node: NodeId) -> None:
    """Each replica deletes expired files in its own time, and a reader may keep some of them elsewhere."""
    group.compact(node, 8)
    for _ in range(10):
        group.pass_time(10.0)
        assert beginning(group, node) == (Beginning.FIRST, None)
        assert group[A].role is Role.LEADER
    assert group[A].oldest_base == 0


def test_expired_entries_are_gone_without_a_leader(group: Group) -> None:
    group.compact(C, 8)
    group.isolate(C)
    group.pass_time(10.0)
    assert beginning(group, C) == (Beginning.FIRST, None)


def test_early_deletion_is_compared_with_a_log_that_expired(group: Group) -> None:
    """The leader has deleted less, and only what had expired."""
    group.compact(A, 4)
    delete_early(group, C)
    group.pass_time(0.5)
    assert beginning(group, A) == (Beginning.FIRST, None)
    assert beginning(group, C) == (Beginning.LATER, A)


def test_follower_with_deleted_beginning_names_the_leader(group: Group) -> None:
    delete_early(group, C)
    group.pass_time(0.5)
    assert group[A].role is Role.LEADER
    assert beginning(group, A) == (Beginning.FIRST, None)
    assert beginning(group, C) == (Beginning.LATER, A)
    assert group[A].transfer(C, group.now) is Refusal.BEGINS_LATER
    assert group[A].transfer(B, group.now) is None


def test_preferred_voter_with_deleted_beginning_does_not_lead() -> None:
    group = Group(3, priorities={C: 5}).led_by(A)
    group.replicate(A, 20)
    delete_early(group, C)
    group.pass_time(20.0)
    assert group[C].role is not Role.LEADER
    assert group[A].transfer(None, group.now) is None
    group.pass_time(1.0)
    assert group[B].role is Role.LEADER


def test_replica_with_deleted_beginning_lets_others_campaign() -> None:
    for _ in range(5):
        group = group_of()
        delete_early(group, C)
        group.pass_time(0.5)
        group.isolate(A)
        group.pass_time(4.0)
        assert group[B].role is Role.LEADER


def test_replica_without_leader_does_not_know(group: Group) -> None:
    delete_early(group, C)
    group.pass_time(0.5)
    group.isolate(C)
    group.pass_time(10.0)
    assert beginning(group, C)[0] is Beginning.UNKNOWN


def test_new_leader_asks_for_log_beginnings_first(group: Group) -> None:
    for node in (A, B, C):
        group.compact(node, 8)
    group[A].transfer(B, group.now)
    group.deliver()
    assert group[B].role is Role.LEADER
    group.mail.clear()
    assert beginning(group, B)[0] in (Beginning.UNKNOWN, Beginning.FIRST)
    group.pass_time(0.5)
    assert [beginning(group, node)[0] for node in (A, B, C)] == [Beginning.FIRST] * 3


def test_silent_member_counts_only_after_an_early_deletion(group: Group) -> None:
    group.isolate(C)
    for node in (A, B):
        group.compact(node, 8)
    group.pass_time(5.0)
    leader = next(node for node in (A, B) if group[node].role is Role.LEADER)
    # C has told that its log begins at the first entry, and is silent now.
    assert beginning(group, leader) == (Beginning.FIRST, None)
    group[leader].began_early = True
    assert beginning(group, leader) == (Beginning.UNKNOWN, None)


def test_leader_does_not_wait_for_log_beginnings_of_older_replicas(group: Group) -> None:
    group.compact(A, 8)
    group.compact(B, 8)
    group.compact(C, 8)
    group.pass_time(0.5)
    for peer in (B, C):
        term = group[A].term
        group[A].receive(HeartbeatResp(peer, A, term, 10**6, 0, LogIndex(0)), group.now)
    assert beginning(group, A) == (Beginning.FIRST, None)
    group[B].receive(Heartbeat(A, B, group[A].term, 10_000, LogIndex(20)), group.now)
    assert beginning(group, B) == (Beginning.FIRST, None)


def run_older_software(monkeypatch: pytest.MonkeyPatch, group: Group, *nodes: NodeId) -> None:
    """From now on they do not tell where their logs begin."""
    for node in nodes:
        post = group[node]._post

        def silent(message: Message, post: Callable[[Message], None] = post) -> None:
            if isinstance(message, HeartbeatResp):
                message = msgspec.structs.replace(message, base=None, began_early=False)
            elif isinstance(message, Heartbeat):
                message = msgspec.structs.replace(message, base=None, oldest=None)
            post(message)

        monkeypatch.setattr(group[node], "_post", silent)
    group.pass_time(0.5)


def test_older_software_leads_after_an_early_deletion(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have what was deleted, and cannot be asked."""
    run_older_software(monkeypatch, group, B, C)
    delete_early(group, A)
    assert beginning(group, A) == (Beginning.UNKNOWN, None)
    group.pass_time(1.0)
    assert group[A].role is Role.FOLLOWER
    leader = next(node for node in (B, C) if group[node].role is Role.LEADER)
    assert beginning(group, A) == (Beginning.UNKNOWN, leader)
    group.pass_time(30.0)
    assert group[leader].role is Role.LEADER


def test_known_longer_log_leads_rather_than_older_software(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    run_older_software(monkeypatch, group, B)
    delete_early(group, A)
    group.pass_time(1.0)
    assert group[C].role is Role.LEADER
    assert beginning(group, A) == (Beginning.LATER, C)


def test_leader_deletes_expired_files_despite_older_members(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    run_older_software(monkeypatch, group, B, C)
    group.compact(A, 8)
    group.pass_time(2.0)
    assert group[A].role is Role.LEADER
    assert beginning(group, A) == (Beginning.FIRST, None)


def test_leader_waits_for_a_silent_member_before_comparing_log_beginnings(group: Group) -> None:
    """It has told that its log begins earlier, and nothing else yet."""
    group.isolate(C)
    delete_early(group, A)
    group.compact(B, 8)
    group.pass_time(2.0)
    # The new leader hears C once, and never gets an answer to its entries.
    group[A].transfer(B, group.now)
    group.pass_time(2.0)
    assert group[B].role is Role.LEADER
    group[B].began_early = True
    assert beginning(group, B) == (Beginning.UNKNOWN, None)
    group[B].receive(HeartbeatResp(C, B, group[B].term, 10**6, 0, LogIndex(0), base=LogIndex(0)), group.now)
    assert beginning(group, B) == (Beginning.UNKNOWN, None)
    group.pass_time(2.0)
    assert beginning(group, B) == (Beginning.UNKNOWN, None)


def test_new_leader_transfers_leadership_only_knowing_log_beginnings(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a replica that deleted early gets the leadership, gives it back at once, and gets it again."""
    delete_early(group, C)
    post = group[C]._post

    def without_answers(message: Message) -> None:
        if not isinstance(message, HeartbeatResp):
            post(message)

    monkeypatch.setattr(group[C], "_post", without_answers)
    group[A].transfer(B, group.now)
    group.pass_time(0.3)
    assert group[B].role is Role.LEADER
    assert group[B].transfer(C, group.now) is Refusal.NOT_CAUGHT_UP
    monkeypatch.undo()
    group.pass_time(0.5)
    assert group[B].transfer(C, group.now) is Refusal.BEGINS_LATER
