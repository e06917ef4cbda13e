"""The longest delay of the last minute."""

from __future__ import annotations

from functools import partial

import trio
from trio.testing import MockClock

from mq.broker.base.event_loop_lag import EventLoopLag
from mq.broker.base.periodic_task import repeat


def test_longest_delay_is_kept_for_a_minute() -> None:
    lateness = EventLoopLag()
    assert lateness.longest(1000.0) == 0.0
    lateness.note(0.2, 1000.0)
    lateness.note(0.5, 1001.0)
    lateness.note(0.1, 1002.0)
    assert lateness.longest(1002.0) == 0.5
    assert lateness.longest(1059.9) == 0.5
    assert lateness.longest(1061.0) == 0.0


def test_smaller_ones_come_forward_when_it_is_over() -> None:
    lateness = EventLoopLag()
    for second in range(1000, 1120):
        lateness.note(0.4 if second == 1010 else 0.01, float(second))
    assert lateness.longest(1119.0) == 0.01


def test_delay_of_what_was_due_and_time_of_what_was_done_are_told() -> None:
    clock = MockClock(autojump_threshold=0)
    told: list[float] = []

    async def main() -> None:
        with trio.move_on_after(0.85):
            await repeat([(0.5, partial(clock.jump, 0.3)), (0.1, lambda: None)], lambda: None, told.append)

    trio.run(main, clock=clock)
    # The slow one at 0.5 takes until 0.8; the other, due at 0.6, comes 0.2 late.
    assert [round(seconds, 3) for seconds in told if seconds > 0.001] == [0.3, 0.2]
