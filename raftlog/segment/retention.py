"""Which files of a log may go. A pure function of what is known about them.

Only whole closed files go, oldest first, and never one that somebody still needs. A full disk may let them go early,
and a disk that is nearly full does not wait for replicas that lag behind: they get a replacement for their log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from raftlog.segment.index import SegmentInfo


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When files go. Ratios are the used part of the disk, 0 to 1.

    Attributes:
        age_max_ms: how long a file is kept after its newest message; None for ever.
        bytes_max: how many bytes of log are kept at most, as far as whole files allow; None for any number.
        hour: the hour of the day, 0 to 23, in which files go for their age; None for any. Size and a full disk do not
            wait for it.
        warn_ratio: above it the operator should know.
        expire_ratio: above it files go before their age, oldest first, until it is reached.
        force_ratio: above it nobody waits for lagging replicas.
        refuse_ratio: above it nothing new should be accepted.
    """

    age_max_ms: int | None = None
    bytes_max: int | None = None
    hour: int | None = None
    warn_ratio: float = 0.75
    expire_ratio: float = 0.80
    force_ratio: float = 0.85
    refuse_ratio: float = 0.90


def droppable(
    segments: Sequence[SegmentInfo],
    newest_ms: Callable[[SegmentInfo], int | None],
    policy: RetentionPolicy,
    *,
    now_ms: int,
    hour: int,
    floor_pos: int,
    peers_pos: int,
    used_bytes: int,
    total_bytes: int,
) -> int | None:
    """Where the log should begin from now on; None when it should stay as it is.

    Args:
        segments: all files, ascending, the active one last.
        newest_ms: time of a file's newest message, in milliseconds since 1970; None when it has no message, and then
            its age keeps nobody from dropping it. Asked only for files that may go.
        now_ms, hour: the time, and the hour of the day where the operator lives.
        floor_pos: what lies from here on is needed: not applied, not in a checkpoint, not committed, or not durable.
        peers_pos: what lies from here on is needed by other replicas; see ``force_ratio``.
        used_bytes, total_bytes: of the disk.
    """
    kept_bytes = sum(segment.end - segment.start for segment in segments)
    base_pos: int | None = None
    for segment in segments:
        if not segment.closed or segment.end > floor_pos:
            break
        ratio = used_bytes / total_bytes if total_bytes else 0.0
        if segment.end > peers_pos and ratio <= policy.force_ratio:
            break
        too_many = policy.bytes_max is not None and kept_bytes > policy.bytes_max
        if not (too_many or ratio > policy.expire_ratio or _has_expired(segment, newest_ms, policy, now_ms, hour)):
            break
        base_pos = segment.end
        nbytes = segment.end - segment.start
        kept_bytes -= nbytes
        used_bytes -= nbytes
    return base_pos


def _has_expired(
    segment: SegmentInfo,
    newest_ms: Callable[[SegmentInfo], int | None],
    policy: RetentionPolicy,
    now_ms: int,
    hour: int,
) -> bool:
    if policy.age_max_ms is None or policy.hour not in (None, hour):
        return False
    newest = newest_ms(segment)
    return newest is None or now_ms - newest > policy.age_max_ms
