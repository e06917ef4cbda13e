"""The wall clock of a broker, which follows a jump of the system clock only after a while.

Stored times, delays and invisible times come from the wall clock. A time server, a hypervisor or a person may set it to
a wrong time for some seconds. A time that held for a minute is believed more than one that has just appeared: after a
jump the broker continues from the old time, and follows the clock if the jump has lasted for a minute. In the first
minute after the start, and after a jump that was followed, it follows at once: neither time has proven itself, and a
machine that boots often has a wrong time until its time server answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from mq.broker.base.rate_limited_log import Log

JUMP_MS: Final = 1000
"""Smaller steps are followed at once: time servers make them every day."""
PROOF_SECONDS: Final = 60.0
"""The time for which a jump must last before it is followed."""


def local_day(wall_clock_ms: int) -> int:
    """Return a number that changes at local midnight."""
    return time.localtime(wall_clock_ms / 1000).tm_yday


class SteadyWallClock:
    """Returns milliseconds since the epoch, as described above.

    Args:
        wall_clock_ms: the clock of the machine.
        steady_clock: seconds of a clock that cannot be set, including time in which the machine was suspended.

    Attributes:
        jumps: how often the clock of the machine jumped.
    """

    def __init__(self, wall_clock_ms: Callable[[], int], steady_clock: Callable[[], float], log: Log) -> None:
        self._wall_clock_ms = wall_clock_ms
        self._steady_clock = steady_clock
        self._log = log
        self._since = steady_clock()
        """The steady time at which the believed time appeared."""
        self._offset_ms = wall_clock_ms() - round(self._since * 1000)
        """The difference from the steady clock to the believed time."""
        self._other: tuple[float, int] | None = None
        """The steady time at which a time appeared that is not believed, and its offset."""
        self.jumps = 0

    def __call__(self) -> int:
        """Return the time, in epoch milliseconds; a jump of the system clock is followed after `PROOF_SECONDS`."""
        steady, wall_ms = self._steady_clock(), self._wall_clock_ms()
        offset_ms = wall_ms - round(steady * 1000)
        jump_ms = offset_ms - self._offset_ms
        if -JUMP_MS <= jump_ms <= JUMP_MS:
            self._offset_ms = offset_ms
            if self._other is not None:
                duration, self._other = steady - self._other[0], None
                self._log.info("clock_jump_over", lasted_seconds=round(duration, 1))
            return wall_ms
        if self._other is None or abs(offset_ms - self._other[1]) > JUMP_MS:
            self._other = steady, offset_ms
            self.jumps += 1
            believed = steady < self._since + PROOF_SECONDS
            self._log.warning("clock_jumped", seconds=round(jump_ms / 1000, 1), followed=believed)
        else:
            self._other = self._other[0], offset_ms
            believed = steady >= self._other[0] + PROOF_SECONDS
            if believed:
                self._log.warning("clock_jump_followed", seconds=round(jump_ms / 1000, 1))
        if not believed:
            return self._offset_ms + round(steady * 1000)
        self._since, self._other = self._other[0], None
        self._offset_ms = offset_ms
        return wall_ms

    @property
    def offset_ms(self) -> int:
        """Milliseconds from the steady clock to the time of this clock."""
        return self._offset_ms

    @property
    def disbelieved_ms(self) -> int:
        """Milliseconds by which the machine's clock is ahead of this clock; 0 while they agree."""
        return 0 if self._other is None else self._other[1] - self._offset_ms
