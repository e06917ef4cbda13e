"""The strategies, against published examples and their invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client import MessageQueue
from mq.client.consume.allocation import (
    Strategy,
    allocate_averagely,
    allocate_consistently,
    allocate_fixed,
    allocate_in_circle,
    allocate_in_rooms,
    allocate_nearby,
)
from mq.protocol.requests.allocation import ring_hash


@pytest.mark.parametrize(
    ("queue_count", "member_count", "shares"),
    [
        (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (3, 5, [[0], [1], [2], [], []]),
        (4, 2, [[0, 1], [2, 3]]),
        (8, 1, [list(range(8))]),
        (0, 2, [[], []]),
        (5, 3, [[0, 1], [2, 3], [4]]),
    ],
)
def test_first_members_get_the_larger_contiguous_shares(
    queue_count: int, member_count: int, shares: list[list[int]]
) -> None:
    members = [f"c{number}" for number in range(member_count)]
    assert [allocate_averagely(range(queue_count), members, member) for member in members] == shares


def test_client_outside_the_group_gets_no_queues() -> None:
    assert allocate_averagely([1, 2, 3], ["a", "b"], "c") == []


@given(queue_count=st.integers(0, 200), member_count=st.integers(1, 50))
def test_queue_shares_of_members_differ_by_one_at_most(queue_count: int, member_count: int) -> None:
    members = [f"{number:03}" for number in range(member_count)]
    shares = [allocate_averagely(range(queue_count), members, member) for member in members]
    assert [queue for share in shares for queue in share] == list(range(queue_count))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


# -- the other strategies ----------------------------------------------------------------------------------------------


def queues_of(count: int, broker_name: str = "b-a") -> list[MessageQueue]:
    return [MessageQueue("T1", broker_name, number) for number in range(count)]


def shares(strategy: Strategy, queues: list[MessageQueue], members: list[str]) -> list[list[int]]:
    return [[queue.queue_id for queue in strategy(queues, members, member)] for member in members]


MEMBERS = ["c1", "c2", "c3", "c4"]


def test_circular_allocation_assigns_queues_in_turn() -> None:
    assert shares(allocate_in_circle, queues_of(10), MEMBERS) == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert shares(allocate_in_circle, queues_of(3), ["a", "b", "c", "d", "e"]) == [[0], [1], [2], [], []]


def test_room_allocation_assigns_only_queues_of_given_rooms() -> None:
    queues = queues_of(10, "room1@b") + queues_of(3, "room2@b") + queues_of(3, "b") + queues_of(3, "room1@b@c")
    allocate = allocate_in_rooms({"room1"})
    assert shares(allocate, queues, MEMBERS) == [[0, 1, 8], [2, 3, 9], [4, 5], [6, 7]]
    assert {queue.broker_name for queue in allocate(queues, MEMBERS, "c1")} == {"room1@b"}


def test_consistent_allocation_matches_the_java_hash() -> None:
    assert ring_hash("c1-0") == 3886541579
    assert ring_hash("MessageQueue [topic=T1, brokerName=b-a, queueId=0]") == 86364034
    assert shares(allocate_consistently, queues_of(8), ["c1", "c2"]) == [[7], [0, 1, 2, 3, 4, 5, 6]]


def test_nearby_allocation_keeps_queues_in_their_room() -> None:
    queues = queues_of(4, "east") + queues_of(2, "west") + queues_of(3, "south")
    members = ["east-1", "east-2", "west-1"]
    allocate = allocate_nearby(allocate_averagely, lambda queue: queue.broker_name, lambda each: each.partition("-")[0])
    assert [[(queue.broker_name, queue.queue_id) for queue in allocate(queues, members, each)] for each in members] == [
        [("east", 0), ("east", 1), ("south", 0)],
        [("east", 2), ("east", 3), ("south", 1)],
        [("west", 0), ("west", 1), ("south", 2)],
    ]
    with pytest.raises(ValueError, match="no machine room"):
        allocate_nearby(allocate_averagely, lambda queue: "", lambda each: "x")(queues, members, "east-1")


def test_fixed_allocation_returns_the_chosen_queues() -> None:
    chosen = queues_of(2)
    assert allocate_fixed(chosen)(queues_of(9), ["a", "b"], "b") == chosen


STRATEGIES: dict[str, Strategy] = {
    "average": allocate_averagely,
    "circle": allocate_in_circle,
    "consistent": allocate_consistently,
    "rooms": allocate_in_rooms({"r0", "r1", "r2"}),
    "nearby": allocate_nearby(
        allocate_in_circle, lambda queue: queue.broker_name.partition("@")[0], lambda member: f"r{int(member) % 2}"
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
@given(counts=st.lists(st.integers(0, 20), min_size=3, max_size=3), member_count=st.integers(1, 12))
def test_every_queue_has_exactly_one_owner(name: str, counts: list[int], member_count: int) -> None:
    strategy = STRATEGIES[name]
    queues = [queue for room, count in enumerate(counts) for queue in queues_of(count, f"r{room}@b")]
    members = [f"{number:03}" for number in range(member_count)]
    owned = [queue for member in members for queue in strategy(queues, members, member)]
    assert sorted(owned) == queues
    assert not strategy(queues, members, "stranger")
