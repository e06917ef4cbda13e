"""Popped messages on a leader whose wall clock is set back, or is behind that of the leader before."""

from __future__ import annotations

import pytest

from mq.broker.state.pop_checkpoints import INVISIBLE_MS_MAX
from tests.support.pop_crashes import INVISIBLE_MS, CrashMachine, started


def test_a_new_leader_whose_clock_is_far_behind_hides_messages_no_longer_than_they_were_popped_for() -> None:
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


def test_a_clock_that_goes_back_hides_nothing_until_it_is_there_again() -> None:
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
def test_a_clock_that_is_set_back_hides_what_was_popped_in_order_for_its_invisible_time_at_most(step_ms: int) -> None:
    machine = popped_in_order_before_a_step(step_ms)
    assert not pops_in_order(machine)
    machine.run(INVISIBLE_MS - 41)
    assert not pops_in_order(machine), "two consumers have it before its invisible time is over"
    machine.run(41)
    assert pops_in_order(machine)


def test_a_pop_in_order_that_waits_is_served_although_the_clock_is_set_back() -> None:
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


def test_a_time_that_is_changed_after_the_clock_was_set_back_counts_from_the_change() -> None:
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


def test_a_time_that_was_changed_before_the_clock_is_set_back_is_kept() -> None:
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
def test_a_clock_that_is_set_right_again_does_not_shorten_the_invisible_time(forward_ms: int) -> None:
    machine = popped_in_order_before_a_step(500_000)
    machine.run(20)
    machine.step(forward_ms)
    machine.run(INVISIBLE_MS - 61)
    assert not pops_in_order(machine)
    machine.run(INVISIBLE_MS)
    assert pops_in_order(machine)


def test_a_pop_at_the_same_time_of_day_as_one_before_the_step_hides_messages_for_its_own_time() -> None:
    machine = popped_in_order_before_a_step(500_000)
    machine.run(1)
    machine.run(INVISIBLE_MS)
    machine.step(500_000 - 40 - 1 - INVISIBLE_MS)
    before = machine.held[b"0"].receipt.pop_time_ms
    assert pops_in_order(machine)
    assert machine.held[b"0"].receipt.pop_time_ms == before
    assert not pops_in_order(machine)


def test_a_new_leader_whose_clock_is_behind_hides_what_was_popped_in_order_no_longer_than_it_was_popped_for() -> None:
    machine = started(1)
    machine.pop(1, 0, 0, True, in_order=True)
    machine.hidden_until.clear()
    machine.crash(0, 900_000)
    machine.run(1)
    machine.run(INVISIBLE_MS - 1)
    assert not pops_in_order(machine)
    machine.run(1)
    assert pops_in_order(machine)
