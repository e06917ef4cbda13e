"""A row's number, its producer and the broker group that stores it depend on nothing that may change meanwhile."""

from __future__ import annotations

import pytest

from mq.protocol.messages.sequencing import PRODUCER_ID_LENGTH_MAX, SEQUENCE_MAX
from spark.numbering import (
    BATCH_MAX,
    ROWS_MAX,
    Destination,
    WriteId,
    first_number,
    group_of_producer,
    producer_id,
)


def test_producer_is_one_query_one_partition_and_one_destination() -> None:
    jobs = [
        WriteId("q1", 0),
        WriteId("q2", 0),
        WriteId("x" * 500 + "1", 0),
        WriteId("x" * 500 + "2", 0),
    ]
    destinations = [
        Destination("T"),
        Destination("U"),
        Destination("T", "a"),
        Destination("T", "b"),
        Destination("T", None, 0),
        Destination("T", None, 1),
        Destination("T", "a", 0),
    ]
    made = [producer_id(job, part, where) for job in jobs for part in (0, 1, 10**7) for where in destinations]
    assert len(set(made)) == len(made)
    assert max(map(len, made)) <= PRODUCER_ID_LENGTH_MAX
    assert all(each.isascii() for each in made)
    # What is in the tables of brokers must be found again by the next version.
    assert (
        producer_id(WriteId("0fd6-query", 5), 3, Destination("Out"))
        == "spark:0fd6-query:3:c90d696fcde8c922e681becd21906585"
    )


def test_micro_batches_of_a_query_number_ascendingly() -> None:
    assert producer_id(WriteId("q", 1), 0, Destination("T")) == producer_id(WriteId("q", 2), 0, Destination("T"))
    numbers = [first_number(WriteId("q", batch), row) for batch in (0, 1, BATCH_MAX) for row in (0, 1, ROWS_MAX - 1)]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (0, SEQUENCE_MAX)


@pytest.mark.parametrize(("batch", "row"), [(BATCH_MAX + 1, 0), (-1, 0), (0, ROWS_MAX), (0, -1)])
def test_rows_beyond_the_range_are_not_numbered(batch: int, row: int) -> None:
    with pytest.raises(AssertionError):
        first_number(WriteId("q", batch), row)


def test_new_group_takes_only_its_share_of_producers() -> None:
    producers = [producer_id(WriteId("q", 0), part, Destination("T")) for part in range(300)]
    before = {each: group_of_producer(each, ["a", "b", "c"]) for each in producers}
    after = {each: group_of_producer(each, ["d", "c", "b", "a"]) for each in producers}
    assert {before[each] for each in producers} == {"a", "b", "c"}
    moved = [each for each in producers if after[each] != before[each]]
    assert {after[each] for each in moved} == {"d"}
    assert 40 < len(moved) < 120
