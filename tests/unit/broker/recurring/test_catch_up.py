"""Which tick is sent when several are due, or when the clock goes back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.broker.recurring.catch_up import ON_TIME_MS, Tick, next_tick
from mq.broker.recurring.rule import rule_of
from mq.protocol.requests.schedules import CATCH_UPS, ScheduleDefinition

MINUTE = 60_000
DAY = 86_400_000


def tick(settled_ms: int, now_ms: int, **given: Any) -> Tick | None:
    definition = ScheduleDefinition(name="a", topic="T", **({"every_ms": MINUTE, "anchor_ms": 0} | given))
    return next_tick(rule_of(definition), definition, settled_ms, now_ms)


@pytest.mark.parametrize("catch_up", CATCH_UPS)
def test_tick_that_is_due_now_is_sent(catch_up: str) -> None:
    assert tick(0, MINUTE - 1, catch_up=catch_up) is None
    assert tick(0, MINUTE + 20, catch_up=catch_up) == Tick(MINUTE, MINUTE, 0)


@pytest.mark.parametrize("catch_up", CATCH_UPS)
def test_clock_that_went_back_repeats_nothing(catch_up: str) -> None:
    assert tick(5 * MINUTE, 5 * MINUTE, catch_up=catch_up) is None
    assert tick(5 * MINUTE, 2 * MINUTE, catch_up=catch_up) is None
    assert tick(5 * MINUTE, 0, catch_up=catch_up) is None


def test_only_the_latest_due_tick_is_sent() -> None:
    assert tick(0, 10 * MINUTE + 5, catch_up="last") == Tick(10 * MINUTE, 10 * MINUTE, 9)
    # After a year, and after thirty years of seconds: without counting them one by one.
    assert tick(0, 365 * DAY, catch_up="last") == Tick(365 * DAY, 365 * DAY, 365 * 1440 - 1)
    thirty = 30 * 365 * DAY
    assert tick(0, thirty, catch_up="last", every_ms=1000) == Tick(thirty, thirty, thirty // 1000 - 1)


def test_last_missed_cron_tick_is_searched_by_bisection() -> None:
    now_ms = 365 * DAY + 30_000
    found = tick(0, now_ms, every_ms=0, anchor_ms=None, cron="* * * * *", catch_up="last")
    assert found == Tick(365 * DAY, 365 * DAY, 1000)  # of the given up ones, a thousand are counted


def test_late_tick_is_skipped_by_its_policy() -> None:
    hour = 60 * MINUTE
    given = {"every_ms": hour, "catch_up": "skip"}
    assert tick(0, hour + ON_TIME_MS, **given) == Tick(hour, hour, 0)
    assert tick(0, hour + ON_TIME_MS + 1, **given) == Tick(None, hour, 1)
    assert tick(0, 5 * hour + 1, **given) == Tick(5 * hour, 5 * hour, 4)


def test_all_are_sent_in_order_up_to_their_bound() -> None:
    given = {"catch_up": "all", "catch_up_ms": 3 * MINUTE}
    now_ms, settled, sent, skipped = 10 * MINUTE + 5, 0, [], 0
    while (found := tick(settled, now_ms, **given)) is not None:
        assert found.settled_ms > settled
        settled, skipped = found.settled_ms, skipped + found.skipped
        if found.due_ms is not None:
            sent.append(found.due_ms // MINUTE)
    assert (sent, skipped) == ([8, 9, 10], 7)


def test_all_that_are_too_late_are_given_up_at_once() -> None:
    given = {"catch_up": "all", "catch_up_ms": 1000, "every_ms": DAY}
    found = tick(0, 3 * DAY + 5000, **given)
    assert found is not None
    assert (found.due_ms, found.skipped) == (None, 3)
    assert tick(found.settled_ms, 3 * DAY + 5000, **given) is None


def test_no_tick_is_due_after_the_end() -> None:
    assert tick(0, 10 * MINUTE, end_ms=3 * MINUTE) == Tick(2 * MINUTE, 2 * MINUTE, 1)
    assert tick(2 * MINUTE, 10 * MINUTE, end_ms=3 * MINUTE) is None


@given(
    st.sampled_from(CATCH_UPS),
    st.integers(1000, 20_000),
    st.integers(0, 5000),
    st.integers(0, 60_000),
    st.lists(st.integers(-30_000, 90_000), min_size=1, max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_ticks_come_once_and_in_order_under_clock_jumps(
    catch_up: str, every_ms: int, anchor_ms: int, bound_ms: int, steps: list[int]
) -> None:
    """A clock that jumps about; every tick up to the end is either sent or counted as skipped."""
    given = {"every_ms": every_ms, "anchor_ms": anchor_ms, "catch_up": catch_up, "catch_up_ms": bound_ms}
    now_ms, settled, sent, skipped = 0, 0, [0], 0
    for step in steps:
        now_ms = max(now_ms + step, 0)
        while (found := tick(settled, now_ms, **given)) is not None:
            assert found.settled_ms > settled, "it goes on for ever"
            settled, skipped = found.settled_ms, skipped + found.skipped
            if found.due_ms is not None:
                assert sent[-1] < found.due_ms <= now_ms
                assert (found.due_ms - anchor_ms) % every_ms == 0
                sent.append(found.due_ms)
    expected = (settled - anchor_ms) // every_ms - (0 - anchor_ms) // every_ms
    assert len(sent) - 1 + skipped == expected
