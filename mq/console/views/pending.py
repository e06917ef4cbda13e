"""Rows of the pages about messages that are not visible yet, and about schedules. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mq.client.schedules import ScheduleStatus
from mq.console.views.text import duration, number, size
from mq.inspection.formatting import time_of
from mq.inspection.schedules import rule_text, state_text, tick_text
from mq.protocol.requests.pending import PendingInfo, PendingMessage

BORDERS: Final = {
    0: "now",
    60: "within a minute",
    600: "within 10 minutes",
    3600: "within an hour",
    6 * 3600: "within 6 hours",
    24 * 3600: "later",
}


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A message that is not visible yet. ``when`` is its due time, or how long it has waited; ``handle`` recalls it."""

    broker: str
    topic: str
    when: str
    stored: str
    message_id: str
    offset_message_id: str
    keys: str
    tags: str
    size: str
    note: str
    group: str
    handle: str


@dataclass(frozen=True, slots=True)
class PendingView:
    """The waiting messages of all broker groups. ``counts`` are by due time; ``unseen`` messages were not examined."""

    total: int
    counts: tuple[tuple[str, str], ...]
    unseen: int
    rows: tuple[PendingRow, ...]


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A row of the list of schedules."""

    name: str
    broker: str
    topic: str
    rule: str
    state: str
    is_enabled: bool
    next: str
    last: str
    sent: str
    note: str
    row_state: str


def pending_view(infos: Mapping[str, PendingInfo], now_ms: int, rows_max: int) -> PendingView:
    """Return the first ``rows_max`` waiting messages of all broker groups: timed ones by due time, others by age."""
    every = [(broker, each) for broker, info in sorted(infos.items()) for each in info.messages]
    every.sort(key=lambda pair: (pair[1].due_ms, pair[1].stored_ms))
    sums: dict[int, int] = {}
    for info in infos.values():
        for border, count in info.counts:
            sums[border] = sums.get(border, 0) + count
    return PendingView(
        total=sum(info.total for info in infos.values()),
        counts=tuple((BORDERS.get(border, f"within {border} s"), number(sums[border])) for border in sorted(sums)),
        unseen=sum(max(0, info.total - info.looked_at) for info in infos.values()),
        rows=tuple(_row(broker, each, now_ms) for broker, each in every[:rows_max]),
    )


def _row(broker: str, message: PendingMessage, now_ms: int) -> PendingRow:
    if message.due_ms:
        seconds = (message.due_ms - now_ms) / 1000
        when = f"{time_of(message.due_ms)} ({f'in {duration(seconds)}' if seconds >= 0 else 'due'})"
        note = f"delay level {message.level}" if message.level else ""
    else:
        when = duration((now_ms - message.stored_ms) / 1000)
        note = "never asked" if message.checks == 0 else f"asked {number(message.checks)} times"
        if message.is_put_off:
            note += ", put off"
    return PendingRow(
        broker=broker,
        topic=message.topic,
        when=when,
        stored=time_of(message.stored_ms) or "-",
        message_id=message.message_id,
        offset_message_id=message.offset_message_id,
        keys=message.keys,
        tags=message.tags,
        size=size(message.body_bytes),
        note=note,
        group=message.group,
        handle=message.handle,
    )


def schedule_rows(schedules: Sequence[ScheduleStatus]) -> list[ScheduleRow]:
    """Return a row for each schedule, in their order."""
    return [
        ScheduleRow(
            name=each.schedule.name,
            broker=each.broker_name,
            topic=each.schedule.topic,
            rule=rule_text(each.schedule.rule),
            state=state_text(each),
            is_enabled=each.schedule.enabled,
            next=tick_text(each.next[0]) if each.next and each.schedule.enabled else "-",
            last=tick_text(each.last) if each.last else "never",
            sent=number(each.sent) + (f", {number(each.skipped)} skipped" if each.skipped else ""),
            note=each.error or (f"kept up to date by {each.schedule.owner}" if each.schedule.owner else ""),
            row_state="bad" if each.error else "",
        )
        for each in schedules
    ]
