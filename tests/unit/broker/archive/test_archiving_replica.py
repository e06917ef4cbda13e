"""Whose turn it is to archive: one replica at a time, the leader last; and the refill of queues from the archive."""

from __future__ import annotations

from unittest.mock import MagicMock, call

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.archive.archiving_replica import archives
from mq.broker.archive.queue_refill import QueueRefill
from mq.broker.base.archive_tier import QUEUES_FROM
from raftlog import NodeId

NODES = [NodeId(f"n{number}") for number in range(5)]


def of_turn(voters: list[NodeId], leader: NodeId | None, stuck_seconds: float) -> list[NodeId]:
    return [node for node in NODES if archives(node, voters, leader, stuck_seconds, 600.0)]


@given(st.integers(1, 5), st.data(), st.floats(0, 1e6))
def test_exactly_one_voter_archives_at_a_time(count: int, data: st.DataObject, stuck_seconds: float) -> None:
    voters = NODES[:count]
    leader = data.draw(st.sampled_from(voters))
    (node,) = of_turn(voters, leader, stuck_seconds)
    assert node in voters


def test_followers_come_first_and_the_leader_last() -> None:
    voters = NODES[:3]
    assert [of_turn(voters, NODES[0], 600.0 * turn) for turn in range(4)] == [
        [NODES[1]],
        [NODES[2]],
        [NODES[0]],
        [NODES[1]],
    ]
    assert of_turn(voters, NODES[1], 599.0) == [NODES[0]]
    assert of_turn(NODES[:1], NODES[0], 1e5) == [NODES[0]]


def test_no_replica_archives_without_a_voting_leader() -> None:
    assert of_turn(NODES[:3], None, 0.0) == []
    assert of_turn(NODES[:3], NODES[4], 0.0) == []


@pytest.mark.parametrize("lacks_older", [False, True])
def test_start_stores_the_beginnings_of_incomplete_queues(lacks_older: bool) -> None:
    context = MagicMock()
    context.tier.lacks_older = lacks_older
    context.replica.log.notes = {QUEUES_FROM: b"131072"}
    QueueRefill(context)
    assert context.replica.remember.call_args_list == [call(QUEUES_FROM, b"131072")] * lacks_older
