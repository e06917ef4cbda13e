"""Decides which part of each partition a task reads from the archive: all that is archived when the query is planned.

A replica that its leader has confirmed to be up to date says up to where the log is archived. The driver follows the
chain of the log from there back to the oldest wanted message, through one index for each file; so a task can check its
files without reading those behind them. Without a leader, all replicas are asked, and the archive's end of each must be
on this chain: a replica that lost its newest entries, or has others, is detected before a task reads.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from spark.archive_blocks import ArchiveUnreadable, LogPlace, OpenArchive, TopicBlocks, open_archive
from spark.client import Unreachable
from spark.errors import ReadFailed
from spark.offset_survey import Survey
from spark.options import ReadOptions
from spark.plan import ArchiveClaim, ArchivedLog, ArchivedPart, LogRange, PlanInvalid

_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0


class ArchivePlan:
    """Reads the archives of a query while it is planned. Call `close` at the end, or use it as a context manager.

    Args:
        open_archive: for tests.
        clock, sleep: monotonic seconds.
    """

    def __init__(
        self,
        options: ReadOptions,
        open_archive: OpenArchive = open_archive,
        *,
        clock: Callable[[], float] = time.monotonic,  # noqa: TID251 - the edge of the driver's process
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._open = open_archive
        self._clock = clock
        self._sleep = sleep
        self._open_blocks: dict[ArchivedLog, TopicBlocks] = {}
        """Without the ends, which move on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to object storage."""
        for blocks in self._open_blocks.values():
            blocks.close()
        self._open_blocks.clear()

    def with_archives(self, parts: Sequence[LogRange], survey: Survey) -> list[LogRange]:
        """Return the partitions, each with the part to read from the archive. ``survey`` must be detailed.

        Raises:
            PlanInvalid: a broker group has no archive.
            Unreachable: no replica of a group has told whether it has one.
            ReadFailed: an archive cannot be read, and the query must not read its messages from brokers.
        """
        extents_of: dict[ArchivedLog, list[tuple[int, int, int]]] = {}
        claims: dict[ArchivedLog, set[ArchiveClaim]] = {}
        for number, part in enumerate(parts):
            archive = self._archive_of(part, survey)
            begin, end = _extent(part, archive, survey)
            if begin < end:
                extents_of.setdefault(archive, []).append((number, begin, end))
                claims.setdefault(archive, set()).update(survey.claims.get((part.topic, part.broker_name), ()))
        new_parts = list(parts)
        for archive, extents in extents_of.items():
            try:
                places = self._proven_places(min(begin for _, begin, _ in extents), archive, claims[archive])
            except ArchiveUnreadable as error:
                topic, broker_name = parts[extents[0][0]].topic, parts[extents[0][0]].broker_name
                if error.is_deleted:
                    continue  # brokers tell which messages are deleted
                if self._options.on_archive_failure == "fail":
                    raise ReadFailed(
                        f"topic {topic!r}, broker group {broker_name}: the archive cannot be read: {error}; "
                        "onArchiveFailure=brokers reads from brokers then"
                    ) from error
                logging.getLogger(__name__).warning(
                    "topic %s, broker group %s: reading from brokers, since the archive cannot be read: %s",
                    topic,
                    broker_name,
                    error,
                )
                self._drop(archive)
                continue
            for number, begin, end in extents:
                log = archive._replace(end=places[end])
                new_parts[number] = replace(new_parts[number], archived_part=ArchivedPart(log, begin))
        return new_parts

    def _proven_places(
        self, begin_pos: int, archive: ArchivedLog, claims: Iterable[ArchiveClaim]
    ) -> dict[int, LogPlace]:
        """Look places up as `TopicBlocks.places_from`. Raises ArchiveUnreadable unless all replicas name this log."""
        claims = sorted(claims, key=lambda each: each.address)
        for address, plan in claims:
            if (plan.url, plan.log_identity) != (archive.url, archive.log_identity):
                raise ArchiveUnreadable(
                    f"no leader confirms it, and {address} names {plan.url} of the log {plan.log_identity}, another "
                    f"replica {archive.url} of the log {archive.log_identity}"
                )
        places = self._places_from(begin_pos, archive)
        for address, plan in claims:
            index, term, pos, _ = plan.end
            if index and pos >= begin_pos and places.get(pos) != plan.end:
                raise ArchiveUnreadable(
                    f"no leader confirms it, and {address} says that entry {index} of term {term} ends at {pos}, which "
                    f"is not so in {archive.url}"
                )
        return places

    def _places_from(self, begin_pos: int, archive: ArchivedLog) -> dict[int, LogPlace]:
        """Look places up as `TopicBlocks.places_from`; waits for a slow store until the deadline of the query."""
        until = self._clock() + self._options.read_deadline_ms / 1000
        pause = _PAUSE_SECONDS_MIN
        while True:
            try:
                return self._blocks(archive).places_from(begin_pos, archive.end)
            except ArchiveUnreadable as error:
                if not error.may_pass or self._clock() + pause >= until:
                    raise
            self._sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)

    def _archive_of(self, part: LogRange, survey: Survey) -> ArchivedLog:
        key = part.topic, part.broker_name
        if key not in survey.archives:
            raise Unreachable(part.broker_name, f"no replica reported how much of topic {part.topic!r} is archived")
        archive = survey.archives[key]
        if archive is None:
            raise PlanInvalid(
                f"broker group {part.broker_name} names no archive: set archive_url on its brokers, which must have "
                "this version, or read with readMode=bulk"
            )
        if self._options.archive_endpoint_url is not None:
            archive = archive._replace(endpoint_url=self._options.archive_endpoint_url)
        return archive

    def _drop(self, archive: ArchivedLog) -> None:
        """Forget an archive that was read with an end that may be wrong."""
        if (blocks := self._open_blocks.pop(_without_end(archive), None)) is not None:
            blocks.close()

    def _blocks(self, archive: ArchivedLog) -> TopicBlocks:
        key = _without_end(archive)
        if key not in self._open_blocks:
            self._open_blocks[key] = self._open(archive, self._options.fetch_timeout_ms / 1000)
        return self._open_blocks[key]


def _without_end(archive: ArchivedLog) -> ArchivedLog:
    return archive._replace(end=(0, 0, 0, 0))


def _extent(part: LogRange, archive: ArchivedLog, survey: Survey) -> tuple[int, int]:
    """The begin and end of the files that have a partition's archived messages, as physical offsets."""
    key = part.topic, part.broker_name
    size = archive.segment_bytes
    places = survey.places.get(key, ())
    positions = survey.positions.get(key, ())
    if not positions:
        return 0, 0
    # Offsets only grow from one place to the next.
    first_behind = bisect_left(
        range(len(places)),
        True,
        key=lambda at: any(places[at].get(each.queue_id, 0) > each.start for each in part.ranges),
    )
    first_after = bisect_left(
        range(len(places)),
        True,
        key=lambda at: all(places[at].get(each.queue_id, 0) >= each.end for each in part.ranges),
    )
    begin = positions[first_behind]
    end = -(-positions[first_after + 1] // size) * size if first_after < len(places) else archive.end[2]
    return begin - begin % size, min(end, archive.end[2])
