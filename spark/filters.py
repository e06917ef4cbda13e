"""Narrows a scan by the conditions that Spark pushes down. Pure; recognizes Spark's filters by their class names.

Spark does not evaluate conditions that are accepted here, so only exact ones are: on the topic, the broker group, the
queue and the queue offset. Times are not: store times may decrease when leadership moves, and a search by time could
miss a message. Use options such as `startingTimestamp` for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from spark.option_table import QueueName
from spark.plan import QueueRange

_NEVER_NULL: Final = frozenset({"topic", "broker_name", "queue_id", "queue_offset"})
_PLACES: Final = {"topic": 0, "broker_name": 1, "queue_id": 2}


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The part of a scan that remains. ``sets`` has topics, broker groups and queue ids, None for all.

    Queue offsets are ``first`` up to but not including ``end``.
    """

    sets: tuple[frozenset[Any] | None, ...] = (None, None, None)
    first: int = 0
    end: int = 2**63 - 1


def narrow(narrowing: Narrowing, condition: Any) -> Narrowing | None:
    """Narrow a scan by one more condition. Returns None if Spark must evaluate the condition itself."""
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    kind = type(condition).__name__
    if len(attribute) != 1 or attribute[0] not in _NEVER_NULL:
        return None
    column: str = attribute[0]
    if kind == "IsNotNull":
        return narrowing
    value: Any = getattr(condition, "value", None)
    if column == "queue_offset":
        return _narrow_offsets(narrowing, kind, value)
    match kind:
        case "EqualTo" | "EqualNullSafe":
            values = frozenset({value})
        case "In":
            values = frozenset(value)
        case _:
            return None
    at = _PLACES[column]
    before = narrowing.sets[at]
    both = values if before is None else values & before
    return replace(narrowing, sets=(*narrowing.sets[:at], both, *narrowing.sets[at + 1 :]))


def _narrow_offsets(narrowing: Narrowing, kind: str, value: Any) -> Narrowing | None:
    if type(value) is not int:
        return None
    match kind:
        case "EqualTo" | "EqualNullSafe":
            first, end = value, value + 1
        case "GreaterThan":
            first, end = value + 1, narrowing.end
        case "GreaterThanOrEqual":
            first, end = value, narrowing.end
        case "LessThan":
            first, end = narrowing.first, value
        case "LessThanOrEqual":
            first, end = narrowing.first, value + 1
        case _:
            return None
    return replace(narrowing, first=max(narrowing.first, first), end=min(narrowing.end, end))


def narrow_all(conditions: Iterable[Any]) -> tuple[Narrowing, list[Any]]:
    """Narrow a scan by all conditions. Also returns the conditions that Spark must evaluate itself."""
    narrowing, remaining = Narrowing(), []
    for condition in conditions:
        narrower = narrow(narrowing, condition)
        if narrower is None:
            remaining.append(condition)
        else:
            narrowing = narrower
    return narrowing, remaining


def narrow_ranges(narrowing: Narrowing, ranges: Mapping[QueueName, QueueRange]) -> dict[QueueName, QueueRange]:
    """Return the parts of the ranges that are within the narrowed scan, without empty ones."""
    remaining_ranges: dict[QueueName, QueueRange] = {}
    for queue, each in ranges.items():
        if all(values is None or part in values for part, values in zip(queue, narrowing.sets, strict=True)):
            first, end = max(each.start, narrowing.first), min(each.end, narrowing.end)
            if first < end:
                remaining_ranges[queue] = QueueRange(each.queue_id, first, end)
    return remaining_ranges
