"""Schedules the check-backs of half messages whose producers asked for a later first check."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from mq.protocol.numbers import QueueOffset

LOOK_SECONDS: Final = 60.0
"""Interval for noticing that a clock was set, or that a disk is readable again."""

IMMUNITY_MS_MAX: Final = 24 * 3_600_000
"""Maximum immunity that a producer can request."""


class CheckImmunity:
    """Schedules the postponed check-backs while this replica leads. A new leader starts to count them from 0.

    Args:
        times: checks per message.
        first_seconds: from listing, or from the start of this leadership, to the first check.
        interval_seconds: between checks, and from the last one to giving up.
    """

    def __init__(self, *, times: int, first_seconds: float, interval_seconds: float) -> None:
        self._times = times
        self._first_seconds = first_seconds
        self._interval_seconds = interval_seconds
        self._turns: dict[QueueOffset, tuple[float, int]] = {}
        """Time of the next check, and number of checks so far."""

    def turns(self, offsets: list[QueueOffset], now: float, count_max: int) -> Iterator[QueueOffset]:
        """Yield those of ``offsets`` that are due, at most ``count_max``; forget messages not in ``offsets``.

        Each is due again in `LOOK_SECONDS`, unless another method sets its time.
        """
        first = now + self._first_seconds, 0
        turns = self._turns = {offset: self._turns.get(offset, first) for offset in offsets}
        for offset in islice([offset for offset, (at, _) in turns.items() if at <= now], count_max):
            turns[offset] = now + LOOK_SECONDS, turns[offset][1]
            yield offset

    def wait(self, offset: QueueOffset, now: float, seconds: float) -> None:
        """Postpone the check of a half message by ``seconds``, at most by `LOOK_SECONDS`."""
        self._turns[offset] = now + min(seconds, LOOK_SECONDS), self._turns[offset][1]

    def ask(self, offset: QueueOffset, now: float) -> int:
        """Return the number of the check to send now, from 1; 0 after the last one, and the message stays due."""
        _, times = self._turns[offset]
        assert times <= self._times, f"half message {offset} was asked about {times} times of {self._times}"
        if times == self._times:
            self._turns[offset] = now, times
            return 0
        self._turns[offset] = now + self._interval_seconds, times + 1
        return times + 1


def immunity_ms(text: str | None, timeout_ms: int) -> int:
    """Return for how many milliseconds a half message is not checked; ``text`` is its property, in seconds.

    Anything but a number, and -1, stands for ``timeout_ms``; without the property it is 0.
    """
    if text is None:
        return 0
    try:
        seconds = int(text)
    except ValueError:
        return timeout_ms
    return timeout_ms if seconds == -1 else min(max(seconds, 0) * 1000, IMMUNITY_MS_MAX)
