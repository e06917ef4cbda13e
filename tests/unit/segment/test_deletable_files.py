"""Which files of a log go: by age, hour, size and disk, and never what somebody needs."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.log_numbers import LogIndex
from raftlog.segment.deletable_files import Deletion, LocalTier, RetentionPolicy, Situation, droppable
from raftlog.segment.index import SegmentInfo

FILE = 100
HOUR_MS = 3_600_000

SEGMENTS = [
    SegmentInfo(
        start=number * FILE,
        end=(number + 1) * FILE,
        first_index=LogIndex(10 * number + 1),
        last_index=LogIndex(10 * number + 10),
        closed=True,
    )
    for number in range(2, 7)
] + [SegmentInfo(start=700, end=740, first_index=LogIndex(71), last_index=LogIndex(74), closed=False)]
NEWEST = {200: 1, 300: 2, 400: None, 500: 4, 600: 5, 700: 6}
"""Hour in which the newest message of a file came."""


def newest_ms(segment: SegmentInfo) -> int | None:
    hour = NEWEST[segment.start]
    return None if hour is None else hour * HOUR_MS


def situation(**given: int) -> Situation:
    usual: dict[str, Any] = {"now_ms": 0, "hour": 4, "floor_pos": 10_000, "wanted_pos": 10_000}
    return Situation(**usual | {"disk_used_bytes": 500, "disk_total_bytes": 1000} | given)


@pytest.mark.parametrize(
    ("policy", "now", "base"),
    [
        # By age: two hours after the newest message of a file.
        ({}, {"now_ms": 3 * HOUR_MS}, None),
        ({}, {"now_ms": 3 * HOUR_MS + 1}, 300),
        ({}, {"now_ms": 4 * HOUR_MS + 1}, 500),  # with a file that has no messages behind it
        ({}, {"now_ms": 99 * HOUR_MS}, 700),  # never the active one
        # Only in its hour.
        ({"hour": 4}, {"now_ms": 99 * HOUR_MS, "hour": 4}, 700),
        ({"hour": 4}, {"now_ms": 99 * HOUR_MS, "hour": 5}, None),
        # By size, at any hour: of five closed files.
        ({"bytes_max": 500}, {}, None),
        ({"bytes_max": 499}, {}, 300),
        ({"bytes_max": 250, "hour": 4}, {"hour": 5}, 500),
        ({"bytes_max": 1}, {}, 700),
        # By the disk: until less than four fifths are in use.
        ({}, {"disk_used_bytes": 799}, None),
        ({}, {"disk_used_bytes": 800}, 300),
        ({"hour": 4}, {"disk_used_bytes": 950, "hour": 5}, 400),
        # On a full disk old files go at any hour.
        ({"hour": 4}, {"disk_used_bytes": 800, "hour": 5, "now_ms": 99 * HOUR_MS, "may_delete_early": 0}, 300),
        # Early only if that is allowed, if another replica has the files or it gets tight, and if it helps.
        ({}, {"disk_used_bytes": 950, "may_delete_early": 0}, None),
        ({}, {"disk_used_bytes": 870, "copied_pos": 0}, None),
        ({}, {"disk_used_bytes": 880, "copied_pos": 0}, 300),
        ({"hour": 4}, {"disk_used_bytes": 990, "copied_pos": 300, "hour": 5}, 400),
        ({"full_ratio": 0.4}, {"disk_used_bytes": 899}, 300),
        ({"full_ratio": 0.4}, {"disk_used_bytes": 900}, None),
        # Held back by what this node needs, and by others until it gets tight.
        ({"bytes_max": 1}, {"floor_pos": 399}, 300),
        ({"bytes_max": 1}, {"floor_pos": 199}, None),
        ({"bytes_max": 1}, {"wanted_pos": 450}, 400),
        ({}, {"now_ms": 99 * HOUR_MS, "wanted_pos": 0}, None),
        ({}, {"disk_used_bytes": 870, "wanted_pos": 0}, None),
        ({}, {"disk_used_bytes": 880, "wanted_pos": 0}, 300),
        ({}, {"disk_used_bytes": 1000, "wanted_pos": 0}, 400),
        ({}, {"disk_used_bytes": 1000, "wanted_pos": 0, "floor_pos": 0}, None),
    ],
)
def test_retention_deletes_old_segments(policy: dict[str, Any], now: dict[str, int], base: int | None) -> None:
    chosen = RetentionPolicy(**{"age_ms_max": 2 * HOUR_MS} | policy)
    deletion = droppable(SEGMENTS, newest_ms, chosen, situation(**now))
    assert (None if deletion is None else deletion.base_pos) == base


@pytest.mark.parametrize(
    ("tier", "now", "base"),
    [
        # Only what is archived, however old it is or large the log.
        ({"age_ms_max": HOUR_MS}, {"now_ms": 99 * HOUR_MS, "archived_pos": 0}, None),
        ({"age_ms_max": HOUR_MS}, {"now_ms": 99 * HOUR_MS, "archived_pos": 399}, 300),
        ({"age_ms_max": HOUR_MS}, {"now_ms": 99 * HOUR_MS, "archived_pos": 10_000}, 700),
        ({"bytes_max": 1}, {"archived_pos": 500}, 500),
        # By the local limits, at any hour, and not by those of the whole log.
        ({"age_ms_max": HOUR_MS}, {"now_ms": 3 * HOUR_MS + 1, "archived_pos": 10_000, "hour": 9}, 500),
        ({"age_ms_max": 99 * HOUR_MS}, {"now_ms": 50 * HOUR_MS, "archived_pos": 10_000}, None),
        ({"bytes_max": 250}, {"archived_pos": 10_000}, 500),
        ({}, {"now_ms": 99 * HOUR_MS, "archived_pos": 10_000}, None),
        # On a full disk archived files go first, without being early; others only early.
        ({}, {"disk_used_bytes": 850, "archived_pos": 300, "may_delete_early": 0}, 300),
        ({}, {"disk_used_bytes": 850, "archived_pos": 10_000, "may_delete_early": 0}, 300),
        ({}, {"disk_used_bytes": 850, "archived_pos": 0, "may_delete_early": 0}, None),
        ({}, {"disk_used_bytes": 850, "archived_pos": 0}, 300),
        # Never what somebody needs.
        ({"bytes_max": 1}, {"archived_pos": 10_000, "wanted_pos": 450}, 400),
        ({"bytes_max": 1}, {"archived_pos": 10_000, "floor_pos": 199}, None),
    ],
)
def test_retention_deletes_archived_segments_first(tier: dict[str, Any], now: dict[str, int], base: int | None) -> None:
    policy = RetentionPolicy(age_ms_max=2 * HOUR_MS, hour=4, bytes_max=1, tier=LocalTier(**tier))
    deletion = droppable(SEGMENTS, newest_ms, policy, situation(**now))
    assert (None if deletion is None else deletion.base_pos) == base
    early = () if deletion is None else deletion.early
    assert all(segment.end > now["archived_pos"] for segment in early)


def test_retention_opens_only_expired_files_and_one_more() -> None:
    asked: list[int] = []

    def noting(segment: SegmentInfo) -> int | None:
        asked.append(segment.start)
        return newest_ms(segment)

    droppable(SEGMENTS, noting, RetentionPolicy(age_ms_max=2 * HOUR_MS), situation(now_ms=4 * HOUR_MS))
    assert asked == [200, 300]


def test_files_that_retention_would_keep_are_reported_early() -> None:
    policy = RetentionPolicy(age_ms_max=2 * HOUR_MS)
    old_and_full = droppable(SEGMENTS, newest_ms, policy, situation(now_ms=3 * HOUR_MS + 1, disk_used_bytes=950))
    assert old_and_full is not None
    assert old_and_full.base_pos == 500, "behind it is a file without messages, which counts as old"
    assert [segment.start for segment in old_and_full.early] == [300]
    only_old = droppable(SEGMENTS, newest_ms, policy, situation(now_ms=3 * HOUR_MS + 1))
    assert only_old == Deletion(300)
