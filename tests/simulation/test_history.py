"""The checker knows a broken promise when it sees one."""

from __future__ import annotations

import pytest

from chaos.log_sim.history import Entry, History
from chaos.violation import Violation
from raftlog.consensus.types import ConfState, HardState, NodeId
from raftlog.log_numbers import Term

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
CONF = ConfState((A, B, C))
ONE = Entry(1, 1, 1, 0, 101, 11)
TWO = Entry(2, 1, 1, 100, 102, 12)
OTHER = Entry(2, 2, 1, 100, 103, 13)
CHAINS = {1: 101, 2: 102}


class Disks:
    """Who has what; by default two of three have everything."""

    def __init__(self) -> None:
        self.holders = frozenset({A, B})

    def __call__(self, pos: int, data: bytes) -> frozenset[NodeId]:
        return self.holders


@pytest.fixture
def disks() -> Disks:
    return Disks()


@pytest.fixture
def history(disks: Disks) -> History:
    history = History(disks)
    for value in (11, 12, 13):
        history.begin_append(value)
    commit(history, A, ONE)
    return history


def commit(history: History, node: NodeId, entry: Entry, conf: ConfState = CONF) -> None:
    history.check_entry(node, 1, entry, lambda: b"its bytes", [conf])


def test_honest_history_passes(history: History) -> None:
    history.check_election(A, 1, 2, CHAINS.__getitem__)
    history.check_vote(B, 1, A, HardState(Term(1), A))
    commit(history, B, ONE)
    commit(history, B, TWO)
    history.acknowledge(12, 2)
    history.read(A, history.read_floor(), 2)
    history.check_acknowledged(A, 2)


def test_two_leaders_in_a_term(history: History) -> None:
    history.check_election(A, 3, 1, CHAINS.__getitem__)
    with pytest.raises(Violation, match="election safety"):
        history.check_election(B, 3, 1, CHAINS.__getitem__)


def test_checker_finds_a_leader_without_committed_entries(history: History) -> None:
    history.check_entry(A, 5, TWO, lambda: b"its bytes", [CONF])
    history.check_election(B, 4, 1, CHAINS.__getitem__)
    with pytest.raises(Violation, match="leader completeness"):
        history.check_election(B, 6, 1, CHAINS.__getitem__)


def test_two_votes_in_a_term(history: History) -> None:
    history.check_vote(B, 4, A, HardState(Term(4), A))
    with pytest.raises(Violation, match="vote"):
        history.check_vote(B, 4, B, HardState(Term(4), B))


@pytest.mark.parametrize("disk", [HardState(Term(3), A), HardState(Term(4), None), HardState(Term(4), B)])
def test_checker_finds_votes_missing_on_disk(history: History, disk: HardState) -> None:
    with pytest.raises(Violation, match="vote"):
        history.check_vote(B, 4, A, disk)


WRONG = {
    "other entry at the same index": (Entry(1, 2, 1, 0, 101, 11), "commit"),
    "same entry behind another past": (Entry(1, 1, 1, 0, 999, 11), "commit"),
    "entry behind a hole": (Entry(3, 1, 1, 200, 104, 12), "never committed"),
    "value committed twice": (Entry(2, 1, 1, 100, 102, 11), "duplicate"),
    "value that nobody asked for": (Entry(2, 1, 1, 100, 102, 99), "never asked for"),
}


@pytest.mark.parametrize(("entry", "rule"), WRONG.values(), ids=WRONG)
def test_history_refuses_an_entry_against_a_rule(history: History, entry: Entry, rule: str) -> None:
    with pytest.raises(Violation, match=rule):
        commit(history, B, entry)


@pytest.mark.parametrize(("last", "chain"), [(0, 101), (1, 999)], ids=["lacks an entry", "has another in its place"])
def test_history_refuses_a_leader_without_the_entry(history: History, last: int, chain: int) -> None:
    with pytest.raises(Violation, match="leader completeness"):
        history.check_election(B, 2, last, lambda index: chain)


@pytest.mark.parametrize("others", [[], [NodeId("learner")]], ids=["too few", "one that does not count"])
def test_commit_on_disks_of_no_majority_is_refused(history: History, disks: Disks, others: list[NodeId]) -> None:
    disks.holders = frozenset({A, *others})
    with pytest.raises(Violation, match="durability"):
        commit(history, A, TWO)


def test_commit_without_a_majority_of_the_old_voters(history: History) -> None:
    joint = ConfState((A, B, C), outgoing=(C, NodeId("d"), NodeId("e")))
    with pytest.raises(Violation, match="durability"):
        commit(history, A, TWO, joint)


def test_checker_finds_committed_refused_values(history: History) -> None:
    history.refuse(12)
    with pytest.raises(Violation, match="refused"):
        commit(history, A, TWO)


def test_history_refuses_a_value_ahead_of_earlier_acknowledged_values(history: History) -> None:
    commit(history, A, TWO)
    history.acknowledge(12, 2)
    history.begin_append(14)
    history.committed.pop()
    with pytest.raises(Violation, match="order"):
        commit(history, B, Entry(2, 1, 1, 100, 102, 14))


def test_checker_finds_stale_reads(history: History) -> None:
    commit(history, A, TWO)
    history.acknowledge(12, 2)
    with pytest.raises(Violation, match="stale read"):
        history.read(B, history.read_floor(), 1)


def test_checker_finds_reads_of_an_older_state(history: History) -> None:
    history.read(A, 0, 2)
    with pytest.raises(Violation, match="stale read"):
        history.read(B, history.read_floor(), 1)


def test_check_acknowledged_detects_a_lost_write(history: History) -> None:
    commit(history, A, TWO)
    history.acknowledge(12, 2)
    with pytest.raises(Violation, match="lost write"):
        history.check_acknowledged(B, 1)
