"""Majorities against their definition."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from raftlog.consensus.quorum import VoteResult, joint_vote_result, majority, majority_value, vote_result
from raftlog.consensus.types import NodeId

NODES = [NodeId(f"n{number}") for number in range(7)]
voters = st.lists(st.sampled_from(NODES), min_size=1, max_size=7, unique=True)
ballots = st.dictionaries(st.sampled_from(NODES), st.booleans())


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7))
def test_agreed_value_is_the_largest_reached_by_a_majority(values: list[int]) -> None:
    needed = len(values) // 2 + 1
    assert majority_value(values) == max(v for v in values if sum(other >= v for other in values) >= needed)


@given(st.integers(1, 9))
def test_any_two_majorities_overlap(size: int) -> None:
    nodes = range(size)
    groups = [set(group) for group in combinations(nodes, majority(size))]
    assert all(one & other for one in groups for other in groups)
    assert majority(size) - 1 <= size - (majority(size) - 1), "a smaller number would do"


@given(voters, ballots)
def test_vote_result_is_pending_while_open_votes_decide(voters: list[NodeId], votes: dict[NodeId, bool]) -> None:
    needed = len(voters) // 2 + 1
    for_it = [voter for voter in voters if votes.get(voter)]
    possible = [voter for voter in voters if votes.get(voter, True)]
    expected = (
        VoteResult.WON if len(for_it) >= needed else VoteResult.LOST if len(possible) < needed else VoteResult.PENDING
    )
    assert vote_result(voters, votes) is expected


@given(voters, voters, ballots)
def test_joint_vote_needs_both_majorities_and_fails_with_either(
    incoming: list[NodeId], outgoing: list[NodeId], votes: dict[NodeId, bool]
) -> None:
    parts = [vote_result(incoming, votes), vote_result(outgoing, votes)]
    result = joint_vote_result(incoming, outgoing, votes)
    assert (result is VoteResult.WON) == (parts == [VoteResult.WON] * 2)
    assert (result is VoteResult.LOST) == (VoteResult.LOST in parts)
    assert joint_vote_result(incoming, [], votes) is parts[0]
