"""Messages that are due and that this replica's disk does not give: tried again, ever less often."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

KNOWN_MAX: Final = 10_000
PAUSE_MS_MIN: Final = 1000
PAUSE_MS_MAX: Final = 60_000


class ReadBackoff:
    """Remembers when to try which of them again; at most `KNOWN_MAX`, others are tried every `PAUSE_MS_MAX`.

    Messages are named by their queue, in words of whoever reads it, and their offset.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, int], tuple[int, int]] = {}
        """The pause after the latest try, and when it ends."""

    def __len__(self) -> int:
        return len(self._known)

    def failed(self, message: tuple[Hashable, int], now_ms: int) -> int:
        """It could not be read just now; returns when it is to be tried again."""
        known = self._known.get(message)
        if known is None and len(self._known) >= KNOWN_MAX:
            return now_ms + PAUSE_MS_MAX
        pause_ms = PAUSE_MS_MIN if known is None else min(2 * known[0], PAUSE_MS_MAX)
        self._known[message] = pause_ms, now_ms + pause_ms
        return now_ms + pause_ms

    def put_off_to(self, message: tuple[Hashable, int], now_ms: int) -> int | None:
        """When to try it again, None if it may be read now. A clock that went back makes none wait longer."""
        known = self._known.get(message)
        return known[1] if known is not None and now_ms < known[1] <= now_ms + known[0] else None

    def settled(self, message: tuple[Hashable, int]) -> None:
        """It was read, or is done with."""
        self._known.pop(message, None)

    def gone(self, queue: Hashable, offset: int) -> None:
        """What a queue had below an offset is done with."""
        for message in [each for each in self._known if each[0] == queue and each[1] < offset]:
            del self._known[message]
