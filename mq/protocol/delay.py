"""Delay levels: how long a message waits that names one (property DELAY), and where it waits."""

from __future__ import annotations

from typing import Final

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE

DELAY_LEVELS_MS: Final = (
    *(seconds * _SECOND for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(hours * _HOUR for hours in (1, 2)),
)
"""Milliseconds of levels 1 to 18. The same everywhere and for ever: replicas derive from them when a message is due."""

LEVEL_MAX: Final = len(DELAY_LEVELS_MS)


def delay_level(text: str) -> int:
    """The level that a DELAY property asks for: 0 for none, 18 at most. Raises ValueError if it is no number."""
    return min(max(int(text), 0), LEVEL_MAX)


def due_ms(store_timestamp_ms: int, queue_id: int) -> int:
    """When a message in this queue of the schedule topic is due; queue n holds level n + 1. Epoch milliseconds.

    A queue that stands for no level delays nothing.
    """
    return store_timestamp_ms + (DELAY_LEVELS_MS[queue_id] if 0 <= queue_id < LEVEL_MAX else 0)
