"""Conditions that Spark leaves to us: exactly the rows are read that Spark would have kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.filters import narrow_all, narrow_ranges
from spark.option_table import QueueName
from spark.plan import QueueRange


@dataclass(frozen=True)
class Condition:
    attribute: tuple[str, ...]
    value: Any = None

    def holds(self, row: dict[str, Any]) -> bool:
        found, value = row[self.attribute[0]], self.value
        match type(self).__name__:
            case "EqualTo" | "EqualNullSafe":
                return bool(found == value)
            case "In":
                return found in value
            case "GreaterThan":
                return bool(found > value)
            case "GreaterThanOrEqual":
                return bool(found >= value)
            case "LessThan":
                return bool(found < value)
            case "LessThanOrEqual":
                return bool(found <= value)
            case _:
                return True


class EqualTo(Condition): ...


class EqualNullSafe(Condition): ...


class In(Condition): ...


class GreaterThan(Condition): ...


class GreaterThanOrEqual(Condition): ...


class LessThan(Condition): ...


class LessThanOrEqual(Condition): ...


class IsNotNull(Condition): ...


class StringStartsWith(Condition): ...


OFFSETS = st.integers(-1, 12)
CONDITIONS = (
    st.builds(
        lambda kind, value: kind(("queue_offset",), value),
        st.sampled_from([EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]),
        OFFSETS,
    )
    | st.builds(lambda value: EqualTo(("queue_id",), value), st.integers(0, 2))
    | st.builds(lambda values: In(("topic",), tuple(values)), st.lists(st.sampled_from("TUV"), max_size=3))
    | st.builds(lambda values: In(("broker_name",), tuple(values)), st.lists(st.sampled_from("abc"), max_size=3))
    | st.builds(lambda values: In(("queue_offset",), tuple(values)), st.lists(OFFSETS, max_size=3))
    | st.sampled_from([IsNotNull(("topic",)), IsNotNull(("queue_offset",))])
)
SCAN: dict[QueueName, QueueRange] = {
    (topic, broker_name, number): QueueRange(number, number, 10)
    for topic in "TU"
    for broker_name in "ab"
    for number in range(2)
}


def rows(ranges: dict[QueueName, QueueRange]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "broker_name": broker_name, "queue_id": queue_id, "queue_offset": offset}
        for (topic, broker_name, queue_id), each in ranges.items()
        for offset in range(each.start, each.end)
    ]


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(CONDITIONS, max_size=5))
def test_pushed_filters_and_spark_together_select_the_right_rows(conditions: list[Condition]) -> None:
    found, left = narrow_all(conditions)

    read = rows(narrow_ranges(found, SCAN))

    assert [row for row in read if all(each.holds(row) for each in left)] == [
        row for row in rows(SCAN) if all(each.holds(row) for each in conditions)
    ]


@pytest.mark.parametrize(
    "condition",
    [
        GreaterThan(("store_timestamp",), 5),
        EqualTo(("tags",), "A"),
        IsNotNull(("tags",)),
        EqualTo(("properties", "colour"), "red"),
        StringStartsWith(("topic",), "T"),
        In(("queue_offset",), (1, 2)),
        GreaterThan(("queue_offset",), 1.5),
        GreaterThan(("queue_id",), 1),
    ],
)
def test_inexact_filters_are_left_to_spark(condition: Condition) -> None:
    found, left = narrow_all([condition])

    assert left == [condition]
    assert narrow_ranges(found, SCAN) == SCAN


def test_exact_filters_are_not_left_to_spark() -> None:
    conditions = [EqualTo(("topic",), "T"), GreaterThan(("queue_offset",), 3), IsNotNull(("queue_id",))]

    found, left = narrow_all(conditions)

    assert left == []
    assert {each.start for each in narrow_ranges(found, SCAN).values()} == {4}
