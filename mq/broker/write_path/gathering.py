"""Decides how long a round waits for more messages before it starts.

Theory of operation. A client with one message in flight sends the next one when it is answered. If a round started at
once, with what had arrived during the one before, these clients would miss it: two groups of clients would alternate,
and each message would wait for two rounds, each with half of the messages. So when a round has been answered, the next
one waits until most of the answered senders have sent again, but no longer than a part of the time that a round takes.
If fewer than half of them come in that time, because the clients are slow or send at their own pace, the next rounds do
not wait: one at first, twice the number each time. A single sender waits for no other: its message starts the round.
"""

from __future__ import annotations

from typing import Final

WAIT_SHARE: Final = 1 / 3
"""A round waits for at most this part of the average time of a round."""
WAIT_SECONDS_MAX: Final = 0.002
"""A round never waits for longer, however slow the disk is."""
ROUNDS_WITHOUT_MAX: Final = 255
"""The most rounds that start at once before waiting is tried again, if it was in vain several times."""
_AVERAGED = 8
_RESOLUTION_SECONDS: Final = 1e-6
"""A shorter rest is none: a clock to which it is added may stand still."""


class Gathering:
    """Decides when the next round starts. Times are in seconds of one monotonic clock.

    ``waiting_count`` is the number of senders whose messages wait for their round.
    """

    def __init__(self) -> None:
        self._round_seconds = 0.0
        self._started_at = 0.0
        self._until = 0.0
        self._waited_before = 0
        self._expected = 0
        self._without = 0
        self._in_vain = 0

    def round_started(self, now: float) -> None:
        """Record that a round starts now."""
        self._started_at = now

    def round_answered(self, now: float, senders: int, waiting_count: int) -> None:
        """Record that a round is committed, and that ``senders`` clients got their replies."""
        self._round_seconds += (now - self._started_at - self._round_seconds) / _AVERAGED
        if self._without:
            self._without -= 1
        elif senders:
            self._waited_before = waiting_count
            self._expected = senders
            self._until = now + min(WAIT_SHARE * self._round_seconds, WAIT_SECONDS_MAX)

    def seconds_left(self, now: float, waiting_count: int) -> float:
        """Return for how many seconds the next round waits if no other client sends; 0 to start it now."""
        if not self._expected:
            return 0.0
        came = waiting_count - self._waited_before
        if came < self._expected - self._expected // 8 and self._until - now > _RESOLUTION_SECONDS:
            return self._until - now
        if 2 * came < self._expected:
            self._in_vain = min(2 * self._in_vain + 1, ROUNDS_WITHOUT_MAX)
            self._without = self._in_vain
        else:
            self._in_vain = 0
        self._expected = 0
        return 0.0

    def stop(self) -> None:
        """Stop waiting for the senders of a lost round."""
        self._expected = 0
