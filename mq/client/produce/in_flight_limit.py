"""Limits the messages in flight. Senders that wait for room are admitted in the order of their calls.

If each completed message woke all that wait, thousands of them would cost more than sending the messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio


class InFlightLimit:
    """Limits the messages in flight to `limit`; `in_flight` returns their number. Call `wake_waiters` when it falls."""

    def __init__(self, limit: int, in_flight: Callable[[], int]) -> None:
        self._limit = limit
        self._in_flight = in_flight
        self._turns: deque[anyio.Event] = deque()
        self._woken_count = 0  # senders that were woken and have not run yet

    @property
    def waiting_count(self) -> int:
        """The number of senders that wait for room."""
        return len(self._turns)

    @property
    def has_room(self) -> bool:
        """Whether a message can be sent without waiting."""
        return not self._turns and self._in_flight() + self._woken_count < self._limit

    async def wait(self) -> None:
        """Wait for room. Then start a message before you await anything, or call `wake_waiters`."""
        turn = anyio.Event()
        self._turns.append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._woken_count -= 1
                self.wake_waiters()
            else:
                self._turns.remove(turn)
            raise
        self._woken_count -= 1

    def wake_waiters(self) -> None:
        """Admit waiting senders while there is room."""
        while self._turns and self._in_flight() + self._woken_count < self._limit:
            self._woken_count += 1
            self._turns.popleft().set()
