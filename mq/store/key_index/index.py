"""Tracks which parts of the log have a key index file, which need one, and which a search has to scan.

A *part* is a whole segment, or an equal share of it if it has more than 64 MiB. Its file is ``index/<beginning of the
part, 20 digits>.hashes``, built once all entries that begin in the part are committed and on this disk: then it never
changes, on any replica. Nothing depends on these files; a bad one is deleted and built again.

Files of parts that were deleted locally stay while they are in the archive. What is missing of them is built from a
copy of the part (`archived_parts`).

Belongs to the event loop's thread.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from sortedcontainers import SortedSet

from mq.store.key_index.file import KeyFile, KeyFileDamaged, Read
from mq.store.key_index.job import IndexJob
from mq.store.key_index.limits import DEFAULT, KeyIndexLimits
from mq.store.key_index.search import KeyQuery, KeySearch, UnindexedPart
from raftlog import SegmentError, SegmentLog
from raftlog.log_numbers import LogIndex, index_range
from raftlog.segment.codec import NORMAL

JOBS_MAX: Final = 8
"""Returned at once, so that a long log without an index does not block the event loop."""

_SUFFIX: Final = ".hashes"
_NAME: Final = re.compile(r"([0-9]{20})\.hashes")
_COPY_SUFFIX: Final = ".copy"
_OTHER_SUFFIXES: Final = (_SUFFIX, ".tmp", ".keys", _COPY_SUFFIX)
"""Suffixes of files to remove: unfinished ones, and files of older formats."""
_NOT_KEPT: Final = 2**63 - 1


class KeyIndex:
    """Indexes the messages of one log by key, in files, and searches them.

    Args:
        directory: of its files; created if missing. Files that do not match the log are removed. Raises OSError.
        applied_index: the last entry that readers may see.
        kept_from: parts from this physical offset on keep their files, though the log begins later.
    """

    def __init__(
        self,
        directory: str,
        log: SegmentLog,
        applied_index: Callable[[], LogIndex],
        limits: KeyIndexLimits = DEFAULT,
        kept_from: Callable[[], int] = lambda: _NOT_KEPT,
    ) -> None:
        self._kept_from = kept_from
        self._limits = limits
        self._directory = directory
        self._log = log
        self._applied_index = applied_index
        self._segment_bytes = log.files.segment_bytes
        shares = -(-self._segment_bytes // limits.part_bytes_max)
        self._part_bytes = -(-self._segment_bytes // shares)
        self._indexed_parts: SortedSet[int] = SortedSet()
        self._missing: SortedSet[int] = SortedSet()
        self._failures: set[int] = set()
        self._times: dict[int, tuple[int, int]] = {}
        self.is_suspended = False
        """Whether no files are built, because the disk is full."""
        self._complete_below = self._base_pos = log.base_pos
        self._begin = self._first_kept()
        os.makedirs(directory, exist_ok=True)
        for name in os.listdir(directory):
            match = _NAME.fullmatch(name)
            if match is not None and self._is_part(start := int(match[1])) and start >= self._begin:
                self._indexed_parts.add(start)
            elif name.endswith(_OTHER_SUFFIXES):
                os.unlink(os.path.join(directory, name))
        if self._is_of_another_log():
            for part in self._indexed_parts:
                _remove(self.path_of(part))
            self._indexed_parts.clear()

    def _is_of_another_log(self) -> bool:
        """Whether the newest file about the local log is about another one: then so are the files of archived parts,
        which are not compared with the archive, since that would read it.
        """
        for part in reversed(self.local_parts):
            try:
                file = KeyFile(self.path_of(part))
            except (KeyFileDamaged, OSError):
                continue  # a search finds it
            try:
                if file.scope.end > self._log.end_pos:
                    return True
                file.check_log(self._log.read_range)
            except KeyFileDamaged:
                return True
            except SegmentError:
                continue
            finally:
                file.close()
            return False
        return False

    def path_of(self, part: int) -> str:
        """Return the path of the file for the part that begins at a physical offset."""
        return os.path.join(self._directory, f"{part:020d}{_SUFFIX}")

    @property
    def applied_end(self) -> int:
        """Return the physical offset at which the readable log ends. Raises SegmentError."""
        return self._end_of(self._applied_index())

    @property
    def parts(self) -> Sequence[int]:
        """Return the beginnings of the parts that have a file, ascending."""
        return tuple(self._indexed_parts)

    @property
    def local_parts(self) -> Sequence[int]:
        """Return the parts that the local log has, from which they can be built again."""
        return tuple(self._indexed_parts[self._indexed_parts.bisect_left(self._base_pos) :])

    def jobs(self) -> list[IndexJob]:
        """Return the files to build now, newest parts first, without failed ones. Raises SegmentError.

        The more of them, the larger their share of a core: all of it for `JOBS_MAX`.
        """
        self._catch_up()
        if self.is_suspended:
            return []
        assert self._missing.isdisjoint(self._indexed_parts), f"of {len(self._missing)} parts to build some have a file"
        jobs: list[IndexJob] = []
        parts = [*islice((part for part in reversed(self._missing) if part not in self._failures), JOBS_MAX)]
        for part in parts:
            segment_start = part - part % self._segment_bytes
            begin, end = self._entries_of(part)
            path = self._log.files.path(segment_start)
            jobs.append(IndexJob(path, segment_start, begin, end, self.path_of(part), len(parts) / JOBS_MAX))
        return jobs

    def suspend(self, is_full: bool) -> None:
        """Remove all files of the local log on a full disk, and build none until it is called with False. Files of
        archived parts stay: to build one again, its part would have to be read from the archive.
        """
        self.is_suspended = is_full
        if is_full:
            for part in self.local_parts:
                self.discard(self.path_of(part))

    def on_build(self, path: str) -> None:
        """Record that the file of a job was built."""
        part = self._part_of(path)
        if part >= self._begin:
            self._missing.discard(part)
            self._indexed_parts.add(part)
        else:
            _remove(path)

    def on_failure(self, path: str) -> None:
        """Skip the part of a job whose file could not be built, until `retry`."""
        self._failures.add(self._part_of(path))

    def report_damage(self, pos: int) -> None:
        """Read the entry at a physical offset from the log, so that the log detects damage and repairs it.

        For any thread. Raises SegmentError: StorageCorrupt, unless the entry is intact in memory or was repaired.
        """
        self._log.read_range(pos, 1)

    def retry(self) -> None:
        """Retry failed jobs."""
        self._failures.clear()

    def discard(self, path: str) -> None:
        """Remove a file that is damaged or missing, so that it is built again."""
        part = self._part_of(path)
        self._times.pop(part, None)
        if part in self._indexed_parts:
            self._indexed_parts.remove(part)
            if part >= self._base_pos:
                self._missing.add(part)
        _remove(path)

    def expire(self) -> None:
        """Remove files of parts that the log no longer has. Raises OSError."""
        base_pos, begin = self._log.base_pos, self._first_kept()
        if (base_pos, begin) == (self._base_pos, self._begin):
            return
        self._base_pos, self._begin = base_pos, begin
        self._complete_below = max(self._complete_below, base_pos)
        del self._missing[: self._missing.bisect_left(base_pos)]
        expired_parts = self._indexed_parts[: self._indexed_parts.bisect_left(begin)]
        del self._indexed_parts[: len(expired_parts)]
        assert min(self._missing[:1], default=base_pos) >= base_pos, f"parts before {base_pos} get files"
        assert min(self._indexed_parts[:1], default=begin) >= begin, f"a part before {begin} has a file"
        for part in expired_parts:
            self._times.pop(part, None)
            _remove(self.path_of(part))

    def archived_missing(self, end: int) -> int:
        """Count the kept parts without a file before the local log and before the physical offset ``end``."""
        stop = min(end, self._base_pos)
        shares = -(-self._segment_bytes // self._part_bytes)
        have: int = self._indexed_parts.bisect_left(stop)
        return max(0, stop - self._begin) // self._segment_bytes * shares - have

    def archived_jobs(self, end: int) -> int:
        """Count the parts of `archived_missing` that have not failed and are still to be copied."""
        stop = min(end, self._base_pos)
        failed_count = sum(self._begin <= part < stop and part not in self._indexed_parts for part in self._failures)
        return self.archived_missing(end) - failed_count

    def unindexed_archived(self, end: int) -> Iterator[tuple[int, int]]:
        """The archived parts without index, newest first: where each begins, and where the next one does."""
        size = self._segment_bytes
        starts = range(min(end, self._base_pos) - size, self._begin - 1, -size)
        shares = -(-size // self._part_bytes)
        stop: int = self._indexed_parts.bisect_left(min(end, self._base_pos))

        def lacks_some(count: int) -> bool:
            first: int = self._indexed_parts.bisect_left(starts[count - 1])
            return stop - first < count * shares

        # Mostly the newest ones have files, and are not looked at one by one.
        whole = bisect_left(range(1, len(starts) + 1), True, key=lacks_some)
        for start in starts[whole:]:
            for part in reversed([*self._parts_from(start, start + size)]):
                if part not in self._indexed_parts and part not in self._failures:
                    yield part, self._end_of_part(part)

    def copied_job(self, part: int, begin: int, end: int) -> IndexJob:
        """The job for a part of the archive whose entries from ``begin`` to ``end`` were copied to `copy_path_of`."""
        assert part <= begin <= end, f"entries from {begin} to {end} of the part at {part}"
        return IndexJob(self.copy_path_of(part), begin, begin, end, self.path_of(part), is_copy=True)

    def copy_path_of(self, part: int) -> str:
        """Return the path to which a part of the archive is copied."""
        return os.path.join(self._directory, f"{part:020d}{_COPY_SUFFIX}")

    def search_archived(self, query: KeyQuery, read: Read, is_over: Callable[[], bool]) -> KeySearch:
        """Search the parts with files that only the archive has, in a thread that may wait for the archive. ``read``
        reads records from it, but only records whose hash is in a file. Raises OSError.
        """
        self.expire()  # the search of the local log did not find messages that were deleted meanwhile
        return KeySearch(
            query=query,
            read=read,
            newest=(),
            unindexed=(),
            indexed=tuple(self._indexed_parts[: self._indexed_parts.bisect_left(self._base_pos)]),
            path_of=self.path_of,
            behind=self._end_of_part,
            is_complete=True,
            is_over=is_over,
            limits=self._limits,
            checks_files=False,
            times=self._times,
        )

    def _first_kept(self) -> int:
        """The first part that keeps its file."""
        begin_pos = min(self._log.base_pos, self._kept_from())
        return -(-begin_pos // self._segment_bytes) * self._segment_bytes

    def search(self, query: KeyQuery, is_over: Callable[[], bool]) -> KeySearch:
        """Return a search of everything that is committed now, to run in a worker thread. Raises SegmentError."""
        self._catch_up()
        log = self._log
        last, durable = self._applied_index(), log.durable_index
        limit = self._end_of(min(last, durable))
        newest = [entry for index in index_range(durable + 1, last + 1) if (entry := log.entry(index)) is not None]
        direct = [*self._missing, *self._parts_from(self._complete_below, limit)]
        parts_to_read = direct[-self._limits.direct_parts_max :]
        unindexed_parts = []
        for part in parts_to_read:
            begin, end = self._entries_of(part)
            if begin < (end := min(end, limit)):
                unindexed_parts.append(UnindexedPart(begin, end, log.anchors(begin, end)))
        return KeySearch(
            query=query,
            read=log.read_range,
            newest=[entry.body for entry in newest if entry.kind == NORMAL],
            unindexed=unindexed_parts,
            indexed=self.local_parts,
            path_of=self.path_of,
            behind=self._end_of_part,
            is_complete=len(parts_to_read) == len(direct),
            is_over=is_over,
            limits=self._limits,
        )

    def _catch_up(self) -> None:
        """Record the parts that have become complete."""
        self.expire()
        log = self._log
        limit = self._end_of(min(self._applied_index(), log.durable_index))
        for part in self._parts_from(self._complete_below, limit):
            behind = self._end_of_part(part)
            if behind > limit:
                break  # an entry that begins before the limit ends before it
            if part not in self._indexed_parts:
                self._missing.add(part)
            self._complete_below = behind

    def _entries_of(self, part: int) -> tuple[int, int]:
        """The range of the entries that begin in a part."""
        return self._first_entry_from(part), self._first_entry_from(self._end_of_part(part), part)

    def _first_entry_from(self, pos: int, part: int | None = None) -> int:
        """The beginning of the first entry at or after ``pos``; the end of the last one if there is none in this
        segment.
        """
        start = (pos if part is None else part) // self._segment_bytes * self._segment_bytes
        if pos == start:
            return pos
        if pos < start + self._segment_bytes and (entry := self._log.entry_at(pos)) is not None:
            return pos if entry.pos == pos else entry.pos + entry.size
        (segment,) = [segment for segment in self._log.segments() if segment.start == start]
        return self._end_of(segment.last_index)

    def _end_of(self, index: LogIndex) -> int:
        if index < self._log.first_index:
            return self._log.base_pos
        entry = self._log.locate(index)
        return entry.pos + entry.size

    def _parts_from(self, part: int, end: int) -> Iterator[int]:
        """The parts from this one on that begin before ``end``."""
        while part < end:
            yield part
            part = self._end_of_part(part)

    def _end_of_part(self, part: int) -> int:
        start = part - part % self._segment_bytes
        return min(part + self._part_bytes, start + self._segment_bytes)

    def _is_part(self, pos: int) -> bool:
        return pos % self._segment_bytes % self._part_bytes == 0

    @staticmethod
    def _part_of(path: str) -> int:
        return int(os.path.basename(path).partition(".")[0])


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
