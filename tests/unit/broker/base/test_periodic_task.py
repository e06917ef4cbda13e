"""What a broker does again and again."""

from __future__ import annotations

import os
from functools import partial
from itertools import pairwise

import trio
from trio.testing import MockClock

from mq.broker.base.periodic_task import REST_SECONDS_MAX, Periodic, PeriodicTask, Schedule, now_if
from raftlog.net.reactor import Reactor


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
            actions = [Periodic(period, partial(note, n)) for n, period in enumerate(periods)]
            await PeriodicTask(actions, partial(note, len(periods))).run()

    trio.run(main, clock=clock)
    return done


def test_actions_repeat_at_their_interval() -> None:
    slow, fast, _ = done_in(1.05, 0.5, 0.25)
    assert slow == [0.5, 1.0]
    assert fast == [0.25, 0.5, 0.75, 1.0]


def test_actions_due_together_cause_one_reaction() -> None:
    *actions, reactions = done_in(0.105, 0.02, 0.1, 0.1, 0.1)
    assert actions == [[0.02, 0.04, 0.06, 0.08, 0.1], [0.1], [0.1], [0.1]]
    assert reactions == [0.02, 0.04, 0.06, 0.08, 0.1]


def test_periodic_task_runs_at_most_ten_milliseconds_early() -> None:
    assert done_in(0.105, 0.09, 0.099)[:2] == [[0.09], [0.09]]
    assert done_in(0.105, 0.08, 0.099)[:2] == [[0.08], [0.099]]


def test_slow_action_does_not_starve_other_intervals() -> None:
    assert done_in(0.0205, 0.005)[0] == [0.005, 0.01, 0.015, 0.02]
    slow, other, _ = done_in(1.0, 0.01, 0.05, each_takes=0.1)
    assert len(slow) >= 4
    assert len(other) >= 4


def test_delay_of_due_actions_and_their_duration_are_reported() -> None:
    clock = MockClock(autojump_threshold=0)
    told: list[float] = []

    async def main() -> None:
        with trio.move_on_after(0.85):
            actions = [Periodic(0.5, partial(clock.jump, 0.3)), Periodic(0.1, lambda: None)]
            await PeriodicTask(actions, lambda: None, told.append).run()

    trio.run(main, clock=clock)
    # The slow one at 0.5 takes until 0.8; the other, due at 0.6, comes 0.2 late.
    assert [round(seconds, 3) for seconds in told if seconds > 0.001] == [0.3, 0.2]


def test_idle_action_rests_for_at_most_one_second() -> None:
    ran, now = list[float](), 100.0
    schedule = Schedule([Periodic(0.02, lambda: ran.append(now), lambda: now_if(False))], now)
    for _ in range(3):
        now = schedule.next_at()
        schedule.run_due(now)
    assert len(ran) == 3
    assert all(0.5 <= later - earlier <= 1.5 * REST_SECONDS_MAX for earlier, later in pairwise([100.0, *ran]))


def test_resting_action_runs_at_its_stated_time() -> None:
    ran = list[float]()
    schedule = Schedule([Periodic(0.02, lambda: ran.append(0.0), lambda: 100.3), Periodic(0.25, lambda: None)], 100.0)
    assert schedule.next_at() == 100.25
    schedule.run_due(100.25)
    assert not ran
    assert schedule.next_at() == 100.3
    schedule.run_due(100.3)
    assert len(ran) == 1


def test_resting_action_that_gets_work_runs_right_after_the_turn() -> None:
    clock = MockClock(autojump_threshold=0)
    ran, told, is_busy = list[float](), list[float](), False

    async def main() -> None:
        nonlocal is_busy
        began = trio.current_time()
        action = Periodic(0.02, lambda: ran.append(trio.current_time() - began), lambda: now_if(is_busy))
        task = PeriodicTask([action], lambda: None, told.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.run)
            await trio.sleep(0.31)
            is_busy = True
            task.refresh()
            await trio.sleep(0.05)
            is_busy = False
            task.refresh()
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
    assert [round(at, 3) for at in ran] == [0.31, 0.33, 0.35]
    assert max(told) < 0.001, "it was not late: it had nothing to do before"


def test_work_of_a_turn_taken_by_another_task_runs_in_time() -> None:
    """The timer of consensus reads what is ready: the reactor does not wake up for it, and the action came a second
    later.
    """
    reactor = Reactor()
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    ran, is_busy = list[float](), False

    def serve(events: int) -> None:
        nonlocal is_busy
        os.eventfd_read(fd)
        is_busy = True

    def act() -> None:
        nonlocal is_busy
        is_busy = False
        ran.append(trio.current_time())

    async def main() -> float:
        task = PeriodicTask([Periodic(0.02, act, lambda: now_if(is_busy))], reactor.end_turn)
        reactor.before_waiting(task.refresh)
        reactor.add(fd, serve)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.run)
            nursery.start_soon(reactor.run)
            await trio.sleep(0.105)
            os.eventfd_write(fd, 1)
            reactor.turn_now()
            came_at = trio.current_time()
            await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
        return came_at

    try:
        came_at = trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        reactor.close()
        os.close(fd)
    assert len(ran) == 1
    assert ran[0] - came_at <= 0.021


def test_check_without_due_work_does_not_run_the_reactor() -> None:
    clock = MockClock(autojump_threshold=0)
    ran, reactions = list[float](), 0

    def react() -> None:
        nonlocal reactions
        reactions += 1

    async def main() -> None:
        began = trio.current_time()
        busy = Periodic(0.3, lambda: ran.append(trio.current_time() - began))
        task = PeriodicTask([Periodic(0.02, lambda: None, lambda: now_if(False)), busy], react)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.run)
            for _ in range(350):
                await trio.sleep(0.001)
                task.refresh()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
    assert [round(at, 2) for at in ran] == [0.3]
    assert reactions <= 2, "a look every 20 ms would be 17"


def test_work_of_a_busy_broker_waits_at_most_one_interval() -> None:
    clock = MockClock(autojump_threshold=0)
    asked, ran, is_busy = 0, list[float](), False

    def rests_until() -> float:
        nonlocal asked
        asked += 1
        return now_if(is_busy)

    async def main() -> None:
        nonlocal is_busy
        began = trio.current_time()
        action = Periodic(0.02, lambda: ran.append(trio.current_time() - began), rests_until)
        task = PeriodicTask([action], lambda: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.run)
            await trio.sleep(0.1)
            for _ in range(200):
                await trio.sleep(0.001)
                task.refresh()
            is_busy = True
            task.refresh()
            await trio.sleep(0.03)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
    assert asked < 60, "once a turn would be 200 times"
    assert 0.3 <= ran[0] <= 0.321


def test_actions_with_intervals_of_seconds_run_together_at_whole_seconds() -> None:
    ran = list[tuple[str, float]]()
    now = 100.3
    schedule = Schedule(
        [
            Periodic(1.0, lambda: ran.append(("each", now))),
            Periodic(2.0, lambda: ran.append(("second", now))),
            Periodic(0.02, lambda: ran.append(("resting", now)), lambda: now_if(False)),
        ],
        now,
    )
    for _ in range(4):
        now = schedule.next_at() + 0.001
        schedule.run_due(now)
    assert [round(at, 3) for name, at in ran if name == "each"] == [101.001, 102.001, 103.001, 104.001]
    assert [round(at, 3) for name, at in ran if name == "second"] == [102.001, 104.001]
    assert {round(at, 3) for name, at in ran if name == "resting"} <= {101.001, 102.001, 103.001, 104.001}
