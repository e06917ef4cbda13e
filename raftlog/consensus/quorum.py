"""Majorities, of one set of voters or of two at once (Raft thesis 3.5, 4.3). Pure functions."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from raftlog.consensus.types import NodeId

Value = TypeVar("Value", bound=float)


class VoteResult(enum.Enum):
    """Whether a candidate has won, lost, or still waits for votes."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voters: int) -> int:
    """Return the smallest number of ``voters`` such that any two sets of that size overlap."""
    return voters // 2 + 1


def majority_value(values: Sequence[Value]) -> Value:
    """Return the largest value that a majority has reached, given one value per voter.

    For match indices: the index up to which the log is committed. For contact times: since when a majority was heard.
    """
    assert values, "an empty set of voters agrees on nothing"
    return sorted(values)[(len(values) - 1) // 2]


def vote_result(voters: Collection[NodeId], votes: Mapping[NodeId, bool]) -> VoteResult:
    """Return the state of an election among ``voters``. Ignores votes of others."""
    votes_for = sum(votes.get(voter, False) for voter in voters)
    open_votes = sum(voter not in votes for voter in voters)
    quorum = majority(len(voters))
    if votes_for >= quorum:
        return VoteResult.WON
    return VoteResult.PENDING if votes_for + open_votes >= quorum else VoteResult.LOST


def joint_vote_result(
    incoming: Collection[NodeId], outgoing: Collection[NodeId], votes: Mapping[NodeId, bool]
) -> VoteResult:
    """Return `vote_result` with majorities of both sets. An empty ``outgoing`` means no change in progress."""
    results = {vote_result(incoming, votes)}
    if outgoing:
        results.add(vote_result(outgoing, votes))
    if VoteResult.LOST in results:
        return VoteResult.LOST
    return VoteResult.PENDING if VoteResult.PENDING in results else VoteResult.WON
