"""The checker knows a broken promise when it sees one."""

from __future__ import annotations

import pytest

from chaos.history import Entry, History, Violation
from raftlog.consensus.types import HardState, NodeId

A, B = NodeId("a"), NodeId("b")
ONE = Entry(1, 1, 11, 100)
TWO = Entry(2, 1, 12, 100)
OTHER = Entry(2, 2, 13, 100)


@pytest.fixture
def history() -> History:
    history = History(majority=2)
    history.watch([[ONE, TWO], [ONE, TWO], []])
    history.committing(A, [ONE])
    return history


def test_honest_history_passes(history: History) -> None:
    history.appended(A, ONE, 0)
    history.appended(B, ONE, 0)
    history.elected(A, 1, [ONE, TWO])
    history.voted(B, 1, A, HardState(1, A))
    history.committing(B, [ONE, TWO])
    history.acknowledged(TWO)
    history.check_acknowledged(A, [ONE, TWO])


def test_same_place_with_other_content(history: History) -> None:
    history.appended(A, ONE, 0)
    with pytest.raises(Violation, match="log matching"):
        history.appended(B, Entry(1, 1, 99, 100), 0)


def test_same_entry_behind_another(history: History) -> None:
    history.appended(A, OTHER, 1)
    with pytest.raises(Violation, match="log matching"):
        history.appended(B, OTHER, 2)


def test_two_leaders_in_a_term(history: History) -> None:
    history.elected(A, 3, [ONE])
    with pytest.raises(Violation, match="election safety"):
        history.elected(B, 3, [ONE])


def test_leader_that_lacks_a_committed_entry(history: History) -> None:
    with pytest.raises(Violation, match="leader completeness"):
        history.elected(B, 2, [])


def test_two_votes_in_a_term(history: History) -> None:
    history.voted(B, 4, A, HardState(4, A))
    with pytest.raises(Violation, match="vote"):
        history.voted(B, 4, B, HardState(4, B))


@pytest.mark.parametrize("disk", [HardState(3, A), HardState(4, None), HardState(4, B)])
def test_vote_that_is_not_on_disk(history: History, disk: HardState) -> None:
    with pytest.raises(Violation, match="vote"):
        history.voted(B, 4, A, disk)


def test_other_entry_committed_at_the_same_index(history: History) -> None:
    with pytest.raises(Violation, match="commit"):
        history.committing(B, [Entry(1, 2, 11, 100)])


def test_commit_on_too_few_disks(history: History) -> None:
    with pytest.raises(Violation, match="durability"):
        history.committing(A, [OTHER])


def test_value_committed_twice(history: History) -> None:
    again = Entry(2, 1, 11, 100)
    history.watch([[ONE, again], [ONE, again]])
    with pytest.raises(Violation, match="second time"):
        history.committing(A, [again])


def test_acknowledged_entry_that_is_gone(history: History) -> None:
    history.acknowledged(TWO)
    with pytest.raises(Violation, match="acknowledged"):
        history.check_acknowledged(B, [ONE, OTHER])
