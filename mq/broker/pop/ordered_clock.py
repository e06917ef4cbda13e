"""The time by which a leader decides whether a queue that is consumed in order is still blocked by its open pop.

The pop time and the invisible time are replicated. With a wall clock that is behind the pop time they alone would block
the queue until the wall clock has caught up, which may take hours.
"""

from __future__ import annotations

from collections.abc import Callable

from mq.broker.state.pop_checkpoints import Ordered, QueueOfGroup


class OrderedClock:
    """The time for each queue that is consumed in order.

    It is the wall clock's, unless that is behind the time of the queue's open pop: then it was set back after the pop,
    or another leader stored the pop and its clock was ahead. In that case the time starts at the time of the pop when
    this leader first asks, and advances with the monotonic clock until the wall clock is ahead of it. So no clock that
    was set back frees a queue too early, and the queue stays blocked for longer by at most the time between the pop and
    that first question.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Milliseconds from the monotonic clock to the time of a queue. Only pops from before the wall clock went back
        # have an entry, so there are never more than queues that had an open pop then.
        self._ahead_ms: dict[QueueOfGroup, int] = {}

    def resign(self) -> None:
        """This replica does not lead any more."""
        self._ahead_ms.clear()

    def popped(self, key: QueueOfGroup) -> None:
        """The queue was popped anew: what was noted for the pop before does not count for this one."""
        self._ahead_ms.pop(key, None)

    def now_ms(self, key: QueueOfGroup, ordered: Ordered, wall_ms: int) -> int:
        """The time of a queue whose open pop is ``ordered``; both times in epoch milliseconds."""
        ahead_ms = self._ahead_ms.get(key)
        if ahead_ms is None and ordered.pop_time_ms <= wall_ms:
            return wall_ms
        clock_ms = int(self._clock() * 1000)
        if ahead_ms is None:
            ahead_ms = self._ahead_ms[key] = ordered.pop_time_ms - clock_ms
        if wall_ms >= clock_ms + ahead_ms:
            del self._ahead_ms[key]
            return wall_ms
        return clock_ms + ahead_ms

    def wait_ms(self, key: QueueOfGroup, ordered: Ordered, wall_ms: int) -> int:
        """For how many milliseconds a queue is still blocked; 0 or negative if it is free."""
        return ordered.blocked_until_ms() - self.now_ms(key, ordered, wall_ms)
