"""The timer of a replica: it wakes up when something is due, and not again and again before that."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

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
