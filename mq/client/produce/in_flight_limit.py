"""Limits the messages in flight. Senders that wait for room are admitted one by one, in their order.

If each completed message woke all that wait, thousands of them would cost more than sending the messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio


class InFlightLimit:
    """Limits the messages in flight to `limit`; `in_flight` gives their number. Call `wake_waiters` when it falls."""

    def __init__(self, limit: int, in_flight: Callable[[], int]) -> None:
        self._limit = limit
        self._in_flight = in_flight
        self._waiting: deque[anyio.Event] = deque()
        self._woken_count = 0  # senders that were woken and have not run yet

    @property
    def waiting(self) -> int:
        """The number of senders that wait."""
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether another message may be sent without waiting."""
        return not self._waiting and self._in_flight() + self._woken_count < self._limit

    async def wait(self) -> None:
        """Wait for room. The caller starts a message before it awaits anything, or calls `wake_waiters`."""
        turn = anyio.Event()
        self._waiting.append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._woken_count -= 1
                self.wake_waiters()
            else:
                self._waiting.remove(turn)
            raise
        self._woken_count -= 1

    def wake_waiters(self) -> None:
        """Admit waiting senders while there is room."""
        while self._waiting and self._in_flight() + self._woken_count < self._limit:
            self._woken_count += 1
            self._waiting.popleft().set()
