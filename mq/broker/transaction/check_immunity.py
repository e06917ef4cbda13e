"""When to ask about half messages that were put off: later than others, and as often."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

LOOK_SECONDS: Final = 60.0
"""So often it is looked whether a clock was set meanwhile, or a disk gives again what it did not."""


class CheckImmunity:
    """Whose turn it is, of one leadership: a new leader begins to count anew.

    Args:
        times: how often to ask about each.
        first_seconds: from when it is listed, or this leadership began, to its first turn.
        interval_seconds: from one question to the next, and from the last one to the end.
    """

    def __init__(self, *, times: int, first_seconds: float, interval_seconds: float) -> None:
        self._times = times
        self._first_seconds = first_seconds
        self._interval_seconds = interval_seconds
        self._turns: dict[int, tuple[float, int]] = {}
        """When it is looked at next, and how often somebody was asked."""

    def turns(self, listed: list[int], now: float, count_max: int) -> Iterator[int]:
        """Some of those listed whose turn has come; the others that are known are forgotten.

        Each is looked at again in `LOOK_SECONDS`, unless something else is said about it.
        """
        first = now + self._first_seconds, 0
        turns = self._turns = {offset: self._turns.get(offset, first) for offset in listed}
        for offset in islice([offset for offset, (at, _) in turns.items() if at <= now], count_max):
            turns[offset] = now + LOOK_SECONDS, turns[offset][1]
            yield offset

    def wait(self, offset: int, now: float, seconds: float) -> None:
        """Nobody wants to be asked about it so soon."""
        self._turns[offset] = now + min(seconds, LOOK_SECONDS), self._turns[offset][1]

    def ask(self, offset: int, now: float) -> int:
        """Which question this is about it, from 1; 0 if there were enough: then it is its turn until it is ended."""
        _, asked = self._turns[offset]
        if asked == self._times:
            self._turns[offset] = now, asked
            return 0
        self._turns[offset] = now + self._interval_seconds, asked + 1
        return asked + 1
