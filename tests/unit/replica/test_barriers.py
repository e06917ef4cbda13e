"""When a waiting read is answered, step by step and without a clock."""

from __future__ import annotations

from raftlog.log_numbers import LogIndex
from raftlog.read_barrier import READ_SECONDS_MAX, ReadBarriers


def test_follower_read_applied_wait_lasts_until_the_index_is_applied() -> None:
    barriers, answers = ReadBarriers(), list[bool]()
    barriers.add(answers.append)
    ctx = barriers.ask(0.0)
    barriers.on_apply(LogIndex(100))
    assert answers == [], "applied, but nobody has said yet how much is needed"
    barriers.complete(ctx, LogIndex(7))
    barriers.on_apply(LogIndex(6))
    assert answers == []
    barriers.on_apply(LogIndex(7))
    assert answers == [True]
    barriers.on_apply(LogIndex(8))
    barriers.expire(READ_SECONDS_MAX)
    assert answers == [True], "answered twice"


def test_reads_of_one_turn_share_a_barrier_request() -> None:
    barriers, early, late = ReadBarriers(), list[bool](), list[bool]()
    barriers.add(early.append)
    barriers.add(early.append)
    first = barriers.ask(0.0)
    barriers.add(late.append)
    second = barriers.ask(0.0)
    assert first != second
    barriers.complete(first, LogIndex(3))
    barriers.on_apply(LogIndex(9))
    assert (early, late) == ([True, True], [])
    barriers.complete(second, None)
    assert late == [False]


def test_unanswered_read_fails_at_its_deadline() -> None:
    barriers, answers = ReadBarriers(), list[bool]()
    barriers.add(answers.append)
    ctx = barriers.ask(10.0)
    assert barriers.deadline == 10.0 + READ_SECONDS_MAX
    barriers.expire(barriers.deadline - 0.001)
    assert answers == []
    barriers.expire(barriers.deadline)
    assert answers == [False]
    barriers.complete(ctx, LogIndex(1))
    barriers.on_apply(LogIndex(1))
    assert answers == [False]
    assert barriers.deadline == float("inf")
