"""Decides which files of a log may be deleted: only complete closed files, oldest first. Pure.

What retention allows is deleted first: files that are old, or exceed the size of the log. Only if that does not suffice
on a full disk, files are deleted *early*: first those that another replica still has, then the last copies.

With a *tier*, files are deleted because an archive has them: when they are old or exceed the local size, and on a full
disk before all others. A file that the archive does not have is only deleted early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raftlog.segment.index import SegmentInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTier:
    """The limits to which archived files are kept locally, at any hour: the age of their newest message, and the bytes
    of all closed files. None: no limit.
    """

    age_ms_max: int | None = None
    bytes_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """The limits up to which files are kept. Ratios are used fractions of the disk, 0 to 1.

    Attributes:
        age_ms_max: a file is deleted when its newest message is older, but only during the hour of the day ``hour``.
        hour: 0 to 23, or None for any time.
        bytes_max: the oldest files are deleted until the closed ones take no more than this; None: no limit.
        expire_ratio: from here on old files are deleted at any hour, and the oldest files early, until less of the
            disk is in use: those that another replica has, too.
        force_ratio: from here on even files are deleted that others still need, or that no other replica has.
        full_ratio: if deleting everything leaves more than this in use, something else fills the disk, and no file is
            deleted early.
        tier: replaces age, hour and bytes where an archive keeps deleted files; None without one.
    """

    age_ms_max: int
    hour: int | None = None
    bytes_max: int | None = None
    expire_ratio: float = 0.80
    force_ratio: float = 0.88
    full_ratio: float = 1.0
    tier: LocalTier | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts from which a node decides which log files it may delete.

    Attributes:
        now_ms, hour: the time, since the epoch and of the local day.
        floor_pos: physical offset below which this node itself needs nothing.
        wanted_pos: below which no other node needs anything; may be above ``floor_pos``.
        disk_used_bytes, disk_total_bytes: of the log's file system.
        may_delete_early: whether files may be deleted early at all now.
        copied_pos: below which another replica in reach has everything that this log has.
        archived_pos: below which an archive has everything, and readers get it from there.
    """

    now_ms: int
    hour: int
    floor_pos: int
    wanted_pos: int
    disk_used_bytes: int
    disk_total_bytes: int
    may_delete_early: bool = True
    copied_pos: int = 2**63 - 1
    archived_pos: int = 0


@dataclass(frozen=True, slots=True)
class Deletion:
    """The files that may be deleted: all below ``base_pos``. Retention alone would keep the ``early`` ones."""

    base_pos: int
    early: tuple[SegmentInfo, ...] = ()


def droppable(
    segments: Sequence[SegmentInfo],
    newest_ms: Callable[[SegmentInfo], int | None],
    policy: RetentionPolicy,
    now: Situation,
) -> Deletion | None:
    """Return the files to delete, for `SegmentLog.drop_prefix`; None if nothing is to be deleted.

    Args:
        segments: from `SegmentLog.segments`.
        newest_ms: store time of the newest message of a file, None for a file without messages. Called for the files
            to delete and one more, in this order.
    """
    used = now.disk_used_bytes
    kept_bytes = sum(segment.end - segment.start for segment in segments if segment.closed)
    base: int | None = None
    early: list[SegmentInfo] = []
    left_bytes = used - sum(
        segment.end - segment.start for segment in segments if _is_droppable(segment, now.floor_pos)
    )
    helps = left_bytes < policy.full_ratio * now.disk_total_bytes
    for segment in segments:
        ratio = used / now.disk_total_bytes if now.disk_total_bytes else 0.0
        floor = now.floor_pos if ratio >= policy.force_ratio else min(now.floor_pos, now.wanted_pos)
        if not _is_droppable(segment, floor):
            break
        is_tight = ratio >= policy.expire_ratio
        if policy.tier is not None:
            goes = segment.end <= now.archived_pos and (
                is_tight or _exceeds_tier(segment, kept_bytes, newest_ms, policy.tier, now)
            )
        else:
            is_surplus = policy.bytes_max is not None and kept_bytes > policy.bytes_max
            in_hour = is_tight or policy.hour is None or policy.hour == now.hour
            goes = is_surplus or (in_hour and _is_old(segment, newest_ms, policy.age_ms_max, now))
        if not goes:
            is_copied = segment.end <= now.copied_pos or ratio >= policy.force_ratio
            if not (is_tight and helps and now.may_delete_early and is_copied):
                break
            early.append(segment)
        base = segment.end
        used -= segment.end - segment.start
        kept_bytes -= segment.end - segment.start
    assert base is None or base <= now.floor_pos, f"files up to {base} go, those from {now.floor_pos} on are needed"
    return None if base is None else Deletion(base, tuple(early))


def _is_droppable(segment: SegmentInfo, floor_pos: int) -> bool:
    return segment.closed and segment.end <= floor_pos


def _exceeds_tier(
    segment: SegmentInfo,
    kept_bytes: int,
    newest_ms: Callable[[SegmentInfo], int | None],
    tier: LocalTier,
    now: Situation,
) -> bool:
    if tier.bytes_max is not None and kept_bytes > tier.bytes_max:
        return True
    return tier.age_ms_max is not None and _is_old(segment, newest_ms, tier.age_ms_max, now)


def _is_old(
    segment: SegmentInfo, newest_ms: Callable[[SegmentInfo], int | None], age_ms_max: int, now: Situation
) -> bool:
    newest = newest_ms(segment)
    return newest is None or newest < now.now_ms - age_ms_max
