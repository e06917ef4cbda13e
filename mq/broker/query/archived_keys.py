"""Finds messages by key that only the archive has, and builds the index files for that.

Index files stay when the files of the log are deleted locally; so a search reads nothing of the archive but the
messages that it finds, in the threads for the archive, for a bounded time and number of bytes. A replica that lacks
index files, such as a new one, copies parts of the archive, the newest first, and lets them be indexed like parts of
the log.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from mq.broker.context import BrokerContext
from mq.store.key_index.archived_parts import ArchivedRecords, copy_part
from mq.store.key_index.index import KeyIndex
from mq.store.key_index.job import IndexJob
from mq.store.key_index.record_keys import EntriesDamaged
from mq.store.key_index.search import KeyQuery, SearchResult
from raftlog import SegmentError


@dataclass(slots=True)
class ArchivedMatches:
    """The messages found in the archive. ``gap_reason`` says why others may be missing; it is empty if none are."""

    records: list[bytes] = field(default_factory=list)
    gap_reason: str = ""


class ArchivedKeys:
    """Searches archived messages by key, on brokers with an archive."""

    def __init__(self, context: BrokerContext, index: KeyIndex) -> None:
        access = context.environment.archive
        assert access is not None, "archived messages are searched, and no archive is read"
        self._access = access
        self._index = index
        self._tier = context.tier
        self._limits = context.limits.archive
        self._archive_state = context.metadata.archived
        self._settings = context.settings
        self._log_begin = context.replica.log
        self._clock = context.environment.thread_clock
        self._log = context.log
        self._under_way = 0
        self._copy_at = 0.0

    @property
    def has_messages(self) -> bool:
        """Whether the archive has messages that the local log does not have."""
        begin_pos = self._tier.begin_pos
        return begin_pos is not None and begin_pos < self._log_begin.base_pos

    async def find(self, query: KeyQuery) -> ArchivedMatches:
        """Search the archive before the local log. Takes a second more than ``key_search_seconds`` at most."""
        await trio.lowlevel.checkpoint()
        limits = self._limits
        if self._under_way >= limits.key_searches_max:
            return ArchivedMatches(
                gap_reason=f"{limits.key_searches_max} searches of the archive are under way; try again later"
            )
        records, deadline = ArchivedRecords(self._access.fetch), self._clock() + limits.key_search_seconds

        def is_over() -> bool:
            return records.nbytes >= limits.key_search_bytes or self._clock() >= deadline

        search = self._index.search_archived(query, records.read, is_over)
        # Files that are built while it runs are not searched.
        is_whole = not self._tier.lacks_older and self._index.archived_missing(self._archived_pos) == 0
        outcome: list[SearchResult | Exception] = []
        end_event = trio.Event()

        def on_end(result: SearchResult | Exception) -> None:
            self._under_way -= 1
            assert self._under_way >= 0, f"{self._under_way} searches of the archive are under way"
            outcome.append(result)
            end_event.set()

        def job() -> Callable[[], None]:
            try:
                return partial(on_end, search.run())
            except (SegmentError, EntriesDamaged) as error:
                return partial(on_end, error)

        self._under_way += 1
        self._access.in_background(job)
        with trio.move_on_after(limits.key_search_seconds + 1):
            await end_event.wait()
        if not outcome:
            return ArchivedMatches(
                gap_reason=f"the archive did not answer within {limits.key_search_seconds:g} s; try again later"
            )
        if isinstance(result := outcome[0], Exception):
            return ArchivedMatches(gap_reason=f"the archive cannot be read now: {result}")
        return self._read_matches(result, is_whole=is_whole)

    def _read_matches(self, result: SearchResult, *, is_whole: bool) -> ArchivedMatches:
        for path, fault in zip(result.damaged, result.faults, strict=True):
            self._log.warning("key_index_damaged", path=path, reason=fault)
            self._index.discard(path)
        gap_reason = ""
        if not result.is_complete:
            gap_reason = "the archive was searched in part only; try again with a shorter time"
        elif not is_whole:
            gap_reason = "this replica has not indexed all of the archive yet; try again later"
        return ArchivedMatches(result.records, gap_reason)

    # -- index files that are missing ----------------------------------------------------------------------------------

    @property
    def _archived_pos(self) -> int:
        return self._archive_state.end_at(self._settings.archive_url).pos

    def lacks_files(self) -> bool:
        """Whether `copy_next` should copy a part of the archive now, because it has no index file."""
        return (
            self.has_messages
            and not self._index.is_suspended
            and self._clock() >= self._copy_at
            and self._index.archived_jobs(self._archived_pos) > 0
        )

    async def copy_next(self) -> IndexJob | None:
        """Copy the newest archived part without an index file; returns the job that indexes it, None without one."""
        await trio.lowlevel.checkpoint()
        if (part_and_end := next(self._index.unindexed_archived(self._archived_pos), None)) is None:
            return None
        part, behind = part_and_end
        path, fetch = self._index.copy_path_of(part), self._access.fetch
        outcome: list[tuple[int, int] | Exception] = []
        end_event = trio.Event()

        def on_end(result: tuple[int, int] | Exception) -> None:
            outcome.append(result)
            end_event.set()

        def job() -> Callable[[], None]:
            try:
                return partial(on_end, copy_part(fetch, part, behind, path))
            except (SegmentError, OSError) as error:
                return partial(on_end, error)

        self._access.in_background(job)
        await end_event.wait()
        if isinstance(result := outcome[0], Exception):
            self._copy_at = self._clock() + self._limits.index_retry_seconds
            self._log.warning("key_index_failed", path=path, reason=str(result))
            return None
        begin, end = result
        if rate := self._settings.archive_bytes_per_second:
            self._copy_at = self._clock() + (end - begin) / rate
        return self._index.copied_job(part, begin, end)

    def finish_job(self, job: IndexJob, *, is_made: bool) -> None:
        """Delete the copy of the part that was indexed. If that failed, pause before the next copy. Raises OSError."""
        if not is_made:
            self._copy_at = self._clock() + self._limits.index_retry_seconds
        with suppress(FileNotFoundError):
            os.unlink(job.segment)
