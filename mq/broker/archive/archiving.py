"""Decides when this replica archives the log, replicates the progress, and reports it to operators.

A process reads the log's files and uploads them (`process`), so a slow or stuck store never delays the event loop. It
reports the end of the archive. This replica then asks the leader (request code 9018) to replicate that
(`NoteArchived`); the leader compares it with its own log. Reports are repeated until they are applied, so none is lost
by a crash in between; and a new archiver finds in the manifest what an earlier one has not reported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from mq.broker.archive.archive_retention import NOT_SET, KeptLimits, SharedLimits
from mq.broker.archive.archiving_replica import archives
from mq.broker.archive.worker_process import archive_in_process
from mq.broker.base.periodic_task import Periodic
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.client_requests import NoResponse
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service, Task
from mq.broker.replication.peer_calls import PeerCalls
from mq.broker.settings import BrokerSettings
from mq.broker.state.archived_log import NOTHING, NoteArchived, NoteTier
from mq.broker.state.commands import encode_command
from mq.broker.state.format_level import LEVEL_OF_ARCHIVE, LEVEL_OF_TIERS
from mq.broker.state.table import CommandInvalid
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.replicas import ReportArchived, ReportArchivedExt, ReportArchivedReply
from mq.protocol.wire.reply import read_reply
from mq.store.archive.worker_protocol import ArchiveJob, ArchiveStep, Trouble
from mq.store.backup_checkpoint import forget_pending
from mq.store.errors import StoreError
from raftlog import SegmentError
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment.meta import Base
from raftlog.shared_wakeups import sleep_to_step

ANSWER_SECONDS: Final = 3.0
OLDER: Final = "older"
WHOLE: Final = "whole"
_POS_MAX: Final = 2**63 - 1
LOG_AGAIN_SECONDS: Final = 600.0
"""The interval at which one kind of failure is logged."""

Archive = Callable[[ArchiveJob, Callable[[ArchiveStep], None], float], Awaitable[None]]
"""Does the job of `archive_in_process`."""


class Archiving(Service):
    """Archives complete log files while it is this replica's turn, and replicates how far the archive goes.

    Args:
        admit: raises RequestRefused unless the connection is a replica of this group.
        now_ms: the time by which messages expire, in milliseconds since the epoch.
        needed_pos: physical offset from which archived messages are needed. Raises StoreError, OSError.
        archive: does a job.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        calls: PeerCalls,
        admit: Callable[[ClientConnection, str], None],
        now_ms: Callable[[], int],
        needed_pos: Callable[[], int],
        archive: Archive = archive_in_process,
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._limits = context.limits.archive
        self._replica = context.replica
        self._metadata = context.metadata
        self._tier = context.tier
        self._appender = context.appender
        self._calls = calls
        self._admit = admit
        self._now_ms = now_ms
        self._needed_pos = needed_pos
        self._archive = archive
        self._clock = context.clock
        self._log = context.log
        forget_pending(str(context.settings.data_dir))
        self._reported_end = NOTHING
        self._begin_pos = -1
        self._is_older: bool | None = None
        """The news of the last run that the group does not know yet: whether the manifest is older; None: no news."""
        self._whole_index = 0
        """The manifest was found to go up to this entry when it was not older. By now the group may know of more."""
        self._expired_pos = -1
        """Below this physical offset the archive is to be shortened, as the last run has found; -1 without news."""
        self._member_limits = SharedLimits(3 * self._limits.tell_seconds)
        self._tell_at = 0.0
        self._queues_from: dict[str, int] = {}
        """The offset from which on the queues of each other replica have all entries, if it cannot get older ones."""
        self._check_at = 0.0
        self._level_logged_at = -LOG_AGAIN_SECONDS
        self._report_at = 0.0
        self._progress_at = self._clock()
        self._seen_end = NOTHING
        self._waits_since: float | None = None
        self._retry_at = 0.0
        self._failed_runs = 0
        self._last_log: tuple[Trouble, float] | None = None
        self._failures = self._uploaded_bytes = 0

    def routes(self) -> Iterator[Route]:
        yield Route(ReportArchived, self.handle)

    def periodic(self) -> Iterator[Periodic]:
        if self._settings.archive_url is not None:
            yield Periodic(self._limits.look_seconds, self.update_progress)

    def tasks(self) -> Iterator[Task]:
        if self._settings.archive_url is not None:
            yield self.run

    def counters(self) -> dict[str, int]:
        waits = 0.0 if self._waits_since is None else self._clock() - self._waits_since
        return {
            "archive_index": self._archived_end.index,
            "archive_begin_pos": self._metadata.archived.begin_pos or 0 if self._archived_end.index else 0,
            "archive_lag_bytes": self._waiting_bytes() if self._waits_since is not None else 0,
            "archive_lag_ms": round(waits * 1000),
            "archive_uploaded_bytes": self._uploaded_bytes,
            "archive_failures": self._failures,
            "archive_kept_seconds": KeptLimits.from_settings(self._settings).seconds,
            "archive_kept_bytes": KeptLimits.from_settings(self._settings).nbytes,
            "archive_kept_unknown": self._unknown(),
        }

    def _unknown(self) -> int:
        """Return the number of members whose retention this leader does not know; 0 on other replicas."""
        if self._settings.archive_url is None or not self._appender.is_open:
            return 0
        return len(self._member_limits.silent(self._replica.core.conf.members, self._clock()))

    def settings_changed(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._check_at = self._tell_at = 0.0

    # -- what is archived, and what could be ---------------------------------------------------------------------------

    @property
    def _archived_end(self) -> Base:
        """The end of the part of the log that the group knows to be in this archive."""
        return self._metadata.archived.end_at(self._settings.archive_url)

    def _complete_pos(self) -> int:
        """Return the physical offset up to which log files are complete: a committed entry follows them."""
        end = self._replica.log.base_pos
        for segment in self._replica.log.segments():
            if not segment.closed or segment.last_index >= self._replica.commit_index:
                break
            end = segment.end
        return end

    def _waiting_bytes(self) -> int:
        """Return the bytes of complete files that are not archived yet, as far as is known."""
        return max(0, self._complete_pos() - max(self._archived_end.pos, self._replica.log.base_pos))

    def update_progress(self) -> None:
        """Record since when files wait for archiving, and repeat a report that was not applied. A timer calls this."""
        now = self._clock()
        if self._waiting_bytes() == 0:
            self._waits_since = None
            self._progress_at = now
        else:
            if self._waits_since is None:
                self._waits_since = self._progress_at = now
            if self._seen_end != self._archived_end:
                self._waits_since = self._progress_at = now
        self._seen_end = self._archived_end
        state = self._metadata.archived
        if state.begin_pos is not None and self._is_older == state.is_held:
            self._is_older = None
        if self._has_news and now >= self._report_at:
            self._report()
        self._tell_limits(now)
        self._tell_of_level(now)

    def _tell_limits(self, now: float) -> None:
        """Report this replica's retention of the archive to the leader, which may be itself."""
        own = KeptLimits.from_settings(self._settings)
        if self._appender.is_open:
            self._member_limits.set_member(self._settings.node_id, own, now)
            return
        leader, url = self._context.leader_address(), self._settings.archive_url
        if leader is None or url is None or now < self._tell_at:
            return
        self._tell_at = now + self._limits.tell_seconds
        end = self._archived_end
        ext = ReportArchivedExt(
            identity=self._settings.identity,
            url=url,
            index=end.index,
            term=end.term,
            pos=end.pos,
            chain=end.chain,
            member=self._settings.node_id,
            kept_seconds=own.seconds,
            kept_bytes=own.nbytes,
        )
        self._calls.ask(leader, RequestCode.REPORT_ARCHIVED, ext.fields(), b"", ANSWER_SECONDS, self._on_limits)

    def _on_limits(self, response: Response | NoResponse, body: bytes) -> None:
        if isinstance(response, Response) and response.code == ResponseCode.SUCCESS:
            reply = read_reply(ReportArchivedReply, response.ext)
            if min(reply.kept_seconds, reply.kept_bytes) >= 0:
                self._member_limits.set(KeptLimits(reply.kept_seconds, reply.kept_bytes), self._clock())
            else:
                self._tell_at = min(self._tell_at, self._clock() + self._limits.retry_seconds)

    def _limits_of_group(self) -> KeptLimits:
        """Return the retention of archived messages in this group; no limits while it is unknown."""
        now = self._clock()
        if self._appender.is_open:
            self._member_limits.set_member(self._settings.node_id, KeptLimits.from_settings(self._settings), now)
            limits = self._member_limits.group_limits(self._replica.core.conf.members, now)
        else:
            limits = self._member_limits.leader_limits(now)
        return limits or KeptLimits(NOT_SET, NOT_SET)

    def _tell_of_level(self, now: float) -> None:
        """Warn if the group's format level is too low for the settings: nothing else would tell the reason."""
        level, needed_level = self._metadata.format_level.level, LEVEL_OF_ARCHIVE
        waits_long = self._waits_since is not None and now >= self._waits_since + self._limits.turn_seconds
        if self._tier.is_wanted and level >= LEVEL_OF_ARCHIVE:
            needed_level = LEVEL_OF_TIERS
        if level < needed_level and waits_long and now >= self._level_logged_at + LOG_AGAIN_SECONDS:
            self._level_logged_at = now
            self._log.warning(
                "archive_waits_for_level", level=level, needed_level=needed_level, waiting_bytes=self._waiting_bytes()
            )

    @property
    def _has_news(self) -> bool:
        """Whether this replica has found something in the archive that the group does not know yet."""
        if self._reported_end.index > self._archived_end.index:
            return True
        state = self._metadata.archived
        if (
            not self._tier.is_wanted
            or self._metadata.format_level.level < LEVEL_OF_TIERS
            or not self._archived_end.index
        ):
            return False
        if state.begin_pos is None:
            return self._begin_pos >= 0 and self._older_now is False
        is_later = max(self._begin_pos, self._expired_pos, self._first_queues()) > state.begin_pos
        return is_later or self._tier.lacks_older_for_good or self._older_now not in (None, state.is_held)

    @property
    def _older_now(self) -> bool | None:
        """The value of ``_is_older``; None while this replica may not know yet how much is archived."""
        return None if self._is_older is False and self._whole_index < self._archived_end.index else self._is_older

    def _first_queues(self) -> int:
        """Return the physical offset at which the group's queues begin, for all clients; 0 if it is unknown."""
        own = self._context.settings.node_id
        positions = self._queues_from | {own: self._tier.queues_from if self._tier.lacks_older_for_good else 0}
        members = self._replica.core.conf.members
        return min(positions[each] for each in members) if set(members) <= positions.keys() else 0

    # -- archiving -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Archive when it is this replica's turn, until cancelled."""
        while True:
            await sleep_to_step(self._limits.look_seconds)
            if (job := self.next_job()) is not None:
                await self._archive(job, self.handle_step, self._limits.silent_seconds)

    def next_job(self) -> ArchiveJob | None:
        """Return the part of the log to archive now; None if there is none, or it is another replica's turn."""
        now, core = self._clock(), self._replica.core
        is_due = (
            self._metadata.format_level.level >= LEVEL_OF_ARCHIVE
            and (self._waits_since is not None or self._is_to_be_checked(now))
            and self._reported_end.index <= self._archived_end.index
            and now >= self._retry_at
            and archives(
                core.node_id, core.conf.voters, core.leader_id, now - self._progress_at, self._limits.turn_seconds
            )
        )
        settings = self._settings
        if not is_due or settings.archive_url is None:
            return None
        limits = self._limits_of_group()
        begin_pos = 0
        if self._tier.is_wanted:
            begin_pos = self._metadata.archived.begin_pos or 0
        elif settings.has_archive_retention:  # a group that is restored from the archive needs it, too
            begin_pos = self._deletable_to(_POS_MAX)
        return ArchiveJob(
            data_dir=str(settings.data_dir),
            log_dir=str(settings.log_dir),
            url=settings.archive_url,
            endpoint_url=settings.archive_endpoint_url,
            known_index=self._archived_end.index,
            bytes_per_second=settings.archive_bytes_per_second,
            has_retention=settings.has_archive_retention,
            oldest_ms=self._now_ms() - limits.seconds * 1000 if limits.seconds else None,
            bytes_max=limits.nbytes or None,
            begin_pos=begin_pos,
        )

    def _is_to_be_checked(self, now: float) -> bool:
        """Whether to look at the manifest although nothing waits: what is deleted locally must be in it, and what is
        old must not.
        """
        has_tiers = self._tier.is_wanted and self._metadata.format_level.level >= LEVEL_OF_TIERS
        is_of_use = has_tiers or self._settings.has_archive_retention
        return is_of_use and self._archived_end.index > 0 and now >= self._check_at

    def handle_step(self, step: ArchiveStep) -> None:
        """Store the progress that the archiving process reports."""
        if step.is_older:
            self._log.error("archive_rolled_back", archive_index=step.index, known_index=self._archived_end.index)
        self._uploaded_bytes += step.nbytes
        end = Base(LogIndex(step.index), Term(step.term), step.pos, step.chain)
        if step.begin_pos > self._begin_pos >= 0:
            self._log.info("archive_shortened", begin_pos=step.begin_pos)
        self._begin_pos = max(self._begin_pos, step.begin_pos)
        self._expired_pos = max(self._expired_pos, step.expired_pos)
        if step.is_older or end.index >= max(self._archived_end.index, 1):
            self._is_older, self._whole_index = step.is_older, end.index
        is_further = end.index > max(self._archived_end.index, self._reported_end.index)
        if is_further:
            self._reported_end = end
            if step.nbytes:
                self._log.info("archive_advanced", index=end.index, nbytes=step.nbytes)
        if is_further or (not step.is_last and self._has_news):
            self._report()
        if step.trouble is not None:
            self._on_failure(step.trouble, step.reason)
        elif step.is_last:
            self._failed_runs, self._last_log = 0, None
            # What the group agrees to delete can be deleted by the next run.
            seconds = self._limits.retry_seconds_max if self._expired_pos >= 0 else self._limits.check_seconds
            self._check_at = self._clock() + min(seconds, self._limits.check_seconds)
            self._expired_pos = -1

    def _on_failure(self, trouble: Trouble, reason: str) -> None:
        now = self._clock()
        self._failed_runs += 1
        self._retry_at = now + min(
            self._limits.retry_seconds * 2 ** min(self._failed_runs - 1, 16), self._limits.retry_seconds_max
        )
        if trouble is Trouble.OTHER_WRITER:
            return  # the archive gets on
        self._failures += 1
        if self._last_log is not None and self._last_log[0] is trouble and now < self._last_log[1] + LOG_AGAIN_SECONDS:
            return
        self._last_log = trouble, now
        self._log.error(
            "archive_failed",
            trouble=trouble.value,
            reason=reason,
            archive_index=self._archived_end.index,
            waiting_bytes=self._waiting_bytes(),
        )

    # -- reports -------------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Report the end of the archive to the group."""
        end, url = max(self._reported_end, self._archived_end, key=lambda each: each.index), self._settings.archive_url
        assert url is not None, f"entry {end.index} is archived nowhere"
        self._report_at = self._clock() + ANSWER_SECONDS + self._limits.look_seconds
        if self._appender.is_open:
            try:
                self._replicate_end(url, end, self._begin_pos, self._expired_pos, is_older=self._older_now)
            except RequestRefused as refusal:
                if refusal.code == ResponseCode.INVALID_PARAMETER:
                    self._on_refusal(refusal.remark)
            return
        leader = self._context.leader_address()
        if leader is None:
            return
        ext = ReportArchivedExt(
            identity=self._settings.identity,
            url=url,
            index=end.index,
            term=end.term,
            pos=end.pos,
            chain=end.chain,
            begin_pos=self._begin_pos,
            manifest={None: "", True: OLDER, False: WHOLE}[self._older_now],
            expired_pos=self._expired_pos,
            node_id=self._settings.node_id if self._tier.lacks_older_for_good else "",
            queues_from=self._tier.queues_from,
        )
        self._calls.ask(leader, RequestCode.REPORT_ARCHIVED, ext.fields(), b"", ANSWER_SECONDS, self._on_response)

    def _on_response(self, response: Response | NoResponse, body: bytes) -> None:
        if isinstance(response, Response) and response.code == ResponseCode.INVALID_PARAMETER:
            self._on_refusal(response.remark)

    def _on_refusal(self, remark: str | None) -> None:
        """Handle the leader's final refusal of a report: the next run reads the manifest again."""
        self._reported_end = self._archived_end
        self._on_failure(Trouble.REFUSED, f"the leader refuses the report: {remark}")

    def handle(self, call: Call[ReportArchived]) -> bytes:
        """Request code 9018: store another replica's report about the archive. Raises RequestRefused."""
        ext = call.request.ext
        self._admit(call.connection, ext.identity)
        if not self._appender.is_open:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "this replica does not lead its group")
        if ext.url != self._settings.archive_url:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"archive_url of the leader is {self._settings.archive_url or 'not set'}",
            )
        if ext.member:
            return call.response(ext=self._handle_report(ext).fields())
        end = Base(LogIndex(ext.index), Term(ext.term), ext.pos, ext.chain)
        if ext.node_id:
            self._queues_from[ext.node_id] = ext.queues_from
        is_older = {OLDER: True, WHOLE: False}.get(ext.manifest)
        self._replicate_end(ext.url, end, ext.begin_pos, ext.expired_pos, is_older=is_older)
        return call.response()

    def _handle_report(self, ext: ReportArchivedExt) -> ReportArchivedReply:
        """Store a member's retention, and respond with that of the group if it is known."""
        now, own = self._clock(), self._settings.node_id
        self._member_limits.set_member(own, KeptLimits.from_settings(self._settings), now)
        self._member_limits.set_member(ext.member, KeptLimits(ext.kept_seconds, ext.kept_bytes), now)
        limits = self._member_limits.group_limits(self._replica.core.conf.members, now)
        return ReportArchivedReply() if limits is None else ReportArchivedReply(limits.seconds, limits.nbytes)

    def _replicate_end(self, url: str, end: Base, begin_pos: int, expired_pos: int, *, is_older: bool | None) -> None:
        """Replicate the end of the archive, and the offset from which on it is served.

        Raises RequestRefused if it is not this log that is archived.
        """
        if self._metadata.format_level.level < LEVEL_OF_ARCHIVE:
            raise RequestRefused(
                ResponseCode.VERSION_NOT_SUPPORTED,
                "archiving needs format level 6, and the group is below it: upgrade all replicas",
            )
        if self._archived_end.index >= end.index:
            if is_older is False and self._archived_end.index > end.index:
                is_older = None  # its sender does not know yet how much is archived
            self._replicate_tier(url, begin_pos, expired_pos, is_older=is_older)
            return
        if self._replica.commit_index <= end.index <= self._replica.log.last_index:  # right after an election
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the leader does not know yet that entry {end.index} is committed"
            )
        if (reason := self._why_not_own(end)) is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{url} contains the archive of another log: {reason}")
        commit_index = self._replica.commit_index
        assert end.index < commit_index, f"{end.index} would be archived, {commit_index} is the last committed entry"
        command = NoteArchived(url=url, index=end.index, term=end.term, pos=end.pos, chain=end.chain)
        try:
            self._appender.add_command(encode_command(command))
        except CommandInvalid as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error

    def _replicate_tier(self, url: str, begin_pos: int, expired_pos: int, *, is_older: bool | None) -> None:
        """Replicate from where on archived messages are served, and whether nothing may be deleted locally."""
        state = self._metadata.archived
        if self._metadata.format_level.level < LEVEL_OF_TIERS or not self._tier.is_wanted or state.url != url:
            return
        old_pos = state.begin_pos
        if old_pos is None:
            if begin_pos < 0 or is_older is not False:
                return  # nothing is deleted yet that would have to be in the archive
            old_pos = self._tier.queues_from  # no replica has entries of messages that were deleted before that
        if expired_pos > old_pos and not is_older and not state.is_held:
            begin_pos = max(begin_pos, self._deletable_to(expired_pos))
        begin_pos = max(begin_pos, old_pos, self._first_queues())
        assert begin_pos >= old_pos, (
            f"archived messages would be served from {begin_pos} on, not from {old_pos} any more"
        )
        is_held = state.is_held if is_older is None else is_older
        if (begin_pos, is_held) != (state.begin_pos, state.is_held):
            self._appender.add_command(encode_command(NoteTier(url=url, begin_pos=begin_pos, is_held=is_held)))

    def _deletable_to(self, expired_pos: int) -> int:
        """Return the physical offset up to which archived files may be deleted, at most ``expired_pos``."""
        try:
            needed_pos = self._needed_pos()
        except (StoreError, OSError):
            return 0
        assert needed_pos >= 0, f"archived messages are needed from {needed_pos} on"
        pos = min(expired_pos, needed_pos)
        return pos - pos % self._settings.segment_bytes

    def _why_not_own(self, end: Base) -> str | None:
        """Return the reason why an archived log is not the beginning of this log; None if it is."""
        log, size = self._replica.log, self._settings.segment_bytes
        if end.index >= self._replica.commit_index:
            return f"entry {end.index} ends a file, and {self._replica.commit_index} is the last committed entry"
        if end.index < log.first_index:
            return None  # gone here; the sender has compared it with its log
        try:
            entry = log.locate(end.index)
        except SegmentError as error:
            return str(error)
        own = Base(entry.index, entry.term, entry.pos - entry.pos % size + size, entry.chain)
        return None if own == end else f"after entry {end.index} this log is {own}, and that one {end}"

    def check_invariants(self) -> None:
        now, since = self._clock(), self._waits_since
        assert since is None or since <= now, f"files have been complete since {since}, it is {now}"
        assert self._last_log is None or self._failed_runs > 0, f"{self._last_log} was logged, and no run has failed"
