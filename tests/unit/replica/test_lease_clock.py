"""The clock of leases counts the time for which the machine is suspended, and never goes back."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.lease_clock import LeaseClock, awake_time, boot_time


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
