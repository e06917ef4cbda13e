"""Finds an anomaly in a history: the lines with its values, and the time to search for in servers' logs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from checkers.history import History, Operation

VALUE = re.compile(r"(?<![\w.])\d+\.\d+\.\d+(?![\w.])")
"""A value of a message, see `jepsen.derived_messages`."""
LINES_MAX = 20
BEGAN = "%Y-%m-%d %H:%M:%S UTC"


class HistoryLine(msgspec.Struct, frozen=True):
    """An operation with a value of the anomaly: the line of the history where it begins, from 1, and its text."""

    number: int
    says: str
    at: int
    node: str | None = None


def values_in_examples(examples: Iterable[str]) -> list[str]:
    """List the values in the examples of anomalies, each of them once."""
    return list(dict.fromkeys(value for example in examples for value in VALUE.findall(example)))


def lines_of(history: History, values: Iterable[str]) -> Mapping[str, list[HistoryLine]]:
    """Map each value to the first `LINES_MAX` operations that sent, read or ended it."""
    lines: dict[str, list[HistoryLine]] = {value: [] for value in values}
    if not lines:
        return lines
    for operation in history.operations:
        for value in _names_in(operation, lines):
            if len(lines[value]) < LINES_MAX:
                lines[value].append(
                    HistoryLine(operation.index + 1, _says(operation, history.began), operation.began, operation.node)
                )
    return lines


def _names_in(operation: Operation, values: Mapping[str, Any]) -> set[str]:
    names = set()
    for part in (operation.value, operation.result):
        if isinstance(part, str):
            names.add(part)
        elif isinstance(part, list):
            for each in part:
                names.update(text for text in ([each] if isinstance(each, str) else each) if isinstance(text, str))
    return names & values.keys()


def _says(operation: Operation, began: int) -> str:
    where = f" {operation.place}" if operation.queue is not None else ""
    at = f" at {operation.node}" if operation.node is not None else ""
    why = f" ({operation.error})" if operation.error else ""
    took = "" if operation.ended is None else f" after {(operation.ended - operation.began) / 1e9:.3f} s"
    seconds = (operation.began - began) / 1e9
    return f"{seconds:.3f} s: process {operation.process} {operation.name}{where}{at}: {operation.outcome}{took}{why}"


def time_of_day(history: History, at: int) -> str:
    """Convert a time of the history to a time in servers' logs, exact to about a second; empty if unknown."""
    try:
        began = datetime.strptime(str(history.plan.get("began")), BEGAN).replace(tzinfo=UTC)
    except ValueError:
        return ""
    wall_ns = history.plan.get("wall_ns")
    if isinstance(wall_ns, int):
        began = datetime.fromtimestamp(wall_ns / 1e9, UTC)
    return (began + timedelta(microseconds=(at - history.began) // 1000)).strftime("%Y-%m-%dT%H:%M:%S")
