"""Checks that operations on one register have an order that agrees with real time and with the values read.

The search is Wing and Gong's with Lowe's memoization: from the front of the history take any operation that began
before the end of the first remaining one; if its read matches the register's value, continue from there; otherwise
backtrack. A set of taken operations with the same value is not tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

STEPS_MAX = 5_000_000


class Access(NamedTuple):
    """One operation. ``ended`` is None for a write of unknown outcome: it may take effect at any later time, or never.

    Leave out reads of unknown outcome, and operations that certainly did not happen.
    """

    began: int
    ended: int | None
    is_write: bool
    value: Any


def is_linearizable(accesses: Sequence[Access], initial: Any, *, steps_max: int = STEPS_MAX) -> bool | None:
    """Whether the accesses have such an order; None if unknown after ``steps_max`` steps."""
    chain = _Chain(accesses)
    value, chosen_bits, open_count = initial, 0, sum(access.ended is not None for access in accesses)
    states = {(chosen_bits, value)}
    path: list[tuple[int, Any]] = []
    at = chain.first
    for _ in range(steps_max):
        if not open_count:
            return True
        number = chain.number(at)
        access = accesses[number]
        if chain.is_end(at):
            # The next operation has ended already: the last choice was wrong.
            if not path:
                return False
            at, value = path.pop()
            number = chain.number(at)
            chosen_bits ^= 1 << number
            open_count += accesses[number].ended is not None
            chain.put_back(at)
            at = chain.following(at)
            continue
        after = access.value if access.is_write else value
        is_right = access.is_write or access.value == value
        if is_right and (now := (chosen_bits | 1 << number, after)) not in states:
            states.add(now)
            path.append((at, value))
            chosen_bits, value = now
            open_count -= access.ended is not None
            chain.take_out(at)
            at = chain.first
        else:
            at = chain.following(at)
    return None


class _Chain:
    """Beginnings and ends in chronological order, linked, so that an operation is removed and restored in one step."""

    def __init__(self, accesses: Sequence[Access]) -> None:
        # At equal times beginnings come first: such operations overlap.
        events: list[tuple[int, int, int]] = [(access.began, 0, number) for number, access in enumerate(accesses)]
        events += [(access.ended, 1, number) for number, access in enumerate(accesses) if access.ended is not None]
        events.sort()
        self._numbers: list[int] = [number for _, _, number in events]
        self._is_end = [bool(is_end) for _, is_end, _ in events]
        ends = {number: at for at, (_, is_end, number) in enumerate(events) if is_end}
        self._end_of = [None if is_end else ends.get(number) for _, is_end, number in events]
        count = len(events)
        self._next: list[int] = [
            *range(1, count + 1),
            0,
        ]  # the last one is the anchor, before the first and after the last event
        self._previous: list[int] = [count, *range(count)] if count else [0]

    @property
    def first(self) -> int:
        return self._next[-1]

    def following(self, at: int) -> int:
        return self._next[at]

    def number(self, at: int) -> int:
        return self._numbers[at]

    def is_end(self, at: int) -> bool:
        return self._is_end[at]

    def take_out(self, at: int) -> None:
        """Remove a beginning, and its end if it has one."""
        self._unlink(at)
        if (end := self._end_of[at]) is not None:
            self._unlink(end)

    def put_back(self, at: int) -> None:
        """Restore the operation removed last."""
        if (end := self._end_of[at]) is not None:
            self._link(end)
        self._link(at)

    def _unlink(self, at: int) -> None:
        before, behind = self._previous[at], self._next[at]
        self._next[before] = behind
        self._previous[behind] = before

    def _link(self, at: int) -> None:
        self._next[self._previous[at]] = at
        self._previous[self._next[at]] = at
