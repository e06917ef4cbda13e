"""A clock that jumps is believed after a minute."""

from __future__ import annotations

from typing import Any

import structlog
from structlog.testing import capture_logs

from mq.broker.base.steady_wall_clock import PROOF_SECONDS, SteadyWallClock

YEAR_MS = 365 * 24 * 3_600_000
NOW = 1_800_000_000_000
LOG: Any = structlog.get_logger("test")


class Machine:
    def __init__(self) -> None:
        self.steady, self.wall_ms = 1000.0, NOW
        self.clock = SteadyWallClock(lambda: self.wall_ms, lambda: self.steady, LOG)

    def after(self, seconds: float, jump_ms: int = 0) -> int:
        """What the clock says after some seconds, relative to the true time, if it was right at the start."""
        self.steady += seconds
        self.wall_ms += round(seconds * 1000) + jump_ms
        return self.clock() - NOW - round((self.steady - 1000) * 1000)


def test_ten_seconds_of_a_wrong_year_change_nothing() -> None:
    for year_ms in (YEAR_MS, -YEAR_MS):
        machine = Machine()
        assert machine.after(PROOF_SECONDS) == 0
        with capture_logs() as logs:
            assert machine.after(1, year_ms) == 0
            assert machine.clock.disbelieved_ms == year_ms
            assert [machine.after(1) for _ in range(9)] == [0] * 9
            assert machine.after(1, -year_ms) == 0
        assert [line["event"] for line in logs] == ["clock_jumped", "clock_jump_over"]
        assert (logs[0]["seconds"], logs[0]["followed"]) == (year_ms / 1000, False)
        assert (machine.clock.jumps, machine.clock.disbelieved_ms) == (1, 0)


def test_jump_is_followed_after_a_minute() -> None:
    machine = Machine()
    machine.after(PROOF_SECONDS)
    with capture_logs() as logs:
        assert machine.after(1, YEAR_MS) == 0
        assert machine.after(PROOF_SECONDS - 0.1) == 0
        assert machine.after(0.1) == YEAR_MS
        assert machine.after(10) == YEAR_MS
    assert [line["event"] for line in logs] == ["clock_jumped", "clock_jump_followed"]


def test_clock_that_has_just_started_is_not_believed_more() -> None:
    machine = Machine()
    with capture_logs() as logs:
        assert machine.after(5, YEAR_MS) == YEAR_MS
        assert machine.after(5, -YEAR_MS) == 0
    assert [(line["event"], line["followed"]) for line in logs] == [("clock_jumped", True)] * 2


def test_another_jump_begins_its_own_minute() -> None:
    machine = Machine()
    machine.after(PROOF_SECONDS)
    assert machine.after(1, YEAR_MS) == 0
    assert machine.after(50, YEAR_MS) == 0
    assert machine.after(50) == 0
    assert machine.after(10) == 2 * YEAR_MS


def test_small_steps_are_followed() -> None:
    machine = Machine()
    machine.after(PROOF_SECONDS)
    assert [machine.after(1, 900) for _ in range(3)] == [900, 1800, 2700]
    assert machine.clock.jumps == 0
