"""When schedules tick: changes of a time zone, clocks that go back, and several ticks that are due."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.broker.recurring.catch_up import ON_TIME_MS, Tick, next_tick
from mq.broker.recurring.rule import Cron, Interval, Once, Rule, RuleInvalid, next_due, rule_of
from mq.protocol.requests.schedules import CATCH_UPS, TIME_MS_MAX, ScheduleDefinition

VIENNA = "Europe/Vienna"
"""From 2:00 to 3:00 on 29 March 2026, and from 3:00 back to 2:00 on 25 October."""


def ms(text: str) -> int:
    """A local time in Vienna; with an offset behind it where there are two."""
    time = dt.datetime.fromisoformat(text)
    return round((time if time.tzinfo else time.replace(tzinfo=ZoneInfo(VIENNA))).timestamp() * 1000)


def ticks(rule: Rule, after: str, count: int) -> list[str]:
    found, at = [], ms(after)
    for _ in range(count):
        following = rule.next_after(at)
        assert following is not None
        assert following > at
        at = following
        found.append(f"{dt.datetime.fromtimestamp(at / 1000, ZoneInfo(VIENNA)):%d %H:%M %z}")
    return found


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        # A fixed time that does not exist moves to the end of the gap.
        ("30 2 * * *", "2026-03-28T12:00", ["29 03:00 +0200", "30 02:30 +0200"]),
        # Two of them that move to the same moment are one tick, and one that is there already is not sent twice.
        ("0,30 2 * * *", "2026-03-28T12:00", ["29 03:00 +0200", "30 02:00 +0200"]),
        ("0 2,3 * * *", "2026-03-28T12:00", ["29 03:00 +0200", "30 02:00 +0200"]),
        # Of a fixed time that exists twice, the first one counts, also when it is asked for in the second hour.
        ("30 2 * * *", "2026-10-24T12:00", ["25 02:30 +0200", "26 02:30 +0100"]),
        ("45 2 * * *", "2026-10-25T02:10:00+01:00", ["26 02:45 +0100"]),
        # Stars follow the clock.
        ("*/30 * * * *", "2026-03-29T01:15", ["29 01:30 +0100", "29 03:00 +0200", "29 03:30 +0200"]),
        (
            "*/30 * * * *",
            "2026-10-25T01:45",
            ["25 02:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100", "25 03:00 +0100"],
        ),
        ("0 * * * *", "2026-10-25T01:30", ["25 02:00 +0200", "25 02:00 +0100", "25 03:00 +0100"]),
        # So do expressions with seconds.
        ("0 30 2 * * *", "2026-10-24T12:00", ["25 02:30 +0200", "25 02:30 +0100", "26 02:30 +0100"]),
        ("0 30 2 * * *", "2026-03-28T12:00", ["30 02:30 +0200"]),
        # Midnight is there on both days.
        ("0 0 * * *", "2026-03-28T12:00", ["29 00:00 +0100", "30 00:00 +0200"]),
        ("0 9 * * MON-FRI", "2026-03-27T12:00", ["30 09:00 +0200", "31 09:00 +0200"]),
    ],
)
def test_ticks_across_changes_of_daylight_saving_time(expression: str, after: str, expected: list[str]) -> None:
    assert ticks(Cron(expression, VIENNA), after, len(expected)) == expected


def test_both_cron_days_must_match_if_requested() -> None:
    either, both = Cron("0 8 13 * FRI", VIENNA), Cron("0 8 13 * FRI", VIENNA, both_days=True)
    assert ticks(either, "2026-02-14T00:00", 2) == ["20 08:00 +0100", "27 08:00 +0100"]
    assert ticks(both, "2026-02-14T00:00", 2) == ["13 08:00 +0100", "13 08:00 +0100"]  # in March and November


@pytest.mark.parametrize("zone", ["UTC", VIENNA, "America/New_York", "Australia/Lord_Howe"])
def test_year_of_cron_ticks_ascends_in_every_time_zone(zone: str) -> None:
    begin, end = ms("2026-01-01T00:00:00+00:00"), ms("2027-01-01T00:00:00+00:00")
    for expression, least, most in (("15 2 * * *", 364, 366), ("7 */6 * * *", 4 * 365 - 4, 4 * 365 + 4)):
        rule, at, count = Cron(expression, zone), begin, 0
        while (following := rule.next_after(at)) is not None and following < end:
            assert following > at
            at, count = following, count + 1
        assert least <= count <= most, (expression, count)


@given(st.integers(0, 10**13), st.integers(1000, 10**10), st.integers(0, 10**13))
@settings(max_examples=60, deadline=None)
def test_intervals_are_counted_from_their_anchor(time_ms: int, every_ms: int, anchor_ms: int) -> None:
    rule = Interval(every_ms, anchor_ms)
    found = rule.next_after(time_ms)
    assert found is not None
    assert 0 < found - time_ms <= every_ms
    assert (found - anchor_ms) % every_ms == 0
    assert rule.between(time_ms, found) == 1
    assert rule.between(time_ms, found - 1) == 0
    assert rule.between(time_ms, found + 10 * every_ms) == 11


def test_one_time_rule_ticks_once() -> None:
    rule = Once(5000)
    assert (rule.next_after(4999), rule.next_after(5000)) == (5000, None)
    assert (rule.between(0, 5000), rule.between(5000, 9000)) == (1, 0)


def test_schedule_ticks_only_between_start_and_end() -> None:
    definition = ScheduleDefinition(name="a", topic="T", every_ms=1000, anchor_ms=0, start_ms=5000, end_ms=7000)
    rule = rule_of(definition)
    assert [next_due(rule, definition, at) for at in (0, 5000, 6000)] == [5000, 6000, None]


def test_year_9999_is_the_last() -> None:
    assert Interval(1000, 0).next_after(TIME_MS_MAX) is None
    assert Cron("0 0 1 1 *", "UTC").next_after(TIME_MS_MAX - 1000) is None


@pytest.mark.parametrize(
    "expression",
    ["", "* * * *", "60 * * * *", "* * 30 2 *", "* * * * MON#1/2", "*/0 * * * *", "a b c d e", "* * * * ٣", "\x00" * 5],
)
def test_invalid_cron_expression_is_refused(expression: str) -> None:
    with pytest.raises(RuleInvalid, match="cron expression"):
        Cron(expression, "UTC")


@pytest.mark.parametrize("zone", ["", "Nowhere/Else", "../../etc/passwd", "/etc/localtime", "Europe", "\x00"])
def test_invalid_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(RuleInvalid, match="time zone"):
        Cron("* * * * *", zone)


@given(st.text(alphabet="0123456789*/,-#LW MONFRIJAN?", max_size=30))
@settings(max_examples=100, deadline=None)
def test_any_cron_text_is_parsed_or_refused(text: str) -> None:
    try:
        found = Cron(text, VIENNA).next_after(ms("2026-03-29T01:59:59"))
    except RuleInvalid:
        return
    assert found is None or found > ms("2026-03-29T01:59:59")


MINUTE = 60_000
DAY = 86_400_000


def tick(settled_ms: int, now_ms: int, **given: Any) -> Tick | None:
    definition = ScheduleDefinition(name="a", topic="T", **({"every_ms": MINUTE, "anchor_ms": 0} | given))
    return next_tick(rule_of(definition), definition, settled_ms, now_ms)


@pytest.mark.parametrize("catch_up", CATCH_UPS)
def test_due_tick_is_sent(catch_up: str) -> None:
    assert tick(0, MINUTE - 1, catch_up=catch_up) is None
    assert tick(0, MINUTE + 20, catch_up=catch_up) == Tick(MINUTE, MINUTE, 0)


@pytest.mark.parametrize("catch_up", CATCH_UPS)
def test_setting_the_clock_back_does_not_repeat_ticks(catch_up: str) -> None:
    assert tick(5 * MINUTE, 5 * MINUTE, catch_up=catch_up) is None
    assert tick(5 * MINUTE, 2 * MINUTE, catch_up=catch_up) is None
    assert tick(5 * MINUTE, 0, catch_up=catch_up) is None


def test_only_the_latest_due_tick_is_sent() -> None:
    assert tick(0, 10 * MINUTE + 5, catch_up="last") == Tick(10 * MINUTE, 10 * MINUTE, 9)
    # After a year, and after thirty years of seconds: without counting them one by one.
    assert tick(0, 365 * DAY, catch_up="last") == Tick(365 * DAY, 365 * DAY, 365 * 1440 - 1)
    thirty = 30 * 365 * DAY
    assert tick(0, thirty, catch_up="last", every_ms=1000) == Tick(thirty, thirty, thirty // 1000 - 1)


def test_last_skipped_cron_tick_is_searched_by_bisection() -> None:
    now_ms = 365 * DAY + 30_000
    found = tick(0, now_ms, every_ms=0, anchor_ms=None, cron="* * * * *", catch_up="last")
    assert found == Tick(365 * DAY, 365 * DAY, 1000)  # of the given up ones, a thousand are counted


def test_late_tick_is_skipped_by_its_policy() -> None:
    hour = 60 * MINUTE
    given = {"every_ms": hour, "catch_up": "skip"}
    assert tick(0, hour + ON_TIME_MS, **given) == Tick(hour, hour, 0)
    assert tick(0, hour + ON_TIME_MS + 1, **given) == Tick(None, hour, 1)
    assert tick(0, 5 * hour + 1, **given) == Tick(5 * hour, 5 * hour, 4)


def test_late_ticks_are_sent_in_order_up_to_their_limit() -> None:
    given = {"catch_up": "all", "catch_up_ms": 3 * MINUTE}
    now_ms, settled, sent, skipped = 10 * MINUTE + 5, 0, [], 0
    while (found := tick(settled, now_ms, **given)) is not None:
        assert found.settled_ms > settled
        settled, skipped = found.settled_ms, skipped + found.skip_count
        if found.due_ms is not None:
            sent.append(found.due_ms // MINUTE)
    assert (sent, skipped) == ([8, 9, 10], 7)


def test_late_ticks_are_skipped_together() -> None:
    given = {"catch_up": "all", "catch_up_ms": 1000, "every_ms": DAY}
    found = tick(0, 3 * DAY + 5000, **given)
    assert found is not None
    assert (found.due_ms, found.skip_count) == (None, 3)
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
            settled, skipped = found.settled_ms, skipped + found.skip_count
            if found.due_ms is not None:
                assert sent[-1] < found.due_ms <= now_ms
                assert (found.due_ms - anchor_ms) % every_ms == 0
                sent.append(found.due_ms)
    expected = (settled - anchor_ms) // every_ms - (0 - anchor_ms) // every_ms
    assert len(sent) - 1 + skipped == expected
