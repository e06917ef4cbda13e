"""Maps offsets of a source queue to offsets of its target queue. Pure.

Copies lie behind each other in the target queue, as the originals do in the source queue. So a map is a few
*stretches*: a new one begins where the source lacks offsets, where a message was left out, or where another client
wrote into the target queue in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Stretch(NamedTuple):
    """``length`` consecutive messages: those from ``source`` on were copied to ``target`` and the offsets after it."""

    source: int
    target: int
    length: int


class OffsetMap:
    """Maps the offsets of one queue. Both sides ascend."""

    def __init__(self, stretches: Iterable[tuple[int, int, int]] = ()) -> None:
        self._stretches: list[Stretch] = []
        for each in stretches:
            self.add(*each)

    def __iter__(self) -> Iterator[Stretch]:
        return iter(self._stretches)

    @property
    def message_count(self) -> int:
        """The number of messages that were copied."""
        return sum(each.length for each in self._stretches)

    def add(self, source: int, target: int, count: int) -> None:
        """Add the next messages. Raises ValueError unless they are behind all earlier ones, on both sides."""
        if count < 1 or source < 0 or target < 0:
            raise ValueError(f"{count} messages from {source} to {target} cannot be noted: numbers must be positive")
        if not self._stretches:
            self._stretches.append(Stretch(source, target, count))
            return
        last = self._stretches[-1]
        source_end, target_end = last.source + last.length, last.target + last.length
        if source < source_end or target < target_end:
            raise ValueError(f"messages from {source} to {target} are not after {source_end}, {target_end}")
        if (source, target) == (source_end, target_end):
            self._stretches[-1] = last._replace(length=last.length + count)
        else:
            self._stretches.append(Stretch(source, target, count))

    def to_target(self, offset: int) -> int | None:
        """Return where a group continues at the target that was at ``offset`` at the source; None if nothing was
        copied.

        A group at a message that was not copied continues at the next one.
        """
        return _translate(self._stretches, offset, [each.source for each in self._stretches], 0, 1)

    def to_source(self, offset: int) -> int | None:
        """Return the source offset of a target offset. A message that is no copy is mapped like the next copy."""
        return _translate(self._stretches, offset, [each.target for each in self._stretches], 1, 0)


def _translate(stretches: list[Stretch], offset: int, begins: list[int], from_side: int, to_side: int) -> int | None:
    if not stretches:
        return None
    at = bisect_right(begins, offset) - 1
    if at < 0:
        return stretches[0][to_side]
    stretch = stretches[at]
    inside = offset - stretch[from_side]
    if inside < stretch.length:
        return stretch[to_side] + inside
    if at + 1 < len(stretches):
        return stretches[at + 1][to_side]
    return stretch[to_side] + stretch.length
