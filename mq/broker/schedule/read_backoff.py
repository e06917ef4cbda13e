"""Retries of due messages that cannot be read from this replica's disk, with a growing pause."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from mq.protocol.numbers import QueueOffset

KNOWN_MAX: Final = 10_000
PAUSE_MS_MIN: Final = 1000
PAUSE_MS_MAX: Final = 60_000


class ReadBackoff:
    """Remembers when to retry them; at most `KNOWN_MAX`, others are retried every `PAUSE_MS_MAX`.

    A message is identified by a key for its queue, chosen by the reader, and its offset.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, int], tuple[int, int]] = {}
        """The pause after the latest attempt, and when it ends."""

    def __len__(self) -> int:
        return len(self._known)

    def failed(self, message: tuple[Hashable, int], now_ms: int) -> int:
        """Note that a message could not be read now; returns when to retry."""
        known = self._known.get(message)
        if known is None and len(self._known) >= KNOWN_MAX:
            return now_ms + PAUSE_MS_MAX
        pause_ms = PAUSE_MS_MIN if known is None else min(2 * known[0], PAUSE_MS_MAX)
        assert PAUSE_MS_MIN <= pause_ms <= PAUSE_MS_MAX, f"{message} is tried again after {pause_ms} ms"
        self._known[message] = pause_ms, now_ms + pause_ms
        return now_ms + pause_ms

    def postponed_until(self, message: tuple[Hashable, int], now_ms: int) -> int | None:
        """The time of the next attempt; None: read it now. Setting the clock back does not extend a pause."""
        known = self._known.get(message)
        return known[1] if known is not None and now_ms < known[1] <= now_ms + known[0] else None

    def forget(self, message: tuple[Hashable, int]) -> None:
        """Forget a message that was read, or is no longer needed."""
        self._known.pop(message, None)

    def gone(self, queue: Hashable, offset: QueueOffset) -> None:
        """Forget the messages of a queue below an offset: they are no longer needed."""
        for message in [each for each in self._known if each[0] == queue and each[1] < offset]:
            del self._known[message]
