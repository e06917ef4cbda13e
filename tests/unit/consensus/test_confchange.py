"""Changes of membership against the definition of a majority."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.consensus.confchange import (
    decode_conf,
    encode_conf,
    may_follow,
    start_change,
    why_invalid,
    without_outgoing,
)
from raftlog.consensus.quorum import VoteResult, joint_vote_result, majority_value
from raftlog.consensus.types import ConfChange, ConfChangeKind, ConfState, NodeId

NODES = [NodeId(name) for name in "abcdef"]
nodes = st.sampled_from(NODES)
changes = st.builds(ConfChange, st.sampled_from(ConfChangeKind), nodes, st.just("host:1"), nodes)


@st.composite
def confs(draw: st.DrawFn) -> ConfState:
    """A without_outgoing configuration of one to five voters and some learners."""
    order = draw(st.permutations(NODES))
    voters = draw(st.integers(1, 5))
    learners = draw(st.integers(0, len(NODES) - voters))
    return ConfState(tuple(order[:voters]), (), tuple(order[voters : voters + learners]))


def deciding(conf: ConfState) -> Iterator[set[NodeId]]:
    """Every set of nodes that can decide something under ``conf``."""
    for size in range(1, len(NODES) + 1):
        for group in combinations(NODES, size):
            sets = [conf.voters, *[conf.outgoing] * conf.is_joint]
            if all(2 * sum(voter in group for voter in voters) > len(voters) for voters in sets):
                yield set(group)


def overlap(one: ConfState, other: ConfState) -> bool:
    return all(a & b for a in deciding(one) for b in deciding(other))


@given(confs(), changes)
def test_majorities_of_consecutive_configuration_steps_overlap(conf: ConfState, change: ConfChange) -> None:
    if why_invalid(conf, change) is not None:
        return
    steps = [conf, start_change(conf, change)]
    if steps[-1].is_joint:
        steps.append(without_outgoing(steps[-1]))
    assert not steps[-1].is_joint
    for old, new in pairwise(steps):
        assert overlap(old, new)
        assert may_follow(new, old)
    end = steps[-1]
    match change.kind:
        case ConfChangeKind.ADD_LEARNER:
            assert set(end.learners) - set(conf.learners) == {change.node}
        case ConfChangeKind.PROMOTE:
            assert set(end.voters) == {*conf.voters, change.node}
        case ConfChangeKind.REMOVE:
            assert end.members == conf.members - {change.node}
        case ConfChangeKind.REPLACE:
            assert set(end.voters) == {*conf.voters, change.node} - {change.replaced}
            assert change.replaced not in end.members
    assert {node for node, _ in end.addresses} <= end.members


@given(confs(), confs())
def test_successive_configurations_overlap(old: ConfState, new: ConfState) -> None:
    joint = ConfState(new.voters, old.voters)
    assert may_follow(joint, old)
    assert may_follow(ConfState(new.voters), joint)
    if may_follow(new, old):
        assert overlap(new, old)
    if set(new.voters) != set(old.voters):
        assert not may_follow(ConfState(old.voters), joint), "a change is not taken back"
        assert not may_follow(new, old), "nor done in one step"


@given(confs(), confs(), st.dictionaries(nodes, st.booleans()), st.dictionaries(nodes, st.integers(0, 5)))
def test_joint_decisions_need_the_same_sets_as_the_definition(
    new: ConfState, old: ConfState, votes: dict[NodeId, bool], match: dict[NodeId, int]
) -> None:
    conf = ConfState(new.voters, old.voters)
    sets = list(deciding(conf))
    won = any(all(votes.get(node) for node in group) for group in sets)
    open_or_won = any(all(votes.get(node, True) for node in group) for group in sets)
    expected = VoteResult.WON if won else VoteResult.PENDING if open_or_won else VoteResult.LOST
    assert joint_vote_result(conf.voters, conf.outgoing, votes) is expected
    index = max(min(match.get(node, 0) for node in group) for group in sets)
    assert index == min(
        majority_value([match.get(node, 0) for node in part]) for part in (conf.voters, conf.outgoing) if part
    )


@given(confs(), changes)
def test_configuration_survives_encoding_and_decoding(conf: ConfState, change: ConfChange) -> None:
    if why_invalid(conf, change) is None:
        conf = start_change(conf, change)
    assert decode_conf(memoryview(encode_conf(conf))) == conf


@given(st.binary(max_size=64))
def test_decoding_a_garbage_configuration_fails_only_with_value_errors(data: bytes) -> None:
    try:
        conf = decode_conf(data)
    except ValueError:
        return
    assert isinstance(conf, ConfState)


@pytest.mark.parametrize("data", [b"", b"\xff", encode_conf(ConfState())[:-1], bytes(70_000)])
def test_damaged_configurations_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="configuration"):
        decode_conf(data)
