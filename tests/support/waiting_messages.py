"""Messages with delivery times: a clock set by the test, and what becomes visible when."""

from __future__ import annotations

import time

from tests.support.running_broker import Client


class WallClock:
    """Milliseconds since the epoch, as the broker sees them; they advance when the test says so.

    Attributes:
        behind_ms: how far the clock that may be set is behind the true time.
    """

    def __init__(self) -> None:
        self.now_ms = time.time_ns() // 1_000_000
        self.behind_ms = 0

    def __call__(self) -> int:
        return self.now_ms - self.behind_ms

    def seconds(self) -> float:
        """The same time as a clock that nobody sets: for tests in which time passes, and no clock jumps."""
        return self.now_ms / 1000


async def beats(client: Client) -> None:
    """Let the broker's timers run a few times."""
    for _ in range(20):
        await client.info()
