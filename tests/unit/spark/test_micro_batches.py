"""Positions and micro-batches: each message in exactly one micro-batch, and nothing lost without a word."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.micro_batches import (
    ASSUMED_MESSAGE_BYTES,
    ClusterChanged,
    ClusterSnapshot,
    Limits,
    Loss,
    batch_ranges,
    check_cluster,
    limit_batch,
    loss_text,
    losses,
    message_count,
    next_position,
)
from spark.option_table import QueueName
from spark.plan import QueueEnds, QueueRange
from spark.positions import Position, PositionInvalid, parse_position

K = TypeVar("K")
V = TypeVar("V")

steady = settings(derandomize=True, deadline=None)

A0, A1, B0 = ("T", "a", 0), ("T", "a", 1), ("T", "b", 0)


def seen(cluster: str = "C", topic_id: str = "t1", **queues: tuple[int, int]) -> ClusterSnapshot:
    names = {"a0": A0, "a1": A1, "b0": B0}
    found = {names[name]: QueueEnds(*ends) for name, ends in queues.items()}
    return ClusterSnapshot(cluster, {queue[:2]: topic_id for queue in found}, found)


def position(topic_id: str = "t1", began: bool = False, **offsets: int) -> Position:
    names = {"a0": A0, "a1": A1, "b0": B0}
    found = {names[name]: offset for name, offset in offsets.items()}
    return Position("C", {queue[:2]: topic_id for queue in found}, found, found if began else None)


def reverse(table: Mapping[K, V]) -> dict[K, V]:
    return dict(reversed(list(table.items())))


# -- positions -----------------------------------------------------------------------------------------------------


def test_position_text_is_independent_of_queue_order() -> None:
    one = Position(
        "C", {("U", "a"): "u", ("T", "b"): "t2", ("T", "a"): "t1"}, {B0: 1, A1: 2, ("U", "a", 10): 3, ("U", "a", 9): 4}
    )
    two = Position("C", reverse(one.topic_ids), reverse(one.offsets))

    text = json.dumps(one.to_json())
    assert text == json.dumps(two.to_json())
    assert text == (
        '{"v": 1, "cluster": "C", "topics": {"T": {"id": {"a": "t1", "b": "t2"}, "q": {"a:1": 2, "b:0": 1}}, '
        '"U": {"id": {"a": "u"}, "q": {"a:9": 4, "a:10": 3}}}}'
    )
    assert parse_position(json.loads(text)) == one


def test_stored_beginning_stays_a_beginning() -> None:
    start = position(began=True, a0=7)
    back = parse_position(json.loads(json.dumps(start.to_json())))

    assert back == start
    assert back.is_beginning
    assert not position(a0=7).is_beginning


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"v": 2}, "version 2, this program reads version 1"),
        ({"orders": {"0": 23}}, "offset of version None"),
        ({"v": 1, "cluster": "C"}, "cannot be read .KeyError: 'topics'"),
        ({"v": 1, "cluster": "C", "topics": {"T": {"id": {}, "q": {"a:0": "many"}}}}, "cannot be read .ValueError"),
        ({"v": 1, "cluster": "C", "topics": {"T": {"id": {}, "q": [1]}}}, "cannot be read .AttributeError"),
        ({"v": 1, "cluster": "C", "topics": [1]}, "cannot be read .AttributeError"),
    ],
)
def test_offset_of_another_program_is_refused(found: dict[str, object], told: str) -> None:
    with pytest.raises(PositionInvalid, match=f"{told}.*new checkpointLocation"):
        parse_position(found)


# -- where a micro-batch ends --------------------------------------------------------------------------------------


def test_micro_batch_reads_new_queues_from_the_start() -> None:
    end = next_position(position(a0=5, a1=9), seen(a0=(0, 8), a1=(0, 9), b0=(0, 3)), Limits())

    assert end == position(a0=8, a1=9, b0=3)


def test_micro_batch_starts_only_with_new_messages() -> None:
    assert next_position(position(a0=5), seen(a0=(0, 5)), Limits()) is None
    assert next_position(position(a0=5), seen(), Limits()) is None


def test_ends_of_batches_never_fall() -> None:
    assert next_position(position(a0=5), seen(a0=(0, 3)), Limits()) is None
    assert next_position(position(a0=5, a1=0), seen(a0=(0, 3), a1=(0, 1)), Limits()) == position(a0=5, a1=1)


def test_vanished_queues_stay_in_the_position() -> None:
    assert next_position(position(a0=5, b0=7), seen(a0=(0, 6)), Limits()) == position(a0=6, b0=7)


def test_stream_of_available_messages_stops_at_each_queue_cap() -> None:
    there = seen(a0=(0, 100), a1=(0, 100), b0=(0, 100))
    cap = {A0: 10, A1: 20}

    first = next_position(position(a0=0, a1=0), there, Limits(records=6), cap)
    assert first is not None
    assert first.offsets == {A0: 2, A1: 4}
    last = next_position(first, there, Limits(), cap)
    assert last is not None
    assert last.offsets == {A0: 10, A1: 20}
    assert next_position(last, there, Limits(), cap) is None


def test_first_micro_batch_carries_its_beginning() -> None:
    start = position(began=True, a0=40)
    end = next_position(start, seen(a0=(0, 50)), Limits())
    assert end is not None
    assert end.began == {A0: 40}
    again = position(began=True, a0=60)  # the driver died, and "latest" is somewhere else by now
    assert batch_ranges(again, end, seen(a0=(0, 60)))[0] == {A0: QueueRange(0, 40, 50)}
    after = next_position(parse_position(end.to_json()), seen(a0=(0, 60)), Limits())
    assert after == position(a0=60)


def test_recreated_topic_is_read_from_its_first_message() -> None:
    there = seen(topic_id="t2", a0=(0, 4), a1=(0, 0))
    start = position("t1", a0=90, a1=80)

    end = next_position(start, there, Limits())

    assert end == position("t2", a0=4, a1=0)
    assert end is not None
    assert batch_ranges(start, end, there) == ({A0: QueueRange(0, 0, 4)}, [])
    assert message_count(start, there) == 4


def test_topic_identity_is_added_to_the_position_once_known() -> None:
    end = next_position(position("", a0=5), seen(topic_id="t1", a0=(0, 6)), Limits())

    assert end == position("t1", a0=6)
    assert end is not None
    assert batch_ranges(position("", a0=5), end, seen(a0=(0, 6))) == ({A0: QueueRange(0, 5, 6)}, [])


BACKLOG = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 5000)), min_size=1, max_size=6)


@steady
@given(BACKLOG, st.none() | st.integers(1, 2000), st.none() | st.integers(1, 10**6))
def test_micro_batch_takes_of_each_queue_in_proportion(
    queues: list[tuple[int, int]], records: int | None, nbytes: int | None
) -> None:
    backlog: dict[QueueName, QueueRange] = {
        ("T", "a", number): QueueRange(number, 7, 7 + count) for number, (count, _) in enumerate(queues)
    }
    sizes: dict[QueueName, float] = {("T", "a", number): size for number, (_, size) in enumerate(queues)}

    ends = limit_batch(backlog, sizes, Limits(records, nbytes))

    taken = {queue: ends[queue] - each.start for queue, each in backlog.items()}
    assert all(1 <= taken[queue] <= each.message_count for queue, each in backlog.items())
    if records is not None:
        assert sum(taken.values()) <= records + len(queues)
    if nbytes is not None:
        assert sum(taken[queue] * sizes[queue] for queue in taken) <= nbytes + sum(sizes.values())
    if records is None and nbytes is None:
        assert taken == {queue: each.message_count for queue, each in backlog.items()}


def test_batch_bytes_are_estimated_from_queue_sizes() -> None:
    there = ClusterSnapshot(
        "C", {("T", "a"): "", ("T", "b"): ""}, {A0: QueueEnds(0, 100, 100 * 10_000), A1: QueueEnds(0, 100)}
    )
    limits = Limits(nbytes=50 * (10_000 + ASSUMED_MESSAGE_BYTES))

    end = next_position(Position("C", {("T", "a"): "", ("T", "b"): ""}, {A0: 0, A1: 0}), there, limits)

    assert end is not None
    assert end.offsets == {A0: 50, A1: 50}


@pytest.mark.slow
@steady
@given(st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), min_size=1, max_size=20), st.integers(1, 30))
def test_micro_batches_have_each_message_once(steps: list[list[int]], most: int) -> None:
    ends = {A0: 0, A1: 0, B0: 0}
    at = Position("C", {("T", "a"): "", ("T", "b"): ""}, {A0: 0, A1: 0})
    read: list[tuple[QueueName, int]] = []
    for step in [*steps, *[[0, 0, 0]] * 2000]:
        ends = {queue: end + more for (queue, end), more in zip(ends.items(), step, strict=True)}
        there = ClusterSnapshot(
            "C", {("T", "a"): "", ("T", "b"): ""}, {queue: QueueEnds(0, end) for queue, end in ends.items()}
        )
        following = next_position(at, there, Limits(records=most))
        if following is None:
            continue
        ranges, lost = batch_ranges(at, following, there)
        assert not lost
        read += [(queue, offset) for queue, each in ranges.items() for offset in range(each.start, each.end)]
        at = following
    assert sorted(read) == sorted((queue, offset) for queue, end in ends.items() for offset in range(end))


# -- what is lost --------------------------------------------------------------------------------------------------


def test_losses_are_classified_by_cause() -> None:
    start = position(a0=5, a1=50, b0=7)
    there = seen(a0=(9, 20), a1=(0, 40))

    assert losses(start, there, {}) == [
        Loss("deleted", A0, 5, 9, 9),
        Loss("cut", A1, 40, 50, 40),
        Loss("gone", B0, 7, None),
    ]
    assert losses(start, seen(topic_id="t2", a0=(0, 1)), {A0: 5, A1: 60, B0: 7}) == [Loss("recreated", A1, 50, 60)]


def test_fully_read_queue_has_no_loss() -> None:
    assert losses(position(a0=5, b0=7), seen(a0=(5, 5)), {B0: 7}) == []


def test_first_messages_of_a_new_queue_may_be_gone_too() -> None:
    assert losses(position(a0=5), seen(a0=(0, 5), a1=(3, 9)), {}) == [Loss("deleted", A1, 0, 3, 3)]


def test_stream_reports_no_loss_before_recreated_topic_began() -> None:
    again = seen(topic_id="9-1700000000000-5.3", a0=(5, 7), a1=(3, 9))
    assert losses(position(topic_id="9-1700000000000-5.3", a0=5), again, {}) == []
    later = seen(topic_id="9-1700000000000-5.3", a0=(5, 7), a1=(4, 9))
    assert losses(position(topic_id="9-1700000000000-5.3", a0=5), later, {}) == [Loss("deleted", A1, 3, 4, 4)]


def test_repeated_micro_batch_reports_later_losses() -> None:
    start, end = position(a0=0, a1=0, b0=0), position(a0=10, a1=10, b0=10)

    ranges, lost = batch_ranges(start, end, seen(a0=(4, 20), a1=(0, 6)))

    assert ranges == {A0: QueueRange(0, 4, 10), A1: QueueRange(1, 0, 6)}
    assert lost == [Loss("deleted", A0, 0, 4, 4), Loss("cut", A1, 6, 10, 6), Loss("gone", B0, 0, 10)]
    assert batch_ranges(start, end, seen(topic_id="t2", a0=(0, 20)))[1] == [
        Loss("recreated", A0, 0, 10),
        Loss("recreated", A1, 0, 10),
        Loss("gone", B0, 0, 10),
    ]
    assert batch_ranges(start, end, seen(a0=(30, 40), a1=(0, 10), b0=(0, 10)))[0].keys() == {A1, B0}


def test_loss_texts_name_count_and_option() -> None:
    lost = [
        Loss("deleted", A0, 5, 9, 9),
        Loss("cut", A1, 40, 50, 40),
        Loss("gone", B0, 7, None),
        Loss("recreated", A1, 50, 60),
    ]

    deleted, cut, gone, again = loss_text(lost).split("\n")

    assert "topic 'T', queue a:0: offsets 5 to 8 (4 messages) were deleted" in deleted
    assert "fileReservedTime" in deleted
    assert "queue a:1: offsets 40 to 49 existed before and no longer exist (10 messages)" in cut
    assert "queue b:0 no longer exists; it was read up to offset 7" in gone
    assert "queue a:1: the topic was deleted and created again; offsets 50 to 59 (10 messages) were not read" in again
    assert all("failOnDataLoss=false" in each for each in (deleted, cut, gone, again))


def test_of_many_queues_ten_are_reported() -> None:
    text = loss_text([Loss("deleted", ("T", "a", number), 0, 9, 9) for number in range(14)])

    assert text.count("topic 'T'") == 10
    assert "and 4 more queues" in text


def test_positions_of_another_cluster_are_refused() -> None:
    check_cluster(position(a0=1), seen(cluster="B,C", a0=(0, 1)))
    check_cluster(position(a0=1), seen(cluster="", a0=(0, 1)))
    with pytest.raises(ClusterChanged, match="belongs to the cluster 'C', the name servers lead to 'D'"):
        check_cluster(position(a0=1), seen(cluster="D", a0=(0, 1)))
