"""When messages of `make bench-low-rate` are due, and how a run becomes a page; windows that nobody saw end."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice, pairwise

import pytest
import trio

from benchmarks.load.generators import drive
from benchmarks.low_rate.__main__ import parse_arguments
from benchmarks.low_rate.job import LowRateJob
from benchmarks.low_rate.page import BUSY, LowRateSample, goals, section


def sample(rate: float, p50_ms: float, cores: float = 0.002, wake_ups: float = 15.0) -> LowRateSample:
    times = p50_ms, 2 * p50_ms, 3 * p50_ms
    return LowRateSample(rate, 10.0, round(10 * rate), *times, (cores, cores / 2), (wake_ups, 9.0), 0.01, 5, 0.5)


def test_messages_are_due_at_fixed_times_including_the_window_start() -> None:
    job = LowRateJob(rate=4, begin=100.0, window_seconds=2.0)
    due = list(job.due_times(98.9))
    assert due[:5] == [99.0, 99.25, 99.5, 99.75, 100.0]
    assert due[-1] == 101.75
    assert {later - earlier for earlier, later in pairwise(due)} == {0.25}
    assert list(islice(job.at(200.0).due_times(199.9), 1)) == [200.0]


def test_goals_are_met_up_to_their_limits_only() -> None:
    samples = {
        "floor": [sample(50, 1.0), sample(2000, 0.5)],
        "raftmq": [sample(0, 0.0, 0.005, 20.0), sample(50, 2.03, 0.025), sample(500, 1.0), sample(2000, 1.04)],
    }
    assert [figure.is_met for figure in goals(samples)] == [True, False, True, True, True, True, False, True]
    assert [figure.is_met for figure in goals({"raftmq": [sample(0, 0.0, 0.006, 20.0)]})] == [False, True, False, True]
    assert [figure.is_met for figure in goals({"raftmq": [sample(0, 0.0, 0.005, 21.0)]})] == [True, False, False, True]
    assert goals({"nats": [sample(50, 1.0)]}) == []


def test_page_has_a_row_for_each_rate_and_lists_omissions() -> None:
    samples = {"floor": [sample(50, 1.0)], "raftmq": [sample(0, 0.0), sample(50, 3.0, 0.1)]}
    about = {"floor": "the floor", "raftmq": "ours"}
    text = section(about, samples, {"nats": "not installed"}, command="c", machine="m", date="d")
    assert "| raftmq | 50 | 50 | 3.00 / 6.00 / 9.00 | 2.00 / 1.00 | 0.20 | 15 / 9 | 5 |" in text
    assert "| raftmq | 0.20 / 0.10 | 1.00 | 15 / 9 | 5 |" in text
    assert "a loopback hop | 3 ms | at most 2.03, missed |" in text
    assert "nats (not installed)" in text
    assert BUSY not in text
    busy = {name: [replace(each, load_average=9.0) for each in found] for name, found in samples.items()}
    assert BUSY in section(about, busy, {}, command="c", machine="m", date="d")


def test_cpu_is_divided_by_acknowledged_messages_only() -> None:
    """A machine too busy for a rate acknowledges a quarter of it: each message has cost four times as much."""
    slow = replace(sample(50, 9.0, 0.02), acknowledged=125)
    text = section({"raftmq": "ours"}, {"raftmq": [slow]}, {}, command="c", machine="m", date="d")
    assert "| raftmq | 50 | 12 | 9.00 / 18.00 / 27.00 | 1.60 / 0.80 | 0.80 | 15 / 9 | 5 |" in text
    [figure] = goals({"raftmq": [slow]})
    assert figure.value == pytest.approx(1.6)
    assert not figure.is_met
    [figure] = goals({"raftmq": [replace(slow, acknowledged=0)]})
    assert not figure.is_met


def test_part_of_a_run_is_not_written() -> None:
    assert parse_arguments(["--rate", "50"]).no_write
    assert parse_arguments(["--quick"]).no_write
    assert not parse_arguments(["--seconds", "5"]).no_write


async def test_windows_begun_too_late_are_remeasured() -> None:
    with trio.fail_after(60):
        job = LowRateJob(rate=1, begin=time.monotonic() - 5.0, window_seconds=0.5)
        (report,), used = await drive([job], [time.monotonic], "tests.support.silent_generator")
    (begin,) = report.cpu_seconds
    assert begin > job.begin + 5.0
    assert len(used) == 1


async def test_windows_that_began_before_their_load_are_remeasured() -> None:
    """Before, they counted nothing, or less than a window had."""
    with trio.fail_after(60):
        job = LowRateJob(rate=1, begin=time.monotonic() + 0.001, window_seconds=0.5)  # Python starts more slowly
        (report,), _ = await drive([job], [time.monotonic], "tests.support.silent_generator", ahead_seconds_min=1.0)
    (begin,) = report.cpu_seconds
    assert begin > job.begin + 0.5
