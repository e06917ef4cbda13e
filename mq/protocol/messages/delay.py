"""Computes the due times of delayed messages: by delay level (property DELAY), or by a requested time (timers).

Messages of the default levels wait in the schedule topic, with a queue for each level. All others wait in the timer
topic, whose queues are a wheel: one for each minute of the day (UTC) at which a message is due. Each message is
processed once within a day after it was stored, at its *turn*: then it is delivered, or copied to its slot again to
wait for the next day.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mq.protocol import names
from mq.protocol import properties as props

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR

DELAY_LEVELS_MS: Final = (
    *(seconds * _SECOND for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(hours * _HOUR for hours in (1, 2)),
)
"""Milliseconds of levels 1 to 18. They must never change: replicas derive from them when a message is due."""

LEVEL_MAX: Final = len(DELAY_LEVELS_MS)
"""Levels of the schedule topic. A custom table may have more; see `parse_levels`."""

LEVELS_MAX: Final = 64
"""Maximum levels of any table."""

LEVEL_MS_MAX: Final = 40 * _DAY

TIMER_SLOTS: Final = _DAY // _MINUTE
"""Queues of the timer topic. Must never change."""

TIMER_SLOT_MS: Final = _MINUTE
TURN_MS_MAX: Final = _DAY
"""No message waits longer in one place of the log, so that retention does not reach it."""

_UNITS: Final = {"s": _SECOND, "m": _MINUTE, "h": _HOUR, "d": _DAY}
_SPAN: Final = re.compile(r"([0-9]{1,9})([smhd])")
_DUE: Final = props.TIMER_OUT_MS.encode() + b"\x01"
_DUE_DIGITS_MAX: Final = 18


def delay_level(text: str) -> int:
    """Parse the level in a DELAY property, 0 for none. Raises ValueError if it is not a number."""
    return max(int(text), 0)


def parse_levels(text: str) -> tuple[int, ...]:
    """Parse a table of levels such as ``1s 5s 10m 2h 1d`` to milliseconds. Raises ValueError with the place and the
    reason.
    """
    levels: list[int] = []
    for number, part in enumerate(text.split(), 1):
        match = _SPAN.fullmatch(part)
        if match is None:
            raise ValueError(f"delay level {number} is {part[:40]!r}, not a number and one of the units s, m, h, d")
        span_ms = int(match[1]) * _UNITS[match[2]]
        if not 0 < span_ms <= LEVEL_MS_MAX:
            raise ValueError(f"delay level {number} is {part}; allowed: 1s to {LEVEL_MS_MAX // _DAY}d")
        levels.append(span_ms)
    if not 1 <= len(levels) <= LEVELS_MAX:
        raise ValueError(f"{len(levels)} delay levels; allowed: 1 to {LEVELS_MAX}")
    return tuple(levels)


def format_levels(levels_ms: Sequence[int]) -> str:
    """Format a table of levels as text, each level in the largest unit that divides it, up to hours."""
    return " ".join(_format_span(level_ms) for level_ms in levels_ms)


def _format_span(span_ms: int) -> str:
    for unit in ("h", "m"):
        if span_ms % _UNITS[unit] == 0:
            return f"{span_ms // _UNITS[unit]}{unit}"
    return f"{span_ms // _SECOND}s"


def due_ms(store_timestamp_ms: int, queue_id: int) -> int:
    """Return when a message in this queue of the schedule topic is due, in epoch ms. Queue n has level n + 1.

    A queue without a level has no delay.
    """
    return store_timestamp_ms + (DELAY_LEVELS_MS[queue_id] if 0 <= queue_id < LEVEL_MAX else 0)


def timer_slot(due_ms: int) -> int:
    """Return the queue id of the timer topic for messages that are due at ``due_ms``, and for their copies."""
    return due_ms // TIMER_SLOT_MS % TIMER_SLOTS


def timer_turn_ms(store_timestamp_ms: int, due_ms: int) -> int:
    """Return when the broker next processes a delayed message, within a day of ``store_timestamp_ms``; epoch ms.

    It is the due time, or a whole number of days before, so the slot stays the same.
    """
    days = max(due_ms - store_timestamp_ms - 1, 0) // TURN_MS_MAX
    return due_ms - days * TURN_MS_MAX


def _level_turn_ms(store_timestamp_ms: int, queue_id: int, properties: bytes) -> int:
    return due_ms(store_timestamp_ms, queue_id)


def _timer_turn_ms(store_timestamp_ms: int, queue_id: int, properties: bytes) -> int:
    text = props.value_of(properties, _DUE)[:_DUE_DIGITS_MAX]
    # A message without a due time is not ours, and does not wait.
    return timer_turn_ms(store_timestamp_ms, int(text)) if text.isdigit() else store_timestamp_ms


TURNS_MS: Final[Mapping[str, Callable[[int, int, bytes], int]]] = {
    names.SCHEDULE_TOPIC: _level_turn_ms,
    names.TIMER_TOPIC: _timer_turn_ms,
}
"""Computes the time of the turn, for each topic with waiting messages, from store time, queue id and encoded
properties. It is the tag code in the message's queue entry. Replicas derive it from the record alone.

It is the tag code in the message's queue entry. Replicas derive it from the record alone.
"""
