"""Describes what a reset of a consumer group would do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mq.client.message import MessageQueue
from mq.console.views.text import number
from mq.protocol.requests.group_progress import GroupProgress


@dataclass(frozen=True, slots=True)
class ResetRow:
    """A queue: the group's offset, its offset after the reset, and what that means."""

    broker: str
    queue: int
    before: str
    after: str
    effect: str


def preview_rows(targets: Mapping[MessageQueue, int], progress: Mapping[MessageQueue, GroupProgress]) -> list[ResetRow]:
    """Return a row for each queue of the topic."""
    rows = []
    for queue, after in sorted(targets.items()):
        before = progress[queue].offset if queue in progress else None
        rows.append(ResetRow(queue.broker_name, queue.queue_id, number(before), number(after), _effect(before, after)))
    return rows


def _effect(before: int | None, after: int) -> str:
    if before is None:
        return "no offset yet"
    if after == before:
        return "stays"
    if after > before:
        return f"skips {after - before:,} messages"
    return f"consumes {before - after:,} messages again"
