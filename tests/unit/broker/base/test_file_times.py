"""The ages of log files, and the time by which they are deleted, under clocks that were or are wrong."""

from __future__ import annotations

from typing import Any

import structlog
from structlog.testing import capture_logs

from mq.broker.base.file_times import PROOF_SECONDS, FileTimes, PlausibleTime
from raftlog.log_numbers import LogIndex
from raftlog.segment import RetentionPolicy, SegmentInfo, Situation, droppable

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
NOW = 1_800_000_000_000
LOG: Any = structlog.get_logger("test")


class Files:
    """Files with given store times; the last one is still written."""

    def __init__(self, *stamps: tuple[int, ...]) -> None:
        self.stamps = list(stamps)
        self.now = 1000.0
        self.times = FileTimes(lambda segment: self.stamps[segment.start // 10], lambda: self.now, LOG)

    def segments(self) -> list[SegmentInfo]:
        last = len(self.stamps) - 1
        return [
            SegmentInfo(number * 10, number * 10 + 10, LogIndex(number + 1), LogIndex(number + 1), number < last)
            for number in range(last + 1)
        ]

    def deleted(self, now_ms: int = NOW, hours: int = 72) -> int:
        """How many files 72 h of retention delete."""
        segments = self.segments()
        self.times.look(segments, now_ms)
        now = Situation(
            now_ms=now_ms, hour=0, floor_pos=10**9, wanted_pos=10**9, disk_used_bytes=0, disk_total_bytes=100
        )
        deletion = droppable(segments, self.times.newest_ms, RetentionPolicy(age_ms_max=hours * HOUR), now)
        return 0 if deletion is None else deletion.base_pos // 10


def ago(hours: float) -> int:
    return NOW - round(hours * HOUR)


def test_old_files_go() -> None:
    assert Files((ago(100), ago(90)), (ago(90), ago(80)), (ago(80), ago(70)), (ago(70),)).deleted() == 2


def test_a_file_from_the_future_goes_after_its_successor() -> None:
    files = Files((ago(100), ago(99)), (ago(98), NOW + YEAR), (ago(97), ago(90)), (ago(71), ago(70)), (ago(1),))
    with capture_logs() as logs:
        assert files.deleted() == 3
        assert files.deleted() == 3
    assert [(line["event"], line["begin_pos"], line["newest_ms"], line["counted_as_ms"]) for line in logs] == [
        ("file_from_the_future", 10, NOW + YEAR, ago(97))
    ]


def test_a_file_from_the_future_stays_as_long_as_others() -> None:
    assert Files((ago(74), NOW + YEAR), (ago(70), ago(69)), (ago(1),)).deleted() == 0


def test_files_from_the_future_alone_get_older_from_now_on() -> None:
    files = Files((NOW + YEAR, NOW + YEAR), (NOW + YEAR, NOW + YEAR), (NOW + YEAR,))
    assert files.deleted() == 0
    files.now += 71 * 3600
    assert files.deleted(NOW + 71 * HOUR) == 0
    files.now += 2 * 3600
    assert files.deleted(NOW + 73 * HOUR) == 2


def test_a_file_that_a_clock_behind_wrote_stays() -> None:
    assert Files((ago(3), ago(2)), (NOW - YEAR, NOW - YEAR), (ago(1),)).deleted() == 0, "the earlier file is younger"
    assert Files((ago(3), NOW - YEAR), (ago(1),)).deleted() == 0, "its first message is younger"
    files = Files((NOW - YEAR, NOW - YEAR))
    assert files.deleted() == 0
    files.stamps.append((NOW,))
    files.now += 10
    assert files.deleted(NOW + 10_000) == 0, "it was written ten seconds ago"
    files.now += 73 * 3600
    assert files.deleted(NOW + 73 * HOUR) == 1


def test_an_old_file_without_a_younger_neighbour_goes() -> None:
    assert Files((NOW - YEAR, NOW - YEAR), (ago(1),)).deleted() == 1


class Watch:
    def __init__(self, newest_ms: int | None) -> None:
        self.now, self.wall_ms = 50.0, NOW
        self.time = PlausibleTime(lambda: self.now, newest_ms, LOG)

    def after(self, seconds: float, jump_ms: int = 0) -> int:
        self.now += seconds
        self.wall_ms += round(seconds * 1000) + jump_ms
        return self.time.look(self.wall_ms)


def test_a_jump_ahead_counts_after_an_hour() -> None:
    watch = Watch(NOW)
    assert watch.after(10) == watch.wall_ms
    with capture_logs() as logs:
        assert watch.after(10, YEAR) == watch.wall_ms - YEAR
        for _ in range(358):
            assert watch.after(10) == watch.wall_ms - YEAR
    assert [line["event"] for line in logs] == ["retention_waits_for_clock"]
    assert watch.after(30) == watch.wall_ms


def test_a_jump_ahead_and_back_never_counts() -> None:
    watch = Watch(NOW)
    watch.after(10)
    assert watch.after(10, YEAR) == NOW + 20_000
    assert watch.after(10, -YEAR) == NOW + 30_000 == watch.wall_ms
    assert watch.after(10) == watch.wall_ms


def test_a_jump_back_counts_at_once() -> None:
    watch = Watch(NOW)
    assert watch.after(10, -YEAR) == watch.wall_ms
    assert watch.after(10, YEAR) == watch.wall_ms - YEAR


def test_a_start_counts_from_the_newest_message() -> None:
    watch = Watch(NOW - YEAR)
    assert watch.after(10) == watch.wall_ms - YEAR
    assert watch.after(PROOF_SECONDS) == watch.wall_ms
    assert Watch(NOW + YEAR).after(0) == NOW
    assert Watch(None).after(0) == NOW
