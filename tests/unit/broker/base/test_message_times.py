"""From where on the messages of a log are young, and a clock that jumps, which is believed after a minute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mq.broker.base import message_times
from mq.broker.base.message_times import NEAR, old_until
from mq.broker.base.steady_wall_clock import PROOF_SECONDS, SteadyWallClock
from raftlog.log_numbers import LogIndex


class Log:
    """A log in which each entry takes 100 bytes, and some have store times."""

    def __init__(self, stamps: Mapping[int, int], first: int, last: int) -> None:
        self.stamps = stamps
        self.first_index, self.last_index = LogIndex(first), LogIndex(last)

    def locate(self, index: LogIndex) -> Any:
        assert self.first_index <= index <= self.last_index
        return SimpleNamespace(pos=100 * index, size=100)

    def read_entries(self, first_index: LogIndex, bytes_max: int) -> Any:
        raise AssertionError("the store times are known")


@pytest.fixture(autouse=True)
def known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def stored_ms(log: Any, indexes: Iterable[LogIndex]) -> int | None:
        return next((log.stamps[index] for index in indexes if index in log.stamps), None)

    monkeypatch.setattr(message_times, "stored_ms", stored_ms)


def test_log_without_expired_messages_has_no_expired_end() -> None:
    assert old_until(Log({}, 1, 0), 5) is None, "it is empty"
    assert old_until(Log({}, 1, 3), 5) is None, "nobody knows"
    assert old_until(Log({2: 5, 3: 6}, 1, 3), 5) is None


def test_all_up_to_the_last_old_entry_is_old() -> None:
    log = Log({number: 10 * number for number in range(2, 10)}, 1, 9)
    assert old_until(log, 21) == 300
    assert old_until(log, 51) == 600
    assert old_until(log, 1000) == 1000, "the last entry as well"


@given(st.lists(st.integers(0, 100), min_size=1, max_size=60), st.integers(0, 101), st.data())
@pytest.mark.usefixtures("known_times")
def test_position_of_young_messages_follows_only_old_messages(
    times: list[int], before_ms: int, data: st.DataObject
) -> None:
    stamps = dict(enumerate(sorted(times), 1))
    unstamped = data.draw(st.sets(st.sampled_from(sorted(stamps)), max_size=min(NEAR, len(stamps)) - 1))
    log = Log({index: stamp for index, stamp in stamps.items() if index not in unstamped}, 1, len(times))
    place = old_until(log, before_ms)
    if place is not None:
        assert all(stamp < before_ms for index, stamp in log.stamps.items() if 100 * index < place)


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


def test_jump_of_a_just_started_clock_is_followed_at_once() -> None:
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
