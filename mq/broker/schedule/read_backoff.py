"""Decides when to try again to read due messages that this replica's disk could not read."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from mq.protocol.numbers import QueueOffset

KNOWN_MAX: Final = 10_000
PAUSE_MS_MIN: Final = 1000
PAUSE_MS_MAX: Final = 60_000


class ReadBackoff:
    """Decides when to read unreadable messages again: `KNOWN_MAX` with growing pauses, others every `PAUSE_MS_MAX`.

    A message is identified by a key for its queue, chosen by the reader, and its offset.
    """

    def __init__(self) -> None:
        self._pauses: dict[tuple[Hashable, int], tuple[int, int]] = {}
        """The pause after the latest attempt, and when it ends."""

    def __len__(self) -> int:
        return len(self._pauses)

    def postpone(self, message: tuple[Hashable, int], now_ms: int) -> int:
        """Postpone a message that could not be read. Returns when to read it again, in epoch milliseconds."""
        pause = self._pauses.get(message)
        if pause is None and len(self._pauses) >= KNOWN_MAX:
            return now_ms + PAUSE_MS_MAX
        pause_ms = PAUSE_MS_MIN if pause is None else min(2 * pause[0], PAUSE_MS_MAX)
        assert PAUSE_MS_MIN <= pause_ms <= PAUSE_MS_MAX, f"{message} is tried again after {pause_ms} ms"
        self._pauses[message] = pause_ms, now_ms + pause_ms
        return now_ms + pause_ms

    def postponed_until(self, message: tuple[Hashable, int], now_ms: int) -> int | None:
        """Return when to read a message again; None for now. If the clock is set back, it is not postponed longer."""
        pause = self._pauses.get(message)
        return pause[1] if pause is not None and now_ms < pause[1] <= now_ms + pause[0] else None

    def forget(self, message: tuple[Hashable, int]) -> None:
        """Forget a message that was read, or need not be read any more."""
        self._pauses.pop(message, None)

    def forget_before(self, queue: Hashable, offset: QueueOffset) -> None:
        """Forget the messages of a queue below an offset, because they need not be read any more."""
        for message in [each for each in self._pauses if each[0] == queue and each[1] < offset]:
            del self._pauses[message]
