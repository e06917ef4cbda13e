"""Counters over spans of time, with a clock that we turn."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mq.broker.admin import stats
from mq.broker.admin.stats import Stats
from mq.broker.base.counters import SAMPLE_SECONDS, CounterSeries, TrafficCounters
from mq.protocol.numbers import FIRST_OFFSET, LOG_BEGIN
from mq.store.dispatch import QUEUE_ENTRY, QueueRun
from mq.store.queue_store import QueueStore, QueueStoreSettings
from tests.support.broker_contexts import context_of


class Running:
    """Figures that are sampled as a broker does it."""

    def __init__(self, series_max: int = 100) -> None:
        self.seconds = 0
        self.figures = TrafficCounters(0, 1, series_max)

    @property
    def now_ms(self) -> int:
        return self.seconds * 1000

    def sample(self, times: int = 1, *, day: int = 1, put: int = 0, got: int = 0) -> None:
        """Let ten seconds pass, again and again; so much is put and got in each."""
        for _ in range(times):
            if put:
                self.figures.count_put("T", put, 100 * put)
            if got:
                self.figures.count_got("T", "G", got, 100 * got)
            self.seconds += SAMPLE_SECONDS
            self.figures.sample(self.now_ms, day)


def test_counters_sum_over_minute_hour_and_day() -> None:
    running = Running()
    running.sample(6, put=10)
    series = running.figures.by_topic["T"]
    assert series.over_minute(running.now_ms) == (60, 6000, 60.0)
    assert series.over_hour(running.now_ms) == (60, 6000, 60.0), "as far as it goes back"
    running.sample(6 * 59, put=1)
    assert series.over_minute(running.now_ms) == (6, 600, 60.0)
    assert series.over_hour(running.now_ms) == (60 + 354, 41400, 3600.0)
    running.sample(6 * 60 * 30)
    assert series.over_hour(running.now_ms).nums == 0
    assert series.over_day(running.now_ms).nums == 0
    assert series.nums == 414


def test_counts_since_the_last_sample_are_included() -> None:
    running = Running()
    running.figures.count_put("T", 20, 2000)
    over = running.figures.by_topic["T"].over_minute(3000)
    assert (over.nums, over.per_second, over.bytes_per_second) == (20, 2.0, 200.0)


def test_rates_are_computed_over_ten_seconds_a_minute_and_ten_minutes() -> None:
    running = Running()
    running.sample(60, put=60)
    running.sample(5, put=600)
    running.sample(1, put=0)
    assert running.figures.puts.rates(running.now_ms) == f"0.0 {5 * 600 / 60} {(60 * 60 + 5 * 600) / 660}"
    assert running.figures.gets.rates(running.now_ms) == "0.0 0.0 0.0"


def test_counters_keep_totals_of_midnight() -> None:
    running = Running()
    running.sample(1, put=5, got=3, day=1)
    running.sample(1, put=5, got=3, day=2)
    running.sample(1, put=1, got=1, day=3)
    running.sample(1, put=1, got=1, day=3)
    assert running.figures.puts_by_midnight == (10, 11)
    assert running.figures.gets_by_midnight == (6, 7)
    running.figures.add_up()
    assert (running.figures.puts.nums, running.figures.gets.nums, running.figures.hits.nums) == (12, 8, 4)


def test_memory_is_bounded_and_totals_stay_right() -> None:
    running = Running(series_max=3)
    for number in range(10):
        running.figures.count_put(f"T{number}", 1, 1)
        running.figures.count_got("T", f"G{number}", 1, 1)
        running.figures.count_sent_back("T", f"G{number}")
    kept = running.figures
    assert len(kept.by_topic) + len(kept.by_group) + len(kept.sent_back) == 3
    running.sample()
    assert (kept.puts.nums, kept.gets.nums) == (10, 10)
    running.sample(6 * 60 * 25)
    assert not kept.by_topic, "after a day without anything"
    assert not kept.by_group
    assert not kept.sent_back
    running.sample(1, got=1)
    assert (kept.puts.nums, kept.gets.nums) == (10, 11)


def test_series_takes_about_a_kilobyte() -> None:
    series = CounterSeries(0)
    for number in range(10_000):
        series.sample(number, number)
    rings = (series._minute, series._hour, series._day)
    assert sum(ring.itemsize * len(ring) for ring in rings) <= 1000


class Queues:
    """A store with so many queues, one to a topic; each time somebody looks, each has got one more message."""

    def __init__(self, count: int) -> None:
        self.clock = 0.0
        self._queues = [
            SimpleNamespace(topic=f"T{number}", queue_id=0, min_offset=0, max_offset=0) for number in range(count)
        ]

    def __len__(self) -> int:
        return len(self._queues)

    def queues(self) -> list[Any]:
        return self._queues

    def put(self) -> None:
        for queue in self._queues:
            queue.max_offset += 1

    def stats(self, monkeypatch: pytest.MonkeyPatch) -> Stats:
        monkeypatch.setattr(stats, "_sizes", lambda queue, start, end: 100 * (end - start))
        return Stats(
            context_of(
                settings__cluster="c",
                store=self,
                clock=lambda: self.clock,
                wall_clock_ms=lambda: 0,
                traffic=TrafficCounters(0, 1),
            )
        )


def test_ends_of_many_queues_are_read_in_short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Queues(600)
    kept = store.stats(monkeypatch)
    store.put()
    store.clock = 1.0
    seen = []
    for _ in range(8):
        before = kept.figures.puts.nums
        kept.read_more_ends()
        seen.append(kept.figures.puts.nums - before)
        store.clock += 0.1
    assert seen == [250, 250, 100, 0, 0, 0, 0, 0], "the next round begins a second after this one"
    store.put()
    store.clock = 2.0
    for _ in range(3):
        kept.read_more_ends()
    assert kept.figures.puts.nums == 1200
    kept.refresh()
    assert kept.figures.puts.nums == 1200, "there are too many to look at all of them at once"


def test_stats_of_few_queues_are_refreshed_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Queues(3)
    kept = store.stats(monkeypatch)
    store.put()
    kept.refresh()
    assert kept.figures.puts.nums == 0, "not that soon again"
    store.clock = 1.0
    kept.refresh()
    assert kept.figures.puts.nums == 3


def test_stats_omit_a_topic_deleted_during_counting(tmp_path: Path) -> None:
    store = QueueStore.open(str(tmp_path), QueueStoreSettings(), queues={}, dropped_count=0, log_end=LOG_BEGIN)
    entry = QUEUE_ENTRY.pack(0, 50, 0)
    now = 0.0
    kept = Stats(
        context_of(
            settings__cluster="c",
            store=store,
            clock=lambda: now,
            wall_clock_ms=lambda: 0,
            traffic=TrafficCounters(0, 1),
        )
    )
    for number in range(300):
        store.append_run(QueueRun(f"T{number}", 0, FIRST_OFFSET, entry))
    now = 1.0
    kept.read_more_ends()
    store.drop_topic("T299")
    kept.read_more_ends()
    assert kept.figures.puts.nums == 299
    assert kept.figures.by_topic.get("T299") is None
    store.append_run(QueueRun("T299", 0, FIRST_OFFSET, entry + entry))
    now = 2.0
    kept.read_more_ends()
    kept.read_more_ends()
    assert kept.figures.puts.nums == 301
