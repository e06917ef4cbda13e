"""The record of changes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mq.console.records import Record
from mq.inspection.wording import time_of


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A change as text."""

    at: str
    user: str
    change: str
    target: str
    outcome: str
    state: str


def record_rows(records: Sequence[Record]) -> list[RecordRow]:
    """The changes, in their order."""
    return [
        RecordRow(
            at=time_of(each.at_ms) or "-",
            user=each.user or "the console",
            change=each.change,
            target=each.target,
            outcome=each.outcome,
            state="" if each.succeeded else "bad",
        )
        for each in records
    ]
