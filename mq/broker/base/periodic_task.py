"""Runs all timers of a broker in one task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import trio

from raftlog.shared_wakeups import seconds_to_step, step_after

AHEAD_SECONDS: Final = 0.01
"""Actions due this soon run together with those due now."""
_LOOK_SECONDS: Final = 0.02
_LOOKS_AT_ONCE: Final = 5
"""`PeriodicTask.refresh` asks all actions that often on average, and that many times in a row. One look costs as many
instructions as serving three small requests. Between two looks, an action that has got something to do may be late by
the interval.
"""
REST_SECONDS_MAX: Final = 1.0
"""An action that has nothing to do is called this often all the same: that may depend on the wall clock."""


def never_rests() -> float:
    """The default of ``rests_until``: the action runs at each interval."""
    return float("-inf")


def now_if(busy: object) -> float:
    """Return a ``rests_until`` value: the past while an action has something to do (``busy``), else infinity."""
    return float("-inf") if busy else float("inf")


class Periodic(NamedTuple):
    """An action and its interval in seconds. Those of a second or more run at whole seconds, together with others.

    ``rests_until`` says until when, on the clock of the event loop, there is nothing to do for it unless a turn of the
    reactor changes that: infinity if it waits for nothing. It is called often and must be cheap.
    """

    seconds: float
    action: Callable[[], None]
    rests_until: Callable[[], float] = never_rests


class Schedule:
    """Computes when actions are due. Pure: ``now`` is a time of the event loop's clock."""

    def __init__(self, actions: Sequence[Periodic], now: float) -> None:
        assert actions, "no action is ever due"
        shortest = min(seconds for seconds, _, _ in actions)
        assert shortest > 0, f"an action is called every {shortest} s"
        self._actions = actions
        self._due_at = [0.0] * len(actions)
        self._due_at_latest = [0.0] * len(actions)
        for number in range(len(actions)):
            self._plan(number, now)

    def next_at(self) -> float:
        """Return the time at which the next action is due, as far as is known now."""
        # Called after most turns of an idle broker: without further functions.
        next_at = min(self._due_at_latest)
        for (_, _, rests_until), due_at in zip(self._actions, self._due_at, strict=True):
            if due_at < next_at and (rests := rests_until()) < next_at:
                next_at = max(due_at, rests)
        return next_at

    def run_due(self, now: float) -> None:
        """Run the actions that are due now, or within `AHEAD_SECONDS`."""
        soon = now + AHEAD_SECONDS
        for number, (_, action, rests_until) in enumerate(self._actions):
            if self._due_at_latest[number] <= soon or (self._due_at[number] <= soon and rests_until() <= soon):
                self._plan(number, now)
                action()

    def _plan(self, number: int, now: float) -> None:
        seconds, _, rests_until = self._actions[number]
        self._due_at[number] = self._due_at_latest[number] = due_at = step_after(seconds, now)
        if rests_until is not never_rests:
            self._due_at_latest[number] = max(due_at, now + seconds_to_step(REST_SECONDS_MAX, now))


class PeriodicTask:
    """Runs each action at its interval, first after one interval, and calls ``react`` after them.

    ``on_delay`` is called with the seconds by which due actions were late, and with the duration of all of them.

    Waking a task, and then the reactor, costs several times what most actions do. So one task runs all of them, an
    action up to `AHEAD_SECONDS` early if others are due, and ends a turn of the reactor itself.
    """

    def __init__(
        self,
        actions: Sequence[Periodic],
        react: Callable[[], None],
        on_delay: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._schedule = Schedule(actions, trio.current_time())
        self._react = react
        self._on_delay = on_delay
        self._scope = trio.CancelScope()
        self._looked_until = float("-inf")

    def refresh(self) -> None:
        """Compute the due times again, because a turn of the reactor may have given actions work or finished it.

        A busy broker calls this thousands of times a second: then the actions are asked at intervals.
        """
        now = trio.current_time()
        if (look_at := self._looked_until - (_LOOKS_AT_ONCE - 1) * _LOOK_SECONDS) > now:
            if look_at < self._scope.deadline:
                self._scope.deadline = look_at
            return
        self._looked_until = max(self._looked_until, now) + _LOOK_SECONDS
        next_at = max(self._schedule.next_at(), now)
        if next_at != self._scope.deadline:
            self._scope.deadline = next_at

    async def run(self) -> None:
        """Run actions when they are due, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._schedule.next_at()) as self._scope:
                await trio.sleep_forever()
            now = trio.current_time()
            self._on_delay(now - self._scope.deadline)
            if self._schedule.next_at() > now + AHEAD_SECONDS:
                continue  # it only had to look: a turn of the reactor would cost more than that
            self._schedule.run_due(now)
            self._react()
            self._on_delay(trio.current_time() - now)
