"""The steps of a task between its checkpoints, and the longest delay of the event loop in the last minute."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel

from mq.monitoring.event_loop_lag import EventLoopLag
from mq.monitoring.step_times import StepTimes


class Work:
    """Work that takes time on two clocks; nothing else takes any."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.cpu = 0.0
        self.steps = StepTimes(lambda: self.now, lambda: self.cpu)

    def take(self, elapsed: float, cpu: float) -> None:
        self.now += elapsed
        self.cpu += cpu


async def test_longest_step_is_between_two_checkpoints() -> None:
    work = Work()
    assert work.steps.longest() == (0.0, 0.0)
    with work.steps.measure():
        work.take(0.002, 0.002)
        work.take(0.001, 0.001)
        await trio.lowlevel.checkpoint()
        work.take(0.001, 0.0005)
    assert work.steps.longest() == pytest.approx((0.003, 0.003))


async def test_step_times_include_the_last_step_of_the_block() -> None:
    work = Work()
    with work.steps.measure():
        await trio.lowlevel.checkpoint()
        work.take(0.004, 0.001)
    work.take(1.0, 1.0)
    assert work.steps.longest() == pytest.approx((0.004, 0.001))


async def test_step_times_exclude_other_tasks() -> None:
    work = Work()

    async def other() -> None:
        work.take(0.5, 0.5)
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        with work.steps.measure():
            work.take(0.001, 0.001)
            await trio.testing.wait_all_tasks_blocked()
            assert work.now > 1000.5
    assert work.steps.longest() == pytest.approx((0.001, 0.001))


async def test_concurrent_tasks_are_measured_separately() -> None:
    work = Work()

    async def one(seconds: float) -> None:
        with work.steps.measure():
            for _ in range(3):
                work.take(seconds, seconds)
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, 0.002)
        nursery.start_soon(one, 0.003)
    assert work.steps.longest() == pytest.approx((0.003, 0.003))


def test_longest_delay_is_kept_for_a_minute() -> None:
    lateness = EventLoopLag()
    assert lateness.longest(1000.0) == 0.0
    lateness.add(0.2, 1000.0)
    lateness.add(0.5, 1001.0)
    lateness.add(0.1, 1002.0)
    assert lateness.longest(1002.0) == 0.5
    assert lateness.longest(1059.9) == 0.5
    assert lateness.longest(1061.0) == 0.0


def test_smaller_delays_show_once_the_longest_expired() -> None:
    lateness = EventLoopLag()
    for second in range(1000, 1120):
        lateness.add(0.4 if second == 1010 else 0.01, float(second))
    assert lateness.longest(1119.0) == 0.01
