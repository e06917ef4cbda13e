"""The time by which a leader decides whether an open pop still blocks its ordered queue.

The pop time and the invisible time are replicated. If the wall clock is behind the pop time, they alone would block the
queue until the wall clock has caught up, which may take hours.
"""

from __future__ import annotations

from collections.abc import Callable

from mq.broker.state.pop_checkpoints import OpenPop, QueueOfGroup


class OrderedClock:
    """Tells the time for each ordered queue, also after a clock was set back.

    It is the wall clock, unless that is behind the time of the queue's open pop: then the clock was set back after the
    pop, or another leader with a clock ahead stored the pop. In that case the time starts at the pop time when this
    leader first needs it, and advances with the monotonic clock until the wall clock is ahead of it. So setting a clock
    back never frees a queue too early, and blocks it longer by at most the time between the pop and that first use.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Milliseconds from the monotonic clock to the time of a queue. Only pops from before the wall clock was set
        # back have an entry, so there is at most one for each queue with an open pop at that moment.
        self._ahead_ms: dict[QueueOfGroup, int] = {}

    def resign(self) -> None:
        """Forget the times of all queues, since this replica stops leading."""
        self._ahead_ms.clear()

    def on_pop(self, key: QueueOfGroup) -> None:
        """Forget the time of a queue's previous pop, because the queue was popped again."""
        self._ahead_ms.pop(key, None)

    def now_ms(self, key: QueueOfGroup, open_pop: OpenPop, wall_ms: int) -> int:
        """Return the current time of a queue in epoch milliseconds. It is never before the time of ``open_pop``."""
        ahead_ms = self._ahead_ms.get(key)
        if ahead_ms is None and open_pop.pop_time_ms <= wall_ms:
            return wall_ms
        clock_ms = int(self._clock() * 1000)
        if ahead_ms is None:
            ahead_ms = self._ahead_ms[key] = open_pop.pop_time_ms - clock_ms
        if wall_ms >= clock_ms + ahead_ms:
            del self._ahead_ms[key]
            return wall_ms
        return clock_ms + ahead_ms

    def wait_ms(self, key: QueueOfGroup, open_pop: OpenPop, wall_ms: int) -> int:
        """Return for how many milliseconds a queue is still blocked; 0 or negative if it is free."""
        return open_pop.blocked_until_ms() - self.now_ms(key, open_pop, wall_ms)
