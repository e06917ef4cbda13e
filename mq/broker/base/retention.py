"""Deletes the oldest log files when they expire, when the disk needs space, or when the log exceeds its maximum size.

Each replica decides for itself. A file is deleted only if two checkpoints contain everything derived from it, so that a
damaged checkpoint leaves another one. Unless the disk is almost full, files with undelivered delayed messages are kept
(see `still_needed`), and so are files that a reader has leased (see `reading.log_leases`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from mq.broker.base.disk import used_part
from mq.broker.base.file_times import FileTimes, PlausibleTime
from mq.broker.base.rate_limited_log import Log
from mq.broker.base.stored_times import NEAR, stored_ms
from mq.broker.settings import BrokerSettings
from mq.protocol.records import RecordError
from mq.store.errors import StoreError
from mq.store.queue_store import QueueStore
from raftlog import PeerState, Replica, SegmentError
from raftlog.log_numbers import index_range
from raftlog.segment import RetentionPolicy, SegmentInfo, Situation, droppable

LAG_GRACE_SEGMENTS = 2
"""A peer that lags by more than this many files beyond the retained ones is not waited for; it will fetch whole files.
"""

_HOUR_MS = 3_600_000


class Retention:
    """The retention of one broker's log.

    Args:
        floor_pos: physical offset below which no checkpoint needs the log any more.
        waiting_pos: physical offset of the oldest message that the broker still has to deliver. Raises StoreError.
        leased_pos: physical offset below which no reader has a lease.
        disk_usage: free and total bytes of the log's disk.
        wall_clock_ms: milliseconds since the epoch.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        replica: Replica,
        store: QueueStore,
        floor_pos: Callable[[], int],
        waiting_pos: Callable[[], int],
        leased_pos: Callable[[], int],
        disk_usage: Callable[[], tuple[int, int]],
        wall_clock_ms: Callable[[], int],
        clock: Callable[[], float],
        log: Log,
    ) -> None:
        self._replica = replica
        self._store = store
        self._floor_pos = floor_pos
        self._waiting_pos = waiting_pos
        self._leased_pos = leased_pos
        self._disk_usage = disk_usage
        self._wall_clock_ms = wall_clock_ms
        self._clock = clock
        self._log = log
        self._time: PlausibleTime | None = None
        self._files = FileTimes(self._stamps, clock, log)
        self._warned = False
        self._is_held = False
        self.settings_changed(settings)

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Use new settings from now on."""
        self._settings = settings
        self._policy = RetentionPolicy(
            age_ms_max=round(settings.retention_hours * _HOUR_MS),
            hour=settings.delete_when if settings.delete_when >= 0 else None,
            bytes_max=settings.retention_bytes,
            expire_ratio=settings.disk_expire_ratio,
            force_ratio=(settings.disk_expire_ratio + settings.disk_full_ratio) / 2,
        )

    def run(self) -> None:
        """Delete what may be deleted now; called by a timer. Raises OSError if the disk usage cannot be read."""
        log = self._replica.log
        free, total = self._disk_usage()
        self._warn_of_disk(used_part(free, total))
        segments = log.segments()
        wall_ms = self._wall_clock_ms()
        now_ms = self._plausible_ms(segments, wall_ms)
        self._files.look(segments, now_ms)
        now = Situation(
            now_ms=now_ms,
            hour=time.localtime(wall_ms / 1000).tm_hour,
            floor_pos=self._floor_pos(),
            wanted_pos=min(self._wanted_pos(), self._leased_pos()),
            disk_used_bytes=total - free,
            disk_total_bytes=total,
        )
        try:
            base_pos = self._droppable(segments, now)
            if base_pos is not None and not self._replica.drop_prefix(base_pos):
                return
        except (SegmentError, RecordError, StoreError) as error:
            self._log.error("retention_failed", error=str(error))
            return
        if base_pos is not None:
            dropped = sum(segment.end <= base_pos for segment in segments)
            self._log.info("log_shortened", files=dropped, base_pos=base_pos, first_index=log.first_index)
        self._store.expire_some(log.base_pos)

    def _droppable(self, segments: Sequence[SegmentInfo], now: Situation) -> int | None:
        """The new beginning of the log. Undelivered messages are only looked up if a file would be deleted. Raises
        StoreError.
        """
        candidate_pos = droppable(segments, self._files.newest_ms, self._policy, now)
        if candidate_pos is None or (waiting_pos := self._waiting_pos()) >= candidate_pos:
            self._is_held &= candidate_pos is None
            return candidate_pos
        base_pos = droppable(
            segments, self._files.newest_ms, self._policy, replace(now, wanted_pos=min(now.wanted_pos, waiting_pos))
        )
        if base_pos != candidate_pos and not self._is_held:
            self._is_held = True
            self._log.warning("log_kept_for_waiting", waiting_pos=waiting_pos, wished_pos=candidate_pos)
        return base_pos

    def _wanted_pos(self) -> int:
        """Below this position no peer needs the log, unless it lags too far to be waited for."""
        log, core = self._replica.log, self._replica.core
        if any(peer.active and peer.state is PeerState.RESET for peer in core.status().peers):
            return log.base_pos  # the peer is fetching these files
        index = max(core.retain_from(), log.first_index)
        if index > log.last_index:
            return log.end_pos
        wanted = log.locate(index).pos
        grace = LAG_GRACE_SEGMENTS * self._settings.segment_bytes
        return wanted if wanted + grace >= min(log.end_pos, self._floor_pos()) else log.end_pos

    def _plausible_ms(self, segments: Sequence[SegmentInfo], wall_ms: int) -> int:
        """The time by which files are deleted."""
        if self._time is None:
            newest: Sequence[int] = ()
            with suppress(SegmentError, RecordError):  # an unreadable message must not keep a full disk full
                newest = next(filter(None, map(self._stamps, reversed(segments))), ())
            self._time = PlausibleTime(self._clock, max(newest, default=None), self._log)
        return self._time.look(wall_ms)

    def _stamps(self, segment: SegmentInfo) -> Sequence[int]:
        """Store times of the first and the last message of a file, as far as they are near its ends."""
        log, first, last = self._replica.log, segment.first_index, segment.last_index
        if last < first:
            return ()
        found: list[int | None] = []
        with suppress(SegmentError, RecordError):  # the last message decides
            found.append(stored_ms(log, index_range(first, min(first + NEAR, last) + 1)))
        found.append(stored_ms(log, index_range(last, max(first, last - NEAR) - 1, -1)))
        return [stamp for stamp in found if stamp is not None]

    def _warn_of_disk(self, used: float) -> None:
        settings = self._settings
        if used < settings.disk_warn_ratio:
            self._warned = False
        elif not self._warned:
            self._warned = True
            self._log.warning("disk_fills_up", used=round(used, 3), full_at=settings.disk_full_ratio)
