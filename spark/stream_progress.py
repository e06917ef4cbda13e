"""Tracks the progress of a streaming query on the driver: queries brokers for messages, and answers Spark's calls.

Spark asks for the latest offset again as soon as it has a result without news, a hundred times a second. So results are
cached briefly, and connections are kept.

A queue that is not visible is not lost yet: restarted name servers know no topics for a while, and the replica that
responds may be behind. A queue is lost only if it stays away for the option ``readDeadline``. Spark does not retry a
failed call, it ends the query: so everything is retried until then.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark.bulk_offset_survey import surveyor_of
from spark.client import Connection, ServerError, Unreachable
from spark.errors import DataLoss
from spark.group_offsets import GroupOffsets
from spark.kept_connections import KeptConnections
from spark.leases import LEASE_ANSWER_SECONDS_MAX, StreamLeases, new_lease_id
from spark.micro_batches import (
    ClusterSnapshot,
    Limits,
    Loss,
    LossKind,
    batch_ranges,
    check_cluster,
    loss_text,
    losses,
    message_count,
    next_position,
)
from spark.offset_survey import Survey, Surveyor
from spark.option_table import QueueName
from spark.options import ReadOptions
from spark.partitions import plan_partitions, resolve_bound
from spark.plan import LogRange
from spark.positions import Position, parse_position

if TYPE_CHECKING:
    from spark.archive_plan import ArchivePlan

SEEN_SECONDS: Final = 0.1
"""Seconds for which results are cached."""

ROUTES_SECONDS: Final = 5.0
"""Seconds after which routes are refreshed."""

DETAILS_SECONDS: Final = 10.0
"""Seconds after which a stream asks how much is archived, and where messages are in the log."""

FIRST_SECONDS_MAX: Final = 10.0
"""A starting query does not wait longer for an address that may be wrong."""

_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0

log = logging.getLogger(__name__)


def stream_surveyor(options: ReadOptions, connections: KeptConnections) -> Surveyor:
    """Return the surveyor of a stream, which reuses connections."""
    is_sized = options.max_bytes_per_trigger is not None
    return surveyor_of(options, connections, detail=is_sized, otherwise="committed")


class StreamProgress:
    """Answers Spark's calls for one run of a query. Positions are JSON objects.

    Args:
        connect: creates a connection to an address with a timeout in seconds.
        make_surveyor: creates the surveyor, with connections that are kept.
        clock, sleep: monotonic seconds.
    """

    def __init__(
        self,
        options: ReadOptions,
        *,
        connect: Callable[[str, float], Connection] = Connection,
        make_surveyor: Callable[[ReadOptions, KeptConnections], Surveyor] = stream_surveyor,
        clock: Callable[[], float] = time.monotonic,  # noqa: TID251 - the edge of the driver's process
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._connections = KeptConnections(connect)
        self._surveyor = make_surveyor(options, self._connections)
        self._clock = clock
        self._sleep = sleep
        self._last_survey: Survey | None = None
        self._found_at = self._routes_at = 0.0
        self._last_offsets: dict[QueueName, int] = {}
        self._began: dict[str, Any] | None = None
        self._cap: dict[QueueName, int] | None = None
        self._last: tuple[dict[str, Any], Position] | None = None
        self._batch_at = clock()
        self._turn = 0
        self._missed_since: dict[tuple[LossKind, QueueName], float] = {}
        self._reported_losses: set[tuple[LossKind, QueueName]] = set()
        lease_timeout = min(LEASE_ANSWER_SECONDS_MAX, options.fetch_timeout_ms / 1000)
        self._leases = StreamLeases(lease_timeout, connect, new_lease_id, clock)
        self._archive: ArchivePlan | None = None
        self._details: Survey | None = None
        self._detailed_at = 0.0
        if options.read_mode == "archive":
            from spark.archive_plan import ArchivePlan

            self._archive = ArchivePlan(options, clock=clock, sleep=sleep)
        self._group = (
            None if options.commit_to_group is None else GroupOffsets(options.commit_to_group, self._connections, clock)
        )

    def beginning(self) -> dict[str, Any]:
        """Return the position where a query without a checkpoint begins; the same on each call.

        Raises PlanInvalid, OptionInvalid, Unreachable, ServerError.
        """
        if self._began is None:
            survey = self._survey(min(FIRST_SECONDS_MAX, self._deadline), strict=True)
            starts = resolve_bound(self._surveyor, survey, self._options, self._options.start, "starting")
            snapshot = _snapshot_of(survey)
            self._began = Position(snapshot.cluster, snapshot.topic_ids, starts, starts).to_json()
        return self._began

    def end_here(self) -> None:
        """Make the query end with the messages that are stored now. Raises as `beginning`."""
        survey = self._survey(min(FIRST_SECONDS_MAX, self._deadline), strict=False)
        self._cap = {queue: ends.end for queue, ends in survey.ends.items()}

    def latest(self, start: dict[str, Any], *, is_limited: bool) -> dict[str, Any]:
        """Return the position where the micro-batch after ``start`` ends; ``start`` itself if there is none now.

        Raises:
            DataLoss: messages after ``start`` can no longer be read, and the query must not continue without them.
            ClusterChanged, PositionInvalid: the checkpoint is another cluster's or another program's.
            Unreachable, ServerError: the brokers did not respond within the deadline.
        """
        position = self._position(start)
        pause = _PAUSE_SECONDS_MIN
        while True:
            survey = self._recent()
            snapshot = _snapshot_of(survey)
            check_cluster(position, snapshot)
            self._commit(position, survey)
            data_losses = losses(position, snapshot, self._last_offsets)
            self._forget_all_but(data_losses)
            doubtful = self._check(data_losses)
            self._remember_ends(survey)
            end = self._next_end(position, snapshot, is_limited)
            if end is not None or not (doubtful and self._cap is not None):
                if end is None:
                    return start
                self._last = end.to_json(), end
                return self._last[0]
            self._sleep(pause)  # a query that ends at the newest messages must know whether these are all
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)

    def newest(self) -> dict[str, Any] | None:
        """Return the ends of all queues from the last survey; None before the first."""
        if self._last_survey is None:
            return None
        snapshot = _snapshot_of(self._last_survey)
        return Position(
            snapshot.cluster, snapshot.topic_ids, {queue: ends.end for queue, ends in snapshot.ends.items()}
        ).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogRange]:
        """Return the parts that the tasks of a micro-batch read. Raises as `latest`, and PlanInvalid."""
        begin, until = parse_position(start), parse_position(end)
        pause = _PAUSE_SECONDS_MIN
        while True:
            survey = self._recent()
            snapshot = _snapshot_of(survey)
            check_cluster(until, snapshot)
            ranges, data_losses = batch_ranges(begin, until, snapshot)
            if not self._check(data_losses):
                self._turn += 1
                # A repeated micro-batch must be the same, task by task and row by row: a sink numbers the rows of each
                # task, and drops a row whose number is known.
                parts = plan_partitions(survey, ranges, self._options, self._turn, repeatable=True)
                leased_parts = self._leases.extend_to(parts, partial(self._surveyor.add_details, survey))
                return self._from_archive(leased_parts, survey)
            self._sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)

    def _from_archive(self, parts: list[LogRange], survey: Survey) -> list[LogRange]:
        if self._archive is None:
            return parts
        keys = {(part.topic, part.broker_name) for part in parts}
        until, pause = self._clock() + self._deadline, _PAUSE_SECONDS_MIN
        while True:
            details = self._details
            # A topic may be new, and no replica may have answered the last time.
            is_known = details is not None and keys <= details.archives.keys()
            if details is None or not is_known or self._clock() - self._detailed_at >= DETAILS_SECONDS:
                details, self._detailed_at = self._surveyor.add_details(survey), self._clock()
                self._details = details
            if keys <= details.archives.keys() or self._clock() + pause >= until:
                return self._archive.with_archives(parts, details)
            self._sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            survey = self._recent()

    def on_finish(self, end: dict[str, Any]) -> None:
        """Commit the end of a complete micro-batch to the group. Does not raise if brokers do not respond."""
        if self._group is not None and self._last_survey is not None:
            self._commit(parse_position(end), self._last_survey)

    def stop(self) -> None:
        """Store the pending offsets in the consumer group, release leases, and close all connections."""
        if self._group is not None and self._last_survey is not None:
            self._group.flush(self._last_survey.routes)
        self._leases.give_back()
        if self._archive is not None:
            self._archive.close()
        self._connections.close()

    def _position(self, offset: dict[str, Any]) -> Position:
        """Parse a position. Spark mostly passes the last result back, which is not parsed again."""
        if self._last is None or self._last[0] != offset:
            self._last = offset, parse_position(offset)
        return self._last[1]

    # -- what there is ---------------------------------------------------------------------------------------------

    @property
    def _deadline(self) -> float:
        return self._options.read_deadline_ms / 1000

    def _recent(self) -> Survey:
        if self._last_survey is None or self._clock() - self._found_at >= SEEN_SECONDS:
            previous = self._last_survey if self._clock() - self._routes_at < ROUTES_SECONDS else None
            return self._survey(self._deadline, strict=False, previous=previous)
        return self._last_survey

    def _survey(self, seconds: float, *, strict: bool, previous: Survey | None = None) -> Survey:
        """Query until there is a response. Raises Unreachable, ServerError after ``seconds``."""
        began, pause = self._clock(), _PAUSE_SECONDS_MIN
        while True:
            try:
                survey = self._surveyor.survey(self._options.subscription, strict=strict, previous=previous)
            except (Unreachable, ServerError):
                self._connections.close()
                previous = None  # a topic may be deleted, or its route may have changed
                if self._clock() - began + pause >= seconds:
                    raise
                self._sleep(pause)
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            else:
                self._last_survey, self._found_at = survey, self._clock()
                if previous is None:
                    self._routes_at = self._found_at
                return survey

    def _remember_ends(self, survey: Survey) -> None:
        self._last_offsets.update((queue, ends.end) for queue, ends in survey.ends.items())

    def _next_end(self, position: Position, snapshot: ClusterSnapshot, is_limited: bool) -> Position | None:
        options = self._options
        limits = Limits(options.max_offsets_per_trigger, options.max_bytes_per_trigger) if is_limited else Limits()
        fewest = options.min_offsets_per_trigger
        if (
            is_limited
            and self._cap is None
            and fewest is not None
            and message_count(position, snapshot) < fewest
            and self._clock() - self._batch_at < options.max_trigger_delay_ms / 1000
        ):
            return None
        end = next_position(position, snapshot, limits, self._cap)
        if end is not None:
            self._batch_at = self._clock()
        return end

    # -- what is lost ----------------------------------------------------------------------------------------------

    def _check(self, data_losses: Iterable[Loss]) -> list[Loss]:
        """Return losses that may be temporary. Raises DataLoss for the rest, or logs them once if the query may
        continue.
        """
        now = self._clock()
        data_losses = list(data_losses)
        for each in data_losses:
            self._missed_since.setdefault(each.key, now)
        doubtful: list[Loss] = []
        certain: list[Loss] = []
        for each in data_losses:
            may_come_back = each.kind in ("gone", "cut") and now - self._missed_since[each.key] < self._deadline
            (doubtful if may_come_back else certain).append(each)
        if doubtful:
            self._routes_at = -math.inf  # a name server lookup shows whether it reappears
        if certain and self._options.fail_on_data_loss:
            raise DataLoss(loss_text(certain))
        if news := [each for each in certain if each.key not in self._reported_losses]:
            log.warning("%s", loss_text(news))
        self._reported_losses.update(each.key for each in certain)
        return doubtful

    def _forget_all_but(self, data_losses: Iterable[Loss]) -> None:
        """Forget all losses except ``data_losses``: a loss that has ended is logged again if it recurs."""
        keys = {each.key for each in data_losses}
        self._missed_since = {key: since for key, since in self._missed_since.items() if key in keys}
        self._reported_losses &= keys

    # -- consumer group --------------------------------------------------------------------------------------------

    def _commit(self, position: Position, survey: Survey) -> None:
        if self._group is not None:
            self._group.commit(position.offsets, survey.routes, at_once=self._cap is not None)


def _snapshot_of(survey: Survey) -> ClusterSnapshot:
    """Turn a survey into the form that micro-batches are planned from."""
    clusters = sorted({name for route in survey.routes.values() for name in route.cluster.split(",") if name})
    identities = {
        (topic, broker_name): survey.identities.get((topic, broker_name), "")
        for topic, route in survey.routes.items()
        for broker_name in route.read_queues
    }
    return ClusterSnapshot(",".join(clusters), identities, survey.ends)
