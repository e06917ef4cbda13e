"""The longest delay of the last minute."""

from __future__ import annotations

from mq.monitoring.event_loop_lag import EventLoopLag


def test_longest_delay_is_kept_for_a_minute() -> None:
    lateness = EventLoopLag()
    assert lateness.longest(1000.0) == 0.0
    lateness.note(0.2, 1000.0)
    lateness.note(0.5, 1001.0)
    lateness.note(0.1, 1002.0)
    assert lateness.longest(1002.0) == 0.5
    assert lateness.longest(1059.9) == 0.5
    assert lateness.longest(1061.0) == 0.0


def test_smaller_delays_show_once_the_longest_expired() -> None:
    lateness = EventLoopLag()
    for second in range(1000, 1120):
        lateness.note(0.4 if second == 1010 else 0.01, float(second))
    assert lateness.longest(1119.0) == 0.01
