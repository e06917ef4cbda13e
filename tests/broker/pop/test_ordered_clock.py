"""Popped messages on a leader whose wall clock is set back, or is behind that of the leader before."""

from __future__ import annotations

import pytest

from mq.broker.state.pop_checkpoints import INVISIBLE_MS_MAX
from tests.support.pop_crashes import INVISIBLE_MS, CrashMachine, started


def test_new_leader_with_a_lagging_clock_keeps_the_invisible_time() -> None:
    machine = started(1)
    machine.pop(1, 0, 0, True)
    machine.hidden_until.clear()
    machine.crash(0, 900_000)
    machine.run(INVISIBLE_MS - 1)
    assert not machine.appender.groups
    machine.run(1)
    machine.commit(1)
    machine.pop(1, 0, 0, True)
    assert machine.held[b"0"].message.reconsume_times == 1


def test_clock_set_back_does_not_prolong_the_invisible_time() -> None:
    machine = started(1)
    machine.pop(1, 0, 0, True)
    machine.run(1)
    machine.step(-500_000)
    machine.hidden_until[b"0"] = machine.now_ms + INVISIBLE_MS
    machine.run(1)
    machine.run(2 * INVISIBLE_MS)
    machine.commit(1)
    machine.pop(1, 0, 0, True)
    assert machine.held[b"0"].message.reconsume_times == 1
    machine.teardown()


def popped_in_order_before_a_step(step_ms: int) -> CrashMachine:
    """A leader whose wall clock was set back by ``step_ms``, 40 ms after a message was popped in order."""
    machine = started(1)
    machine.pop(1, 0, 0, True, in_order=True)
    machine.run(20)
    machine.run(20)
    machine.step(-step_ms)
    machine.hidden_until[b"0"] = 0
    return machine


def pops_in_order(machine: CrashMachine) -> bool:
    """Whether a pop in order gets the message now."""
    machine.held.clear()
    machine.pop(1, 0, 0, True, in_order=True)
    return bool(machine.held)


@pytest.mark.parametrize("step_ms", [50, 5_000, 500_000, INVISIBLE_MS_MAX + 500_000])
def test_clock_set_back_keeps_the_invisible_time_of_ordered_messages(step_ms: int) -> None:
    machine = popped_in_order_before_a_step(step_ms)
    assert not pops_in_order(machine)
    machine.run(INVISIBLE_MS - 41)
    assert not pops_in_order(machine), "two consumers have it before its invisible time is over"
    machine.run(41)
    assert pops_in_order(machine)


def test_waiting_ordered_pop_survives_a_clock_step_back() -> None:
    machine = popped_in_order_before_a_step(500_000)
    machine.held.clear()
    machine.pop(1, 0, 1_000, True, in_order=True)
    machine.run(INVISIBLE_MS - 1)
    machine.commit(1)
    assert not machine.held
    for _ in range(2):
        machine.run(20)
    machine.commit(1)
    assert list(machine.held) == [b"0"]


def test_time_changed_after_a_clock_step_counts_from_the_change() -> None:
    machine = popped_in_order_before_a_step(500_000)
    machine.run(20)
    machine.ask_change(machine.held[b"0"], 2 * INVISIBLE_MS)
    machine.commit(1)
    machine.hidden_until.clear()
    assert machine.held[b"0"].receipt.invisible_ms >= 2 * INVISIBLE_MS
    machine.run(2 * INVISIBLE_MS - 1)
    assert not pops_in_order(machine)
    machine.run(1)
    assert pops_in_order(machine)


def test_time_changed_before_a_clock_step_is_kept() -> None:
    machine = started(1)
    machine.pop(1, 0, 0, True, in_order=True)
    machine.run(20)
    machine.ask_change(machine.held[b"0"], 3 * INVISIBLE_MS)
    machine.commit(1)
    machine.run(20)
    machine.step(-500_000)
    machine.hidden_until.clear()
    machine.run(1)
    machine.run(3 * INVISIBLE_MS - 21)
    assert not pops_in_order(machine)
    machine.run(3 * INVISIBLE_MS)
    assert pops_in_order(machine)


@pytest.mark.parametrize("forward_ms", [400_000, 500_000])
def test_corrected_clock_does_not_shorten_the_invisible_time(forward_ms: int) -> None:
    machine = popped_in_order_before_a_step(500_000)
    machine.run(20)
    machine.step(forward_ms)
    machine.run(INVISIBLE_MS - 61)
    assert not pops_in_order(machine)
    machine.run(INVISIBLE_MS)
    assert pops_in_order(machine)


def test_pop_at_a_repeated_clock_time_uses_its_own_invisible_time() -> None:
    machine = popped_in_order_before_a_step(500_000)
    machine.run(1)
    machine.run(INVISIBLE_MS)
    machine.step(500_000 - 40 - 1 - INVISIBLE_MS)
    before = machine.held[b"0"].receipt.pop_time_ms
    assert pops_in_order(machine)
    assert machine.held[b"0"].receipt.pop_time_ms == before
    assert not pops_in_order(machine)


def test_new_leader_with_a_lagging_clock_keeps_the_ordered_invisible_time() -> None:
    machine = started(1)
    machine.pop(1, 0, 0, True, in_order=True)
    machine.hidden_until.clear()
    machine.crash(0, 900_000)
    machine.run(1)
    machine.run(INVISIBLE_MS - 1)
    assert not pops_in_order(machine)
    machine.run(1)
    assert pops_in_order(machine)
