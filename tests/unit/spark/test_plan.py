"""Plans: every message of a scan is in exactly one partition, and what does not fit is told by name."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.option_table import EARLIEST, LATEST, AtOffsets, AtTime
from spark.plan import (
    LogRange,
    PlanInvalid,
    QueueEnds,
    QueueRange,
    Splitting,
    queue_pieces,
    replica_order,
    resolve,
    scan,
    stripes,
)

steady = settings(derandomize=True, deadline=None)

A0, A1 = ("T", "a", 0), ("T", "a", 1)
ENDS = {A0: QueueEnds(10, 100), A1: QueueEnds(0, 50)}
SPLITTING = st.builds(
    Splitting,
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 5000),
)
RANGES = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 200)), min_size=1, max_size=5).map(
    lambda rows: [QueueRange(number, start, start + count) for number, (start, count) in enumerate(rows)]
)


def messages(partitions: list[list[QueueRange]]) -> list[tuple[int, int]]:
    return [(each.queue_id, offset) for part in partitions for each in part for offset in range(each.start, each.end)]


def test_bounds_by_word_and_by_number() -> None:
    assert resolve("earliest", ENDS, {}, "x") == {A0: 10, A1: 0}
    assert resolve("latest", ENDS, {}, "x") == {A0: 100, A1: 50}
    assert resolve(AtOffsets({A0: EARLIEST, A1: 7}), ENDS, {}, "x") == {A0: 10, A1: 7}
    assert resolve(AtOffsets({A0: LATEST, A1: 0}), ENDS, {}, "x") == {A0: 100, A1: 0}


def test_bounds_by_time_need_a_message_that_late() -> None:
    assert resolve(AtTime(5), ENDS, {A0: 12, A1: 3}, "x") == {A0: 12, A1: 3}
    with pytest.raises(PlanInvalid, match="option x: no message is that late in T a:1; startingOffsetsByTimestampStr"):
        resolve(AtTime(5), ENDS, {A0: 12, A1: None}, "x")


def test_all_queues_left_out_and_all_unknown_ones_are_reported() -> None:
    with pytest.raises(PlanInvalid) as caught:
        resolve(AtOffsets({("T", "b", 0): 1, ("U", "b", 1): 1}), ENDS, {}, "startingOffsets")
    assert str(caught.value) == (
        "option startingOffsets says nothing of T a:0, T a:1 and names T b:0, U b:1, which cannot be read"
    )
    many = {("T", "z", number): 1 for number in range(40)}
    with pytest.raises(PlanInvalid, match="T z:9 and 30 more"):
        resolve(AtOffsets({A0: 1, A1: 1, **many}), ENDS, {}, "x")


def test_scan_omits_empty_queues_and_refuses_impossible_ranges() -> None:
    assert scan({A0: 10, A1: 50}, {A0: 20, A1: 50}, ENDS) == {A0: QueueRange(0, 10, 20)}
    with pytest.raises(PlanInvalid, match=r"the start is after the end in T a:0 \(30 to 20\)"):
        scan({A0: 30, A1: 0}, {A0: 20, A1: 0}, ENDS)
    with pytest.raises(PlanInvalid, match=r"the end is after the last message in T a:1 \(51, it ends at 50\)"):
        scan({A0: 30, A1: 0}, {A0: 30, A1: 51}, ENDS)


@steady
@given(RANGES, SPLITTING)
def test_pieces_of_queues_contain_each_message_once(ranges: list[QueueRange], splitting: Splitting) -> None:
    found = queue_pieces(ranges, [each.message_count * 100 for each in ranges], splitting)

    assert messages(found) == messages([ranges])
    if splitting.records_max is not None:
        assert all(each.message_count <= splitting.records_max for part in found for each in part)
    if splitting.bytes_max is not None:
        assert all(
            each.message_count == 1 or each.message_count * 100 < splitting.bytes_max + 100
            for part in found
            for each in part
        )


@steady
@given(RANGES, st.lists(st.lists(st.integers(0, 300), min_size=5, max_size=5), max_size=6), SPLITTING)
def test_each_message_is_in_one_stripe(ranges: list[QueueRange], steps: list[list[int]], splitting: Splitting) -> None:
    reached = [0] * 5
    boundaries = []
    for step in steps:
        reached = [at + more // 6 for at, more in zip(reached, step, strict=True)]
        boundaries.append(dict(enumerate(reached)))

    found = stripes(ranges, boundaries, sum(each.message_count for each in ranges) * 100, splitting)

    assert sorted(messages(found)) == sorted(messages([ranges]))
    assert all(part and all(each.message_count for each in part) for part in found)
    if splitting.records_max is not None:
        # Queues are split in the same proportion, each to a whole message.
        assert all(sum(each.message_count for each in part) < splitting.records_max + len(part) for part in found)


def test_stripes_follow_the_log() -> None:
    found = stripes([QueueRange(0, 0, 100), QueueRange(1, 5, 50)], [{0: 40}, {0: 90, 1: 20}], 0, Splitting())

    assert found == [
        [QueueRange(0, 0, 40)],
        [QueueRange(0, 40, 90), QueueRange(1, 5, 20)],
        [QueueRange(0, 90, 100), QueueRange(1, 20, 50)],
    ]


def test_a_few_partitions_are_made_of_one_large_queue() -> None:
    found = queue_pieces([QueueRange(0, 0, 1000), QueueRange(1, 0, 10)], [0, 0], Splitting(pieces=4))

    assert [len(part) for part in found] == [1] * len(found)
    assert len(found) == 5


def test_order_of_replicas() -> None:
    addresses = {0: "leader", 1: "f1", 2: "f2"}
    assert replica_order(addresses, 0, "follower", 0) == ("f1", "f2", "leader")
    assert replica_order(addresses, 0, "follower", 3) == ("f2", "f1", "leader")
    assert replica_order(addresses, 0, "follower-only", 1) == ("f2", "f1")
    assert replica_order(addresses, 0, "leader", 1) == ("leader",)
    assert replica_order(addresses, 0, "any", 1) == ("f1", "f2", "leader")
    assert replica_order({0: "leader"}, 0, "follower", 5) == ("leader",)
    assert replica_order({}, 0, "any", 5) == ()


def test_partition_can_be_pickled() -> None:
    part = LogRange("T", "id", "a", (QueueRange(0, 1, 5), QueueRange(1, 0, 2)), ("x:1",))
    assert pickle.loads(pickle.dumps(part)) == part
    assert part.message_count == 6
