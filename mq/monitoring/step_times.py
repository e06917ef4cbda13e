"""Measures how long a task holds the event loop: each step from one checkpoint that yields to the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio
import trio.lowlevel

from mq.monitoring.event_loop_lag import EventLoopLag


class StepTimes:
    """Knows the longest steps of the last minute, of all measured tasks.

    A step may take long because the process does not run: its CPU time, which is measured too, shows that.

    Args:
        clock, cpu_clock: return monotonic seconds, and seconds of CPU time of the calling thread.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._elapsed = EventLoopLag()
        self._cpu = EventLoopLag()

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure all steps of the current task within the block, the first one from its beginning."""
        steps = _Steps(trio.lowlevel.current_task(), self._clock, self._cpu_clock, self._add_step)
        trio.lowlevel.add_instrument(steps)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(steps)
            steps.after_task_step(steps.task)

    def longest(self) -> tuple[float, float]:
        """Return the longest time and the most CPU time of a step in the last minute, in seconds; 0 without steps."""
        now = self._clock()
        return self._elapsed.longest(now), self._cpu.longest(now)

    def _add_step(self, elapsed: float, cpu: float, now: float) -> None:
        self._elapsed.add(elapsed, now)
        self._cpu.add(cpu, now)


class _Steps(trio.abc.Instrument):
    def __init__(
        self,
        task: trio.lowlevel.Task,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        note: Callable[[float, float, float], None],
    ) -> None:
        self.task = task
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._add_step = note
        self.before_task_step(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self._began, self._cpu_began = self._clock(), self._cpu_clock()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            now = self._clock()
            self._add_step(now - self._began, self._cpu_clock() - self._cpu_began, now)


SCRAPES: Final = StepTimes()
"""The requests for metrics in this process."""
