"""When a replica wakes up: its timer, the clock of its leases, and the next event that the reactor waits for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

from raftlog.lease_clock import LeaseClock, awake_time, boot_time
from raftlog.net.lingering import LINGER_SECONDS, Lingering
from raftlog.net.reactor import Deadline


class Waited:
    """A `Deadline` whose time is moved, and when it fired. Times count from now."""

    def __init__(self) -> None:
        self.began = trio.current_time()
        self.due_at, self.asked = 1.0, 0
        self.fired_at = list[float]()
        self.timer = Deadline(self._next, self._fire)

    def _next(self) -> float:
        self.asked += 1
        return self.began + self.due_at

    def _fire(self) -> None:
        self.fired_at.append(trio.current_time() - self.began)
        self.due_at += 1.0


@pytest.fixture
async def waited(nursery: trio.Nursery) -> Waited:
    waited = Waited()
    nursery.start_soon(waited.timer.run)
    return waited


async def test_timer_fires_earlier_when_the_deadline_moves_forward(waited: Waited, autojump_clock: MockClock) -> None:
    await trio.sleep(0.2)
    waited.due_at = 0.5
    waited.timer.refresh()
    await trio.sleep(0.5)
    assert waited.fired_at == pytest.approx([0.5])


async def test_timer_does_not_wake_up_for_a_postponed_deadline(waited: Waited, autojump_clock: MockClock) -> None:
    await trio.testing.wait_all_tasks_blocked()
    for turn in range(100):
        waited.due_at = trio.current_time() - waited.began + 0.25
        waited.timer.refresh()
        await trio.sleep(0.2)
        assert waited.asked == 2 + turn
    assert not waited.fired_at
    await trio.sleep(0.1)
    assert len(waited.fired_at) == 1


async def test_timer_never_fires_before_a_slightly_postponed_deadline(
    waited: Waited, autojump_clock: MockClock
) -> None:
    await trio.sleep(0.9)
    waited.due_at = 1.05
    waited.timer.refresh()
    await trio.sleep(0.12)
    assert not waited.fired_at
    await trio.sleep(0.05)
    assert waited.fired_at == pytest.approx([1.05])


@dataclass
class Machine:
    """Two clocks as Linux has them, of a machine that has slept before."""

    monotonic: float = 100.0
    boot: float = 5000.0

    def run(self, seconds: float) -> None:
        self.monotonic += seconds
        self.boot += seconds

    def sleep(self, seconds: float) -> None:
        self.boot += seconds


def test_lease_clock_counts_suspended_time() -> None:
    machine = Machine()
    clock = LeaseClock(lambda: machine.monotonic - 90.0, lambda: machine.monotonic, lambda: machine.boot)
    assert clock() == 10.0
    machine.run(2.0)
    assert clock() == 12.0
    machine.sleep(30.0)
    machine.run(1.0)
    assert (clock(), clock.suspended_seconds()) == (43.0, 30.0)


def test_interruption_between_the_two_readings_changes_nothing() -> None:
    machine = Machine()

    def monotonic() -> float:
        machine.run(0.5)  # after the other clock was read
        return machine.monotonic

    clock = LeaseClock(lambda: machine.monotonic, lambda: machine.monotonic, lambda: machine.boot)
    clock._monotonic = monotonic
    before = clock()
    machine.sleep(7.0)
    assert clock() >= before + 6.5
    times = [clock() for _ in range(5)]
    assert times == sorted(times)


def test_system_has_both_clocks() -> None:
    clock = LeaseClock(awake_time)
    assert clock() >= clock.suspended_seconds() >= 0.0
    assert boot_time() >= awake_time() - 1.0


SOON, LATE = LINGER_SECONDS / 10, LINGER_SECONDS * 10


def pays_after(*gaps: tuple[bool, float]) -> tuple[bool, bool]:
    """After waits that took so long, with something in flight or not: whether lingering pays without it, and with."""
    paid = []
    for asked in (False, True):
        lingering, came_at, now = Lingering(), 50.0, 50.0
        for in_flight, seconds in gaps:
            lingering.is_worthwhile(came_at, now, in_flight=in_flight)
            came_at = now = now + seconds
        paid.append(lingering.is_worthwhile(came_at, now, in_flight=asked))
    return paid[0], paid[1]


def test_new_reactor_lingers() -> None:
    assert pays_after() == (True, True)


def test_distant_requests_end_lingering_only_for_requests() -> None:
    message = [(True, SOON), (True, SOON), (False, LATE)]
    assert pays_after(*10 * message) == (False, True)


def test_consecutive_requests_resume_lingering() -> None:
    assert pays_after(*10 * [(False, LATE)]) == (False, True)
    assert pays_after(*10 * [(False, LATE)], *20 * [(False, SOON)]) == (True, True)


def test_reactor_does_not_linger_for_late_answers() -> None:
    assert pays_after(*10 * [(True, LATE)]) == (True, False)


def test_single_late_event_does_not_stop_lingering() -> None:
    assert pays_after(*20 * [(False, SOON)], (False, LATE)) == (True, True)
