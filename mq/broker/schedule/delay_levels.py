"""Delay levels: the delay of each, from the setting `delay_levels`, and which of them have a queue.

Only levels with the default delay have queues of their own: so each queue is ordered by due time, whatever the settings
are or were. Messages of other levels wait as timers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from mq.protocol import properties as props
from mq.protocol.messages.delay import DELAY_LEVELS_MS, LEVEL_MAX

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")


class DelayLevels:
    """The delay levels of one broker, from 1. ``levels_ms`` are their delays in milliseconds."""

    def __init__(self, levels_ms: Sequence[int]) -> None:
        self._levels_ms: Final = levels_ms

    def cap(self, level: int) -> int:
        """Return the level, or the highest one if it is above that."""
        return min(level, len(self._levels_ms))

    def delay_ms(self, level: int) -> int:
        """Return for how many milliseconds a message of this level waits."""
        return self._levels_ms[level - 1]

    def has_queue(self, level: int) -> bool:
        """Whether messages of this level wait in a queue of the schedule topic. Otherwise they wait as timers."""
        return level <= LEVEL_MAX and self._levels_ms[level - 1] == DELAY_LEVELS_MS[level - 1]

    def wait_ms(self, properties: Mapping[str, str]) -> int | None:
        """Return the delay of a stored message in milliseconds; None if it has a delivery time, or no delay."""
        for name, unit_ms in ((props.DELAY, 0), (props.TIMER_DELAY_SEC, 1000), (props.TIMER_DELAY_MS, 1)):
            if (text := properties.get(name)) is not None:
                if _NUMBER.fullmatch(text) is None or int(text) < 0:
                    return None
                number = int(text)
                return number * unit_ms if unit_ms else self.delay_ms(self.cap(max(number, 1)))
        return None
