"""Rows of the pages about changes and events. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mq.console.change_records import Record
from mq.console.events import Event
from mq.inspection.formatting import time_of


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A row of the list of recorded changes."""

    at: str
    user: str
    change: str
    target: str
    outcome: str
    state: str


def record_rows(records: Sequence[Record]) -> list[RecordRow]:
    """Return a row for each recorded change, in their order."""
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


@dataclass(frozen=True, slots=True)
class EventRow:
    """A row of the list of events."""

    at: str
    subject: str
    what: str
    state: str


def event_rows(events: Sequence[Event], now: float, now_ms: int) -> list[EventRow]:
    """Return a row for each event, in their order. ``now`` on the event loop's clock is ``now_ms`` since 1970."""
    return [
        EventRow(
            at=time_of(now_ms - round((now - each.at) * 1000)) or "-",
            subject=each.subject,
            what=each.what,
            state="bad" if each.is_bad else "",
        )
        for each in events
    ]
