"""The average strategy, against its published examples and its two invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client.allocation import allocate_averagely


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
def test_shares_are_contiguous_and_the_first_members_get_the_larger_ones(
    queue_count: int, member_count: int, shares: list[list[int]]
) -> None:
    members = [f"c{number}" for number in range(member_count)]
    assert [allocate_averagely(range(queue_count), members, member) for member in members] == shares


def test_a_stranger_to_the_group_gets_nothing() -> None:
    assert allocate_averagely([1, 2, 3], ["a", "b"], "c") == []


@given(queue_count=st.integers(0, 200), member_count=st.integers(1, 50))
def test_every_queue_has_exactly_one_owner_and_shares_differ_by_one_at_most(
    queue_count: int, member_count: int
) -> None:
    members = [f"{number:03}" for number in range(member_count)]
    shares = [allocate_averagely(range(queue_count), members, member) for member in members]
    assert [queue for share in shares for queue in share] == list(range(queue_count))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
