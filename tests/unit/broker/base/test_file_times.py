"""The ages of log files, and the time by which they are deleted, under clocks that were or are wrong."""

from __future__ import annotations

import random
from typing import Any

import structlog
from structlog.testing import capture_logs

from mq.broker.base.clock_corrections import STEPS_MAX, BootClock, ClockCorrections
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
        self.offset_ms = 0
        self.begin("boot", None)

    def begin(self, boot_id: str, note: bytes | None) -> None:
        """A process starts, on this boot, with the note of the one before."""
        added = ClockCorrections(BootClock(boot_id, lambda: self.offset_ms), note)
        self.times = FileTimes(lambda segment: self.stamps[segment.start // 10], lambda: self.now, LOG, added)

    def restart(self, boot_id: str = "boot") -> None:
        """The clock of the process begins anew."""
        self.begin(boot_id, self.times.corrections.encode())
        self.now = 50.0

    def segments(self) -> list[SegmentInfo]:
        last = len(self.stamps) - 1
        return [
            SegmentInfo(number * 10, number * 10 + 10, LogIndex(number + 1), LogIndex(number + 1), number < last)
            for number in range(last + 1)
        ]

    def deleted(self, now_ms: int = NOW, hours: int = 72) -> int:
        """How many files 72 h of retention delete."""
        segments = self.segments()
        self.times.set_files(segments, now_ms, now_ms)
        now = Situation(
            now_ms=now_ms, hour=0, floor_pos=10**9, wanted_pos=10**9, disk_used_bytes=0, disk_total_bytes=100
        )
        deletion = droppable(segments, self.times.newest_ms, RetentionPolicy(age_ms_max=hours * HOUR), now)
        return 0 if deletion is None else deletion.base_pos // 10


def ago(hours: float) -> int:
    return NOW - round(hours * HOUR)


def test_old_files_are_deleted() -> None:
    assert Files((ago(100), ago(90)), (ago(90), ago(80)), (ago(80), ago(70)), (ago(70),)).deleted() == 2


def test_file_with_a_future_time_is_deleted_like_its_successor() -> None:
    files = Files((ago(100), ago(99)), (ago(98), NOW + YEAR), (ago(97), ago(90)), (ago(71), ago(70)), (ago(1),))
    with capture_logs() as logs:
        assert files.deleted() == 3
        assert files.deleted() == 3
    assert [(line["event"], line["begin_pos"], line["newest_ms"], line["counted_as_ms"]) for line in logs] == [
        ("file_from_the_future", 10, NOW + YEAR, ago(97))
    ]


def test_file_from_the_future_stays_as_long_as_others() -> None:
    assert Files((ago(74), NOW + YEAR), (ago(70), ago(69)), (ago(1),)).deleted() == 0


def test_files_dated_in_the_future_age_from_now() -> None:
    files = Files((NOW + YEAR, NOW + YEAR), (NOW + YEAR, NOW + YEAR), (NOW + YEAR,))
    assert files.deleted() == 0
    files.now += 71 * 3600
    assert files.deleted(NOW + 71 * HOUR) == 0
    files.now += 2 * 3600
    assert files.deleted(NOW + 73 * HOUR) == 2


def test_file_that_a_clock_behind_wrote_stays() -> None:
    assert Files((ago(3), ago(2)), (NOW - YEAR, NOW - YEAR), (ago(1),)).deleted() == 0, "the earlier file is younger"
    assert Files((ago(3), NOW - YEAR), (ago(1),)).deleted() == 0, "its first message is younger"
    files = Files((NOW - YEAR, NOW - YEAR))
    assert files.deleted() == 0
    files.stamps.append((NOW,))
    files.now += 10
    assert files.deleted(NOW + 10_000) == 0, "it was written ten seconds ago"
    files.now += 73 * 3600
    assert files.deleted(NOW + 73 * HOUR) == 1


def test_file_that_a_clock_behind_wrote_stays_after_a_restart() -> None:
    """The clock of the leader was four days behind; this replica saw that, and starts again on another boot."""
    files = Files((ago(100), ago(99)), (ago(96), ago(96)))
    files.deleted()
    files.stamps[1] = (ago(96), ago(95))
    files.stamps.append((ago(0),))
    assert files.deleted() == 1
    files.restart("another boot")
    assert files.deleted() == 1
    assert files.deleted(NOW + 71 * HOUR) == 1
    assert files.deleted(NOW + 73 * HOUR) == 2


def test_clock_set_ahead_between_two_processes_does_not_age_files() -> None:
    """The clock was four days behind. It was set right while the broker was stopped, and the machine was not."""
    files = Files((ago(100), ago(99)), (ago(98), ago(97)), (ago(96),))
    assert files.deleted(ago(96)) == 0
    files.restart()
    files.offset_ms += 96 * HOUR
    with capture_logs() as logs:
        assert files.deleted() == 0
    assert [(line["event"], line["seconds"]) for line in logs] == [("files_counted_by_uptime", 96 * 3600)]
    files.restart("another boot")
    assert files.deleted(NOW + 68 * HOUR) == 0
    assert files.deleted(NOW + 70 * HOUR) == 1
    assert files.deleted(NOW + 72 * HOUR) == 2


def test_temporarily_wrong_clock_does_not_change_ages_afterwards() -> None:
    """It was a year ahead, over two restarts; then files go when they would have gone."""
    files = Files((ago(100), ago(99)), (ago(70), ago(60)), (ago(1),))
    assert files.deleted() == 1
    files.restart()
    files.offset_ms += YEAR
    assert files.deleted(NOW + YEAR) == 1
    files.restart()
    files.offset_ms -= YEAR
    assert files.deleted() == 1
    assert files.deleted(NOW + 13 * HOUR) == 2


def test_files_still_expire_after_the_clock_was_set_back_at_reboot() -> None:
    files = Files((ago(100), ago(99)), (ago(70), ago(60)), (ago(1),))
    files.deleted()
    files.restart()
    files.offset_ms += YEAR
    files.deleted(NOW + YEAR)
    files.restart("another boot")
    files.offset_ms = 0
    assert files.deleted() == 0
    assert files.deleted(NOW + 73 * HOUR) == 2


def test_machine_that_was_off_for_days_deletes_old_files() -> None:
    files = Files((ago(10), ago(9)), (ago(8), ago(7)), (ago(6),))
    assert files.deleted() == 0
    files.restart("another boot")
    files.offset_ms += 65 * HOUR
    assert files.deleted(NOW + 64 * HOUR) == 1


def test_idle_files_are_as_old_as_their_messages() -> None:
    """A file that was open for days without a message gets no younger by that."""
    files = Files((ago(100), ago(99)), (ago(90), ago(80)))
    files.deleted(ago(80))
    files.now += 80 * 3600
    files.deleted()
    files.stamps.append((NOW,))
    assert files.deleted() == 2


def test_notes_of_many_differences_stay_small() -> None:
    rng = random.Random(1)
    times = ClockCorrections(BootClock("boot", lambda: 0), None)
    wanted: dict[int, int] = {}
    for start in range(0, 10_000, 10):
        if rng.random() < 0.5:
            wanted[start] = rng.randrange(60_000, 10**9)
            times.add(start, start + 10, wanted[start])
    assert len(times.encode()) < 20 * STEPS_MAX
    again = ClockCorrections(BootClock("boot", lambda: 0), times.encode())
    assert all(again.get_ms(start) >= ms for start, ms in wanted.items())
    again.check_clock(5000, 10_000)
    assert all(again.get_ms(start) >= ms for start, ms in wanted.items() if start >= 5000)


def test_copied_files_of_a_slow_clock_are_not_deleted_early() -> None:
    leader = Files((ago(100), ago(99)))
    leader.deleted(ago(99))
    leader.stamps.append((NOW,))
    assert leader.deleted() == 0
    assert Files(*leader.stamps).deleted() == 1, "a clock that is right says nothing of how a file was stamped"
    copy = Files(*leader.stamps)
    copy.times.corrections.take_copied(leader.times.corrections.encode_for_copies())
    assert copy.deleted() == 0
    copy.restart("another boot")
    assert copy.deleted() == 0
    assert copy.deleted(NOW + 71 * HOUR) == 0
    assert copy.deleted(NOW + 73 * HOUR) == 1


def test_larger_of_own_and_copied_corrections_applies() -> None:
    own, other = (ClockCorrections(BootClock("boot", lambda: 0), None) for _ in range(2))
    own.add(0, 10, 70_000)
    own.add(20, 30, 90_000)
    other.add(0, 20, 80_000)
    other.add(20, 30, 61_000)
    own.take_copied(other.encode_for_copies())
    assert [own.get_ms(start) for start in range(0, 40, 10)] == [80_000, 80_000, 90_000, 0]
    assert ClockCorrections(BootClock("boot", lambda: 0), None).encode_for_copies() == b""


def test_old_file_without_a_younger_neighbour_is_deleted() -> None:
    assert Files((NOW - YEAR, NOW - YEAR), (ago(1),)).deleted() == 1


class Watch:
    def __init__(self, newest_ms: int | None) -> None:
        self.now, self.wall_ms = 50.0, NOW
        self.time = PlausibleTime(lambda: self.now, newest_ms, LOG)

    def after(self, seconds: float, jump_ms: int = 0) -> int:
        self.now += seconds
        self.wall_ms += round(seconds * 1000) + jump_ms
        return self.time.plausible_ms(self.wall_ms)


def test_jump_ahead_counts_after_an_hour() -> None:
    watch = Watch(NOW)
    assert watch.after(10) == watch.wall_ms
    with capture_logs() as logs:
        assert watch.after(10, YEAR) == watch.wall_ms - YEAR
        for _ in range(358):
            assert watch.after(10) == watch.wall_ms - YEAR
    assert [line["event"] for line in logs] == ["retention_waits_for_clock"]
    assert watch.after(30) == watch.wall_ms


def test_clock_jump_ahead_and_back_adds_no_correction() -> None:
    watch = Watch(NOW)
    watch.after(10)
    assert watch.after(10, YEAR) == NOW + 20_000
    assert watch.after(10, -YEAR) == NOW + 30_000 == watch.wall_ms
    assert watch.after(10) == watch.wall_ms


def test_jump_back_counts_at_once() -> None:
    watch = Watch(NOW)
    assert watch.after(10, -YEAR) == watch.wall_ms
    assert watch.after(10, YEAR) == watch.wall_ms - YEAR


def test_start_counts_from_the_newest_message() -> None:
    watch = Watch(NOW - YEAR)
    assert watch.after(10) == watch.wall_ms - YEAR
    assert watch.after(PROOF_SECONDS) == watch.wall_ms
    assert Watch(NOW + YEAR).after(0) == NOW
    assert Watch(None).after(0) == NOW
