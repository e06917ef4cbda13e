"""Searches messages by key: in files of the key index, and in parts of the log that have no file.

The newest messages are searched first. A part of the log with a file costs two small reads. In a part without one, the
bytes of the key are searched, and only records around matches are parsed. Runs in a worker thread; the necessary state
of the growing log is captured before, on the event loop's thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mq.protocol.messages.records import FIXED
from mq.store.key_index.file import KeyFile, KeyFileDamaged, Read
from mq.store.key_index.limits import DEFAULT, KeyIndexLimits
from mq.store.key_index.record_keys import EntriesDamaged, KeyedRecord, bodies_in, has_key, key_hash, records_in
from raftlog.segment import EntryGone

_SIZE: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """The messages to find: times are epoch milliseconds, both inclusive. With ``unique``, the key is a unique key."""

    topic: bytes
    key: bytes
    count_max: int
    begin_ms: int
    end_ms: int
    unique: bool


@dataclass(frozen=True, slots=True)
class UnindexedPart:
    """Entries from ``begin`` to ``end`` without a file; ``anchors`` are the positions of some entries in between."""

    begin: int
    end: int
    anchors: Sequence[int]


@dataclass(slots=True)
class SearchResult:
    """The result of a `KeySearch`; ``records`` has the newest messages, oldest first."""

    records: list[bytes] = field(default_factory=list)
    is_complete: bool = True
    """Whether everything was searched. Irrelevant if enough messages were found."""
    damaged: list[str] = field(default_factory=list)
    """Paths of index files to build again."""
    faults: list[str] = field(default_factory=list)
    """The errors in them."""


@dataclass(frozen=True, slots=True)
class KeySearch:
    """Searches the messages with a key, in a captured state of the index and the log.

    Args:
        read: of the durable log; for any thread.
        newest: bodies of committed entries that may not be on this disk yet, ascending.
        unindexed, indexed: earlier parts of the log without a file, and the physical offsets in the names of files.
        path_of: the path of such a file.
        behind: where the part that begins at a physical offset ends.
        is_complete: whether this covers all of the log.
        is_over: whether the search takes too long.
        limits: the limits of the index.
        checks_files: whether files are compared with the log before they are believed, also where they have no match:
            that reads the log.
        times: of parts whose files were opened before, first and last store time by their physical offset: a search
            for another time does not open them. Searches add to it.
    """

    query: KeyQuery
    read: Read
    newest: Sequence[bytes]
    unindexed: Sequence[UnindexedPart]
    indexed: Sequence[int]
    path_of: Callable[[int], str]
    behind: Callable[[int], int]
    is_complete: bool
    is_over: Callable[[], bool]
    limits: KeyIndexLimits = DEFAULT
    checks_files: bool = True
    times: dict[int, tuple[int, int]] = field(default_factory=dict)

    def run(self) -> SearchResult:
        """Search. Raises raftlog.SegmentError or EntriesDamaged if the log cannot be read."""
        return _RunningSearch(self).run()


class _RunningSearch:
    def __init__(self, search: KeySearch) -> None:
        self._search = search
        self._query = search.query
        self._limits = search.limits
        self._result = SearchResult(is_complete=search.is_complete)
        self._newest_first: list[bytes] = []
        self._nbytes = 0
        self._candidates = 0
        self._hash = key_hash(search.query.topic, search.query.key)

    def run(self) -> SearchResult:
        search = self._search
        for body in reversed(search.newest):
            if not self._is_done():
                self._take_wanted(body, records_in(body, 0, len(body)))
        parts: dict[int, UnindexedPart | None] = dict.fromkeys(search.indexed)
        parts.update((part.begin, part) for part in search.unindexed)
        for begin in sorted(parts, reverse=True):
            if self._is_done():
                break
            try:
                if (part := parts[begin]) is None:
                    if not self._is_of_another_time(begin):
                        self._search_file(begin)
                else:
                    self._search_log(part)
            except EntryGone:
                pass  # deleted in the meantime
        count, count_max = len(self._newest_first), max(self._query.count_max, 0)
        assert count <= count_max, f"{count} messages were found; maximum: {count_max}"
        self._result.records = self._newest_first[::-1]
        return self._result

    def _is_done(self) -> bool:
        if len(self._newest_first) >= self._query.count_max or self._nbytes >= self._limits.answer_bytes_max:
            return True
        if self._candidates >= self._limits.candidates_max or self._search.is_over():
            self._result.is_complete = False
            return True
        return False

    def _is_of_another_time(self, begin: int) -> bool:
        first_ms, last_ms = self._search.times.get(begin, (self._query.begin_ms, self._query.end_ms))
        return last_ms < self._query.begin_ms or first_ms > self._query.end_ms

    def _search_file(self, begin: int) -> None:
        path = self._search.path_of(begin)
        try:
            file = KeyFile(path)
            try:
                file.check_part(begin, self._search.behind(begin))
                self._search.times[begin] = file.scope.first_ms, file.scope.last_ms
                if not self._is_of_another_time(begin):
                    self._search_keys(file)
            finally:
                file.close()
        except (KeyFileDamaged, OSError) as error:
            self._is_damaged(path, str(error))
        except EntriesDamaged as error:
            if self._search.checks_files:
                raise
            # What the archive returns is verified, so the file is about another log.
            self._is_damaged(path, f"{path}: it names a place without a record: {error}")

    def _is_damaged(self, path: str, fault: str) -> None:
        self._result.is_complete = False
        self._result.damaged.append(path)
        self._result.faults.append(fault)

    def _search_keys(self, file: KeyFile) -> None:
        read, scope = self._search.read, file.scope
        if self._search.checks_files:
            file.check_log(read)
        before = -1
        for place in file.places(self._hash):
            if place == before:
                continue  # two keys of one record with the same hash
            before = place
            self._candidates += 1
            head = read(place, _SIZE.size)
            size = _SIZE.unpack(head)[0] if len(head) == _SIZE.size else 0
            if not FIXED <= size <= scope.end - place:
                raise EntriesDamaged(0, f"a record of {size} bytes at {place}")
            data = read(place, size)
            if len(data) < size:
                raise EntriesDamaged(0, f"{len(data)} bytes of a record of {size} bytes at {place}")
            self._take_wanted(data, records_in(data, 0, size))
            if self._is_done():
                return

    def _search_log(self, part: UnindexedPart) -> None:
        end = part.end
        for begin in [*reversed(part.anchors), part.begin]:
            if end - begin < self._limits.chunk_bytes and begin > part.begin:
                continue
            if self._is_done():
                return
            assert part.begin <= begin <= end <= part.end, f"{begin} to {end} is searched of {part}"
            self._search_entries(self._search.read(begin, end - begin))
            end = begin

    def _search_entries(self, data: bytes) -> None:
        key = self._query.key
        if data.find(key) < 0:
            return
        for at, end in [*bodies_in(data)][::-1]:
            if data.find(key, at, end) >= 0:
                self._take_wanted(data, records_in(data, at, end))

    def _take_wanted(self, data: bytes, records: Iterable[KeyedRecord]) -> None:
        query, bytes_max = self._query, self._limits.answer_bytes_max
        matches = [
            record
            for record in records
            if has_key(data, record, query.topic, query.key, unique=query.unique)
            and query.begin_ms <= record.store_ms <= query.end_ms
        ]
        for record in reversed(matches):
            nbytes = record.end - record.at
            if len(self._newest_first) == query.count_max or (self._nbytes and self._nbytes + nbytes > bytes_max):
                self._nbytes = max(self._nbytes, bytes_max)
                return
            self._newest_first.append(data[record.at : record.end])
            self._nbytes += nbytes
