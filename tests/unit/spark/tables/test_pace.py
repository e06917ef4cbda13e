"""When a pipeline commits, in virtual time, how a signal ends its waiting, and its metrics."""

from __future__ import annotations

import errno
import math
import os
import signal
import threading
from pathlib import Path

import prometheus_client
import pytest

from spark.positions import Position
from spark.tables.commits import Commit
from spark.tables.metrics import Metrics, PortUnusable
from spark.tables.pace import IDLE_SECONDS, StopSignal, keep_pace
from spark.tables.pipeline import parse_pipeline


class Day:
    """Virtual time, a backlog of messages, and a process that is asked to stop at some time."""

    def __init__(self, stop_at: float, arrivals: dict[float, int], *, seconds_per_commit: float = 2.0) -> None:
        self.now = 0.0
        self.commits: list[tuple[float, int]] = []
        self._stop_at = stop_at
        self._arrivals = arrivals
        self._seconds = seconds_per_commit
        self._committed = 0
        self._seen = 0

    def wait(self, timeout: float) -> bool:
        self.now = min(self._stop_at, self.now + timeout)
        return self.now >= self._stop_at

    def commit(self) -> bool:
        """At most ten messages."""
        self._seen = sum(count for at, count in self._arrivals.items() if at <= self.now)
        taken = min(10, self._seen - self._committed)
        if taken:
            self.commits.append((self.now, taken))
            self.now += self._seconds
            self._committed += taken
        return taken > 0

    def run(self, every_seconds: float | None) -> list[tuple[float, int]]:
        keep_pace(self.commit, every_seconds, lambda: self._committed < self._seen, self, lambda: self.now)
        return self.commits


def test_commit_begins_ten_minutes_after_the_last_one_began() -> None:
    arrivals = dict.fromkeys([0.0, 100.0, 700.0, 1300.0], 3)
    day = Day(3000, arrivals)
    assert day.run(600) == [(0, 3), (600, 3), (1200, 3), (1800, 3)]
    assert day.now == 3000  # it went on waiting


def test_backlog_is_committed_at_once_before_it_waits() -> None:
    assert Day(1300, {0.0: 25, 10.0: 1}).run(600) == [(0, 10), (2, 10), (4, 5), (604, 1)]


def test_commit_longer_than_its_interval_is_followed_at_once() -> None:
    arrivals = {float(at): 1 for at in range(100)}
    assert [at for at, _ in Day(100, arrivals, seconds_per_commit=30).run(20)] == [0, 30, 60, 90]


def test_continuous_pipeline_commits_new_messages_at_each_look() -> None:
    commits = Day(20, {0.0: 1, 1.0: 1, 10.2: 1}).run(0)
    assert [at for at, _ in commits][:2] == [0, 2]
    assert 10.2 <= commits[2][0] <= 10.2 + IDLE_SECONDS


def test_once_mode_ends_when_everything_is_committed() -> None:
    day = Day(1000, {0.0: 25})
    assert day.run(None) == [(0, 10), (2, 10), (4, 5)]
    assert day.now == 6


def test_stopping_process_makes_no_further_commit() -> None:
    assert Day(0, {0.0: 25}).run(600) == []
    assert Day(3, {0.0: 25}).run(None) == [(0, 10), (2, 10)]  # the one that had begun is finished


def test_signal_ends_a_wait_of_hours() -> None:
    stop = StopSignal()
    before = signal.signal(signal.SIGUSR1, stop.ask)
    try:
        assert not stop.wait(0)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        assert stop.wait(36_000)
        assert stop.wait(0)  # it stays asked
    finally:
        signal.signal(signal.SIGUSR1, before)
        stop.close()


def test_occupied_metrics_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object, **__: object) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(prometheus_client, "start_http_server", taken)
    text = "namesrv: h:1\ntopic: T\ntable: {format: parquet, location: /t}\nmetrics_port: 9100\n"
    with pytest.raises(PortUnusable, match="metrics_port 9100: Address already in use"):
        Metrics(parse_pipeline(text, Path("/p.yaml"))).serve()


def test_restarted_pipeline_reports_the_age_of_its_last_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[prometheus_client.CollectorRegistry] = []
    monkeypatch.setattr(prometheus_client, "start_http_server", lambda _, registry: served.append(registry))
    text = "name: p\nnamesrv: h:1\ntopic: T\ntable: {format: parquet, location: /t}\nmetrics_port: 9100\n"
    metrics = Metrics(parse_pipeline(text, Path("/p.yaml")))
    metrics.serve()
    position = Position("c", {}, {}).to_json()
    metrics.on_open(Commit("p/T", 4, position, position, 0, 0, 1_700_000_000_500, "run", {}, position))
    labels = {"pipeline": "p", "topic": "T"}
    lag = served[0].get_sample_value("raftmq_table_lag_messages", labels)
    assert lag is not None
    assert math.isnan(lag), "nobody has asked the topic"
    metrics.on_caught_up()
    assert served[0].get_sample_value("raftmq_table_lag_messages", labels) == 0
    assert served[0].get_sample_value("raftmq_table_commit_timestamp_seconds", labels) == 1_700_000_000.5
