"""Chooses the next tick of a schedule, and the missed ticks that are skipped.

Several are due when there was no leader for some time, when the disk was full, or when the clock was set forward. Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mq.broker.recurring.rule import Rule, next_due
from mq.protocol.requests.schedules import ScheduleDefinition

ON_TIME_MS: Final = 60_000
"""With `skip`, a tick that is later than this is not sent: an election and a restart take less."""


class Tick(NamedTuple):
    """The decision on ticks up to ``settled_ms``: send that at ``due_ms`` unless None, and skip ``skip_count``."""

    due_ms: int | None
    settled_ms: int
    skip_count: int


def next_tick(rule: Rule, definition: ScheduleDefinition, settled_ms: int, now_ms: int) -> Tick | None:
    """Return what to do with the due ticks of a schedule after ``settled_ms``; None if no tick is due. Raises
    RuleInvalid.

    With `all`, one tick after the other is sent, from the first one that is late by at most `catch_up_ms`. With `last`,
    only the newest is sent; with `skip` as well, unless it is late by more than a minute.
    """
    first_ms = next_due(rule, definition, settled_ms)
    if first_ms is None or first_ms > now_ms:
        return None
    if definition.catch_up == "all":
        return _in_order(rule, definition, first_ms, now_ms)
    newest_ms = _newest(rule, definition, first_ms, now_ms)
    assert first_ms <= newest_ms <= now_ms, f"the newest due tick is {newest_ms}, of {first_ms} to {now_ms}"
    older = rule.between(first_ms - 1, newest_ms - 1)
    assert older >= 0, f"{older} ticks are older than {newest_ms}"
    if definition.catch_up == "skip" and newest_ms < now_ms - ON_TIME_MS:
        return Tick(None, newest_ms, older + 1)
    return Tick(newest_ms, newest_ms, older)


def _in_order(rule: Rule, definition: ScheduleDefinition, first_ms: int, now_ms: int) -> Tick:
    too_late_ms = now_ms - definition.catch_up_ms - 1
    if first_ms > too_late_ms:
        return Tick(first_ms, first_ms, 0)
    skip_count = rule.between(first_ms - 1, too_late_ms)
    assert skip_count > 0, f"{skip_count} ticks are skipped, and {first_ms} is too late"
    due_ms = next_due(rule, definition, too_late_ms)
    if due_ms is None or due_ms > now_ms:
        return Tick(None, too_late_ms, skip_count)
    return Tick(due_ms, due_ms, skip_count)


def _newest(rule: Rule, definition: ScheduleDefinition, first_ms: int, now_ms: int) -> int:
    """Return the last tick up to ``now_ms``, found by halving: there may be millions."""
    newest_ms, low_ms, high_ms = first_ms, first_ms, now_ms
    second_ms = next_due(rule, definition, first_ms)
    if second_ms is None or second_ms > now_ms:
        return first_ms
    while low_ms < high_ms:
        middle_ms = (low_ms + high_ms) // 2
        due_ms = next_due(rule, definition, middle_ms)
        if due_ms is not None and due_ms <= now_ms:
            newest_ms = low_ms = due_ms
        else:
            high_ms = middle_ms
    return newest_ms
