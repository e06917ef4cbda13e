"""When schedules tick, above all where the clocks of a time zone change."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.broker.recurring.rule import Cron, Interval, Once, Rule, RuleInvalid, next_due, rule_of
from mq.protocol.requests.schedules import TIME_MS_MAX, ScheduleDefinition

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
