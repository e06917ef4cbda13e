"""What a broker does again and again."""

from __future__ import annotations

from functools import partial

import trio
from trio.testing import MockClock

from mq.broker.base.periodic_task import repeat


def done_in(seconds: float, *periods: float, each_takes: float = 0.0) -> list[list[float]]:
    """When actions with these periods are done, and the reactions to them, in so many seconds of simulated time."""
    clock = MockClock(autojump_threshold=0)
    done: list[list[float]] = [[] for _ in range(len(periods) + 1)]
    began = 0.0

    def note(number: int) -> None:
        done[number].append(round(clock.current_time() - began, 3))
        if number < len(periods):
            clock.jump(each_takes)

    async def main() -> None:
        nonlocal began
        began = clock.current_time()
        with trio.move_on_after(seconds):
            await repeat([(period, partial(note, n)) for n, period in enumerate(periods)], partial(note, len(periods)))

    trio.run(main, clock=clock)
    return done


def test_each_is_done_after_its_seconds_and_then_always_again() -> None:
    slow, fast, _ = done_in(1.05, 0.5, 0.25)
    assert slow == [0.5, 1.0]
    assert fast == [0.25, 0.5, 0.75, 1.0]


def test_what_is_due_together_is_reacted_to_once() -> None:
    *actions, reactions = done_in(0.105, 0.02, 0.1, 0.1, 0.1)
    assert actions == [[0.02, 0.04, 0.06, 0.08, 0.1], [0.1], [0.1], [0.1]]
    assert reactions == [0.02, 0.04, 0.06, 0.08, 0.1]


def test_nothing_is_more_than_ten_milliseconds_ahead() -> None:
    assert done_in(0.105, 0.09, 0.099)[:2] == [[0.09], [0.09]]
    assert done_in(0.105, 0.08, 0.099)[:2] == [[0.08], [0.099]]


def test_seconds_shorter_than_that_are_kept_and_an_action_that_takes_longer_keeps_none_from_its_turn() -> None:
    assert done_in(0.0205, 0.005)[0] == [0.005, 0.01, 0.015, 0.02]
    slow, other, _ = done_in(1.0, 0.01, 0.05, each_takes=0.1)
    assert len(slow) >= 4
    assert len(other) >= 4


def test_delay_of_what_was_due_and_time_of_what_was_done_are_told() -> None:
    clock = MockClock(autojump_threshold=0)
    told: list[float] = []

    async def main() -> None:
        with trio.move_on_after(0.85):
            await repeat([(0.5, partial(clock.jump, 0.3)), (0.1, lambda: None)], lambda: None, told.append)

    trio.run(main, clock=clock)
    # The slow one at 0.5 takes until 0.8; the other, due at 0.6, comes 0.2 late.
    assert [round(seconds, 3) for seconds in told if seconds > 0.001] == [0.3, 0.2]
