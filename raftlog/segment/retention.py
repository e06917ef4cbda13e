"""Decides which files of a log may be deleted: only complete closed files, oldest first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raftlog.segment.index import SegmentInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How long files are kept. Ratios are used fractions of the disk, 0 to 1.

    Attributes:
        age_ms_max: a file is deleted when its newest message is older, but only during the hour of the day ``hour``.
        hour: 0 to 23, or None for any time.
        bytes_max: the oldest files are deleted until the closed ones take no more than this; None: no limit.
        expire_ratio: from here on the oldest files are deleted, however new, until less of the disk is in use.
        force_ratio: from here on even files are deleted that others still need.
    """

    age_ms_max: int
    hour: int | None = None
    bytes_max: int | None = None
    expire_ratio: float = 0.80
    force_ratio: float = 0.88


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The inputs of the decision.

    Attributes:
        now_ms, hour: the time, since the epoch and of the local day.
        floor_pos: physical offset below which this node itself needs nothing any more.
        wanted_pos: below which no other node needs anything; may be above ``floor_pos``.
        disk_used_bytes, disk_total_bytes: of the log's file system.
    """

    now_ms: int
    hour: int
    floor_pos: int
    wanted_pos: int
    disk_used_bytes: int
    disk_total_bytes: int


def droppable(
    segments: Sequence[SegmentInfo],
    newest_ms: Callable[[SegmentInfo], int | None],
    policy: RetentionPolicy,
    now: Situation,
) -> int | None:
    """The new beginning of the log, for `SegmentLog.drop_prefix`; None if nothing is to be deleted.

    Args:
        segments: from `SegmentLog.segments`.
        newest_ms: store time of the newest message of a file, None for a file without messages. Called for the files
            to delete and one more, in this order.
    """
    used = now.disk_used_bytes
    kept_bytes = sum(segment.end - segment.start for segment in segments if segment.closed)
    in_hour = policy.hour is None or policy.hour == now.hour
    base: int | None = None
    for segment in segments:
        ratio = used / now.disk_total_bytes if now.disk_total_bytes else 0.0
        floor = now.floor_pos if ratio >= policy.force_ratio else min(now.floor_pos, now.wanted_pos)
        if not segment.closed or segment.end > floor:
            break
        is_surplus = policy.bytes_max is not None and kept_bytes > policy.bytes_max
        if not (ratio >= policy.expire_ratio or is_surplus or (in_hour and _is_old(segment, newest_ms, policy, now))):
            break
        base = segment.end
        used -= segment.end - segment.start
        kept_bytes -= segment.end - segment.start
    return base


def _is_old(
    segment: SegmentInfo, newest_ms: Callable[[SegmentInfo], int | None], policy: RetentionPolicy, now: Situation
) -> bool:
    newest = newest_ms(segment)
    return newest is None or newest < now.now_ms - policy.age_ms_max
