"""Deletes the oldest log files when they expire, when the disk gets full, or when the log is too large.

Each replica decides for itself. A file is deleted only if two checkpoints contain everything derived from it, so that a
damaged checkpoint leaves another one. Unless the disk is almost full, files with undelivered delayed messages are kept
(see `RetentionFloor`), and so are files that a reader has leased (see `LogLeases`).

Files are deleted *early*, although retention would keep them, only as the last resort on a full disk: it must stay full
for some checks, the key index is deleted first, and a leader first hands over to a replica with a whole log. The log
notes durably that it lacks entries: then it neither leads nor tells a reader that they are gone while another replica
has them, and fetches them again when there is room (`refill_bytes`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import msgspec

from mq.broker.base.archive_tier import Tier
from mq.broker.base.clock_corrections import FILE_TIMES, BootClock, ClockCorrections
from mq.broker.base.disk import used_part
from mq.broker.base.file_times import FileTimes, PlausibleTime
from mq.broker.base.message_times import NEAR, stored_ms
from mq.broker.base.rate_limited_log import Log
from mq.broker.limits import DEFAULT, UpkeepLimits
from mq.broker.settings import BrokerSettings
from mq.protocol.messages.records import RecordError
from mq.protocol.numbers import LOG_BEGIN, PhysicalOffset
from mq.store.errors import StoreError
from mq.store.queue_store import QueueStore
from raftlog import Beginning, PeerState, Replica, SegmentError
from raftlog.log_numbers import index_range
from raftlog.segment import (
    COPIED,
    EARLY,
    EARLY_ELSEWHERE,
    Deletion,
    LocalTier,
    RetentionPolicy,
    SegmentInfo,
    Situation,
    droppable,
)

LAG_GRACE_SEGMENTS = 2
"""A peer that lags by more than this many files beyond the retained ones is not waited for; it will fetch whole files.
"""

REFILL_EASED = 0.05
"""Deleted files are fetched only as far as the disk stays this much below the ratio at which they would be deleted."""

EVERYTHING: Final = PhysicalOffset(2**63 - 1)
_HOUR_MS = 3_600_000


def _local_tier(settings: BrokerSettings) -> LocalTier:
    hours = settings.local_retention_hours
    return LocalTier(
        age_ms_max=None if hours is None else round(hours * _HOUR_MS), bytes_max=settings.local_retention_bytes
    )


class EarlyDeletion(msgspec.Struct, frozen=True, array_like=True):
    """Describes files that were deleted early: the entry before the first deleted one, and their newest message."""

    base_index: int
    newest_ms: int


def encode_early(base_index: int, newest_ms: int) -> bytes:
    """Encode the note `EARLY`."""
    return msgspec.json.encode(EarlyDeletion(base_index, newest_ms))


class Retention:
    """Deletes old log files of this broker.

    Args:
        floor_pos: physical offset below which no checkpoint needs the log.
        waiting_pos: physical offset of the oldest message that the broker still has to deliver. Raises StoreError.
        kept_pos: physical offset of the oldest message that stays whatever the disk. Raises StoreError, OSError.
        leased_pos: physical offset below which no reader has a lease.
        disk_usage: free and total bytes of the log's disk.
        tier: what may be deleted here because it is archived.
        free_index: called with True while the disk is too full: frees what can be built again from the log.
        wall_clock_ms: milliseconds since the epoch.
        clock: monotonic seconds.
        boot_clock: the wall clock against the time since boot.

    Attributes:
        wished_pos: files before it would be deleted, if it were not for ``kept_pos``.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        replica: Replica,
        store: QueueStore,
        floor_pos: Callable[[], PhysicalOffset],
        waiting_pos: Callable[[], PhysicalOffset],
        leased_pos: Callable[[], PhysicalOffset],
        tier: Tier,
        disk_usage: Callable[[], tuple[int, int]],
        free_index: Callable[[bool], None],
        wall_clock_ms: Callable[[], int],
        clock: Callable[[], float],
        boot_clock: BootClock,
        log: Log,
        limits: UpkeepLimits = DEFAULT.upkeep,
        kept_pos: Callable[[], PhysicalOffset] = lambda: EVERYTHING,
    ) -> None:
        self._early_checks = limits.early_checks
        self._handover_checks = limits.handover_checks
        self._replica = replica
        self._store = store
        self._floor_pos = floor_pos
        self._waiting_pos = waiting_pos
        self._kept_pos = kept_pos
        self.wished_pos = LOG_BEGIN
        self._leased_pos = leased_pos
        self._tier = tier
        self._disk_usage = disk_usage
        self._free_index = free_index
        self._wall_clock_ms = wall_clock_ms
        self._clock = clock
        self._log = log
        self._time: PlausibleTime | None = None
        self._corrections = self._clock_corrections(boot_clock)
        self._files = FileTimes(self._stamps, clock, log, self._corrections)
        self._tight_checks = self._calm_checks = 0
        self._warned = False
        self._is_held = self._is_kept = False
        self.settings_changed(settings)

    def _clock_corrections(self, boot_clock: BootClock) -> ClockCorrections:
        """Read the notes of earlier processes, and of the replica from which the log was copied; log and ignore notes
        that this release cannot read.
        """
        notes = self._replica.log.notes
        corrections = ClockCorrections(boot_clock, None)
        try:
            corrections = ClockCorrections(boot_clock, notes.get(FILE_TIMES))
            if (note := notes.get(COPIED)) is not None:
                corrections.take_copied(note)
        except msgspec.MsgspecError as error:
            self._log.warning("file_times_unreadable", error=str(error))
        return corrections

    def encode_for_copies(self) -> bytes:
        """Encode the corrections for a replica that copies the log; see `ClockCorrections.encode_for_copies`."""
        return self._corrections.encode_for_copies()

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Use changed settings from now on."""
        self._settings = settings
        self._policy = RetentionPolicy(
            age_ms_max=round(settings.retention_hours * _HOUR_MS),
            hour=settings.delete_when if settings.delete_when >= 0 else None,
            bytes_max=settings.retention_bytes,
            expire_ratio=settings.disk_expire_ratio,
            force_ratio=(settings.disk_expire_ratio + settings.disk_full_ratio) / 2,
            full_ratio=settings.disk_full_ratio,
        )
        self._tiered_policy = replace(self._policy, tier=_local_tier(settings))
        ratios = self._policy.expire_ratio, self._policy.force_ratio, self._policy.full_ratio
        assert sorted(ratios) == [*ratios], f"files go, must go, and messages are refused at {ratios} of the disk"

    def run(self) -> None:
        """Delete the files that may be deleted now. A timer calls this. Raises OSError if disk usage cannot be read."""
        log = self._replica.log
        free, total = self._disk_usage()
        used = used_part(free, total)
        self._warn_of_disk(used)
        is_tight = used >= self._policy.expire_ratio
        archived_pos = self._tier.deletable_pos()
        self._tight_checks = self._tight_checks + 1 if is_tight else 0
        self._calm_checks = 0 if is_tight else self._calm_checks + 1
        self._free_index(self._tight_checks > 1)
        segments = log.segments()
        wall_ms = self._wall_clock_ms()
        now_ms = self._plausible_ms(segments, wall_ms)
        self._files.set_files(segments, now_ms, wall_ms)
        self._keep_times()
        self._complete_note(segments, now_ms)
        needed_pos = self._floor_pos()
        now = Situation(
            now_ms=now_ms,
            hour=time.localtime(wall_ms / 1000).tm_hour,
            floor_pos=min(needed_pos, self._found_kept_pos()),
            wanted_pos=min(self._wanted_pos(), self._leased_pos()),
            disk_used_bytes=total - free,
            disk_total_bytes=total,
            # Without a leader, this replica does not know yet which entries others have.
            may_delete_early=self._tight_checks >= self._early_checks and self._replica.core.leader_id is not None,
            copied_pos=self._copied_pos(),
            archived_pos=archived_pos,
        )
        self._wish(segments, now, needed_pos, is_tight=is_tight)
        try:
            deletion = self._droppable(segments, now)
            if deletion is not None and deletion.early and self._hands_over():
                deletion = None
            # Whatever the disk: without these files, a restart could not derive the state again.
            assert deletion is None or deletion.base_pos <= now.floor_pos, f"{deletion}, needed from {now.floor_pos} on"
            early = None if deletion is None or not deletion.early else self._early_note(deletion)
            if deletion is not None and not self._replica.drop_prefix(deletion.base_pos, early):
                return
        except (SegmentError, RecordError, StoreError) as error:
            self._log.error("retention_failed", error=str(error))
            return
        if deletion is not None:
            base_pos = deletion.base_pos
            file_count = sum(segment.end <= base_pos for segment in segments)
            if deletion.early:
                self._tell_of_early(deletion, used)
            assert log.base_pos == base_pos, f"the log begins at {log.base_pos}, files up to {base_pos} were deleted"
            self._log.info("log_shortened", files=file_count, base_pos=base_pos, first_index=log.first_index)
        self._forget_early(now_ms)
        self._store.expire_some(PhysicalOffset(self._tier.visible_pos))

    def _found_kept_pos(self) -> PhysicalOffset:
        try:
            return self._kept_pos()
        except (StoreError, OSError) as error:
            self._log.error("retention_failed", error=str(error))
            return LOG_BEGIN

    def _wish(
        self, segments: Sequence[SegmentInfo], now: Situation, needed_pos: PhysicalOffset, *, is_tight: bool
    ) -> None:
        """Record which files retention would delete if no messages had to stay, so that those are carried forward."""
        self.wished_pos = LOG_BEGIN
        if now.floor_pos < needed_pos:
            drop = droppable(segments, self._files.newest_ms, self._wanted_policy, replace(now, floor_pos=needed_pos))
            self.wished_pos = LOG_BEGIN if drop is None else PhysicalOffset(drop.base_pos)
        is_kept = is_tight and self.wished_pos > now.floor_pos
        if is_kept and not self._is_kept:
            self._log.warning("log_kept_for_compaction", kept_pos=now.floor_pos, wished_pos=self.wished_pos)
        self._is_kept = is_kept

    @property
    def _wanted_policy(self) -> RetentionPolicy:
        # Until the group serves archived messages, files are deleted as without an archive.
        return self._policy if self._tier.begin_pos is None else self._tiered_policy

    def refill_bytes(self) -> int:
        """Return how many bytes of entries that were deleted early to fetch now; see `raftlog.node.Hosted`."""
        if not self._replica.core.began_early:
            return 0
        try:
            free, total = self._disk_usage()
        except OSError:
            return 0
        if used_part(free, total) >= self._policy.expire_ratio:
            return -1
        room = round((self._policy.expire_ratio - REFILL_EASED) * total) - (total - free)
        if self._policy.bytes_max is not None:
            room = min(room, self._policy.bytes_max - (self._replica.log.end_pos - self._replica.log.base_pos))
        return room if self._calm_checks >= self._early_checks and room >= self._settings.segment_bytes else 0

    def _hands_over(self) -> bool:
        """Let a replica with an older log lead before this one deletes files early. Returns whether to wait for it."""
        replica = self._replica
        if not replica.is_leader or self._tight_checks > self._early_checks + self._handover_checks:
            return False
        successor = replica.core.successor_with_older_log
        return successor is not None and replica.transfer(successor) is None

    def _copied_pos(self) -> PhysicalOffset:
        """Return the offset up to which a reachable replica has all entries; 0 if none has the oldest file."""
        core, own = self._replica.core, self._replica.core.base.index
        if not self._replica.is_leader:
            return self._floor_pos() if core.leader_base is not None and core.leader_base <= own else LOG_BEGIN
        for peer in core.status().peers:
            if peer.active and peer.base is not None and peer.base <= own < peer.match:
                return PhysicalOffset(self._replica.log.locate(peer.match).pos)
        return LOG_BEGIN

    def _early_note(self, deletion: Deletion) -> bytes:
        """Encode the durable note about files that are deleted early."""
        earlier = self._early_deletion()
        newest = max((self._files.newest_ms(segment) or 0 for segment in deletion.early), default=0)
        base_index: int = deletion.early[0].first_index - 1
        if earlier is not None:
            base_index, newest = min(base_index, earlier.base_index), max(newest, earlier.newest_ms)
        return encode_early(base_index, newest)

    def _keep_times(self) -> None:
        """Store the corrections of file times durably, if they have changed."""
        note = self._corrections.encode()
        if note != self._replica.log.notes.get(FILE_TIMES):
            self._replica.remember(FILE_TIMES, note)
        if COPIED in self._replica.log.notes:  # it is in the other note now
            self._replica.remember(COPIED, None)

    def _complete_note(self, segments: Sequence[SegmentInfo], now_ms: int) -> None:
        """Add to the note how long to miss entries that the replica which sent this log may have deleted early."""
        if self._replica.log.notes.get(EARLY) == EARLY_ELSEWHERE:
            # They are not newer than the files here.
            newest_ms = next((self._files.newest_ms(segment) for segment in segments if segment.closed), None)
            self._replica.note_early(encode_early(0, now_ms if newest_ms is None else newest_ms))

    def _early_deletion(self) -> EarlyDeletion | None:
        note = self._replica.log.notes.get(EARLY)
        return None if note is None else msgspec.json.decode(note, type=EarlyDeletion)

    def _tell_of_early(self, deletion: Deletion, used: float) -> None:
        assert deletion.early, f"{deletion} is told of as early"
        nbytes = sum(segment.end - segment.start for segment in deletion.early)
        core = self._replica.core
        self._log.error(
            "log_deleted_early",
            files=len(deletion.early),
            bytes=nbytes,
            from_index=deletion.early[0].first_index,
            to_index=deletion.early[-1].last_index,
            used=round(used, 3),
            elsewhere_from_index=None if core.oldest_base is None else core.oldest_base + 1,
        )

    def _forget_early(self, now_ms: int) -> None:
        """Remove the note when no file is missing: all are here again, deleted everywhere, or expired."""
        note = self._early_deletion()
        if note is None:
            return
        replica = self._replica
        if replica.core.base.index <= note.base_index:
            reason = "the log is complete again"
        elif note.newest_ms + self._policy.age_ms_max < now_ms:
            reason = "the messages have expired"
        elif replica.is_leader and replica.beginning()[0] is Beginning.FIRST:
            reason = "no replica still has them"
        else:
            return
        replica.note_early(None)
        self._log.info("early_deletion_over", reason=reason, first_index=replica.log.first_index)

    def _droppable(self, segments: Sequence[SegmentInfo], now: Situation) -> Deletion | None:
        """Choose files to delete; look up undelivered messages only if one would be deleted. Raises StoreError."""
        policy = self._wanted_policy
        candidate = droppable(segments, self._files.newest_ms, policy, now)
        if candidate is None or (waiting_pos := self._waiting_pos()) >= candidate.base_pos:
            self._is_held &= candidate is None
            return candidate
        deletion = droppable(
            segments, self._files.newest_ms, policy, replace(now, wanted_pos=min(now.wanted_pos, waiting_pos))
        )
        if deletion != candidate and not self._is_held:
            self._is_held = True
            self._log.warning("retention_held_by_pending", waiting_pos=waiting_pos, wished_pos=candidate.base_pos)
        return deletion

    def _wanted_pos(self) -> PhysicalOffset:
        """Return the position up to which no peer needs the log, except peers that lag too far to wait for."""
        log, core = self._replica.log, self._replica.core
        if any(peer.active and peer.state is PeerState.SNAPSHOT for peer in core.status().peers):
            return PhysicalOffset(log.base_pos)  # the peer is fetching these files
        index = max(core.retain_from(), log.first_index)
        if index > log.last_index:
            return PhysicalOffset(log.end_pos)
        pos = log.locate(index).pos
        assert log.base_pos <= pos <= log.end_pos, f"peers need {pos} of {log.base_pos} to {log.end_pos}"
        grace = LAG_GRACE_SEGMENTS * self._settings.segment_bytes
        return PhysicalOffset(pos if pos + grace >= min(log.end_pos, self._floor_pos()) else log.end_pos)

    def plausible_ms(self) -> int:
        """Return the time by which messages expire, without a recent jump ahead of the clock.

        The first call compares the clock with the newest message of the log. So it comes when the broker starts: later,
        this replica may have stamped that one itself, by a wrong clock.
        """
        return self._plausible_ms(self._replica.log.segments(), self._wall_clock_ms())

    def _plausible_ms(self, segments: Sequence[SegmentInfo], wall_ms: int) -> int:
        if self._time is None:
            newest: Sequence[int] = ()
            with suppress(SegmentError, RecordError, OSError):  # an unreadable message must not keep a full disk full
                newest = next(filter(None, map(self._stamps, reversed(segments))), ())
            self._time = PlausibleTime(self._clock, max(newest, default=None), self._log)
        return self._time.plausible_ms(wall_ms)

    def _stamps(self, segment: SegmentInfo) -> Sequence[int]:
        """Return store times of the first and the last message of a file, as far as they are near its ends."""
        log, first, last = self._replica.log, segment.first_index, segment.last_index
        if last < first:
            return ()
        stamps: list[int | None] = []
        with suppress(SegmentError, RecordError):  # the last message decides
            stamps.append(stored_ms(log, index_range(first, min(first + NEAR, last) + 1)))
        stamps.append(stored_ms(log, index_range(last, max(first, last - NEAR) - 1, -1)))
        return [stamp for stamp in stamps if stamp is not None]

    def _warn_of_disk(self, used: float) -> None:
        settings = self._settings
        if used < settings.disk_warn_ratio:
            self._warned = False
        elif not self._warned:
            self._warned = True
            self._log.warning("disk_fills_up", used=round(used, 3), full_at=settings.disk_full_ratio)
