"""Reads parts of an archive by their place in the log, for brokers: from a disk cache, or from the store.

Nothing is returned that was not verified, wherever it comes from. The manifest must be of this log; it names each index
with its SHA-256; an index has the chain before each of its blocks, and each entry of a block must continue it up to the
next one. A file is of this log only if the next one begins with the chain with which it ends, and so on up to a place
that the group or the replica knows (`KnownLog`): the archive of a former group of the same name is sound, too.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from mq.store.archive.disk_cache import BlockCache
from mq.store.archive.file_index import FileIndex, decode_block_places, decode_file_index
from raftlog.segment.backup import Backup
from raftlog.segment.backup_manifest import BackupManifest, StoredObject
from raftlog.segment.backup_store import BackupDamaged, BackupRefused, BackupStore, NotStored
from raftlog.segment.codec import verify_entry
from raftlog.segment.errors import EntryTooNew, FormatTooNew, FrameCorrupt
from raftlog.segment.meta import Base

_T = TypeVar("_T")

REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Missing blocks that follow each other are one request up to this size, unless a block is larger."""
MANIFEST_SECONDS: Final = 5.0
"""The manifest is read again at most this often, when it lacks something."""


class RangeStore(BackupStore, Protocol):
    """A backup store from which several threads may read ranges of objects at once."""

    def read_range(self, name: str, length: int, offset: int) -> bytes:
        """Read bytes of an object, fewer only at its end. For any thread. Raises NotStored, StoreFailed."""


@dataclass(frozen=True, slots=True)
class KnownLog:
    """The identity and extent of the group's log, by which an archive of another log is refused.

    ``end`` returns where the archived part ends, as the group knows it, ``begin`` where the local log begins. Both may
    be called in any thread.
    """

    identity: str
    segment_bytes: int
    end: Callable[[], Base]
    begin: Callable[[], Base]


@dataclass(frozen=True, slots=True)
class _BlockTable:
    """The places of the blocks of a file. ``befores`` has the log before each block, and behind the last one."""

    stored: StoredObject
    begins: Sequence[int]
    sizes: Sequence[int]
    befores: Sequence[Base]


class ColdBlocks:
    """Reads and verifies the blocks of one archive. For any thread.

    Args:
        open_store: called once, before the first read. Raises SegmentError.
        blocks_max: places of blocks in memory.
        clock: monotonic seconds.

    Attributes:
        requests, hits: ranges that were read from the store, and blocks that the cache had.
    """

    def __init__(
        self,
        open_store: Callable[[], RangeStore],
        known_log: KnownLog,
        cache: BlockCache,
        *,
        blocks_max: int,
        clock: Callable[[], float],
    ) -> None:
        self._open_store = open_store
        self._known_log = known_log
        self._cache = cache
        self._blocks_max = blocks_max
        self._clock = clock
        self._lock = threading.Lock()
        self._store: RangeStore | None = None
        self._manifest: BackupManifest | None = None
        self._files: dict[int, StoredObject] = {}
        self._read_at = float("-inf")
        self._read_for = 0
        """The end of the archive as the group knew it when the manifest was read."""
        self._is_doubtful = False
        """Something that the manifest names was damaged, or of another log: perhaps it has been mended since."""
        self._proven: dict[int, Base] = {}
        """The log at the beginnings of files, by physical offset, as far as it was followed from a known place."""
        self._tables: OrderedDict[str, _BlockTable] = OrderedDict()
        self._blocks = 0
        self.requests = self.hits = 0

    def fetch(self, begin: int, stop: int) -> list[tuple[int, bytes]]:
        """Return the archived blocks that overlap a range of physical offsets, in order.

        Raises:
            BackupRefused: there is no archive, or it belongs to another log.
            BackupDamaged, FormatTooNew: something of it is missing, damaged, or of a newer version.
            StoreFailed: the store does not answer, or refuses.
        """
        assert 0 <= begin <= stop, f"the range from {begin} to {stop}"
        size = self._known_log.segment_bytes
        blocks: list[tuple[int, bytes]] = []
        for start in range(begin - begin % size, stop, size):
            blocks += self._again(start, partial(self._of_file, start, begin, stop))
        return blocks

    def index_of(self, start: int) -> FileIndex:
        """Return the verified index of the file that begins at a physical offset. Raises as `fetch`."""
        return self._again(start, partial(self._read_index, start))

    def close(self) -> None:
        """Close the connections to the store. Release the archive; a read that is under way may fail."""
        if self._store is not None:
            self._store.close()

    @property
    def manifest_begin(self) -> int | None:
        """The physical offset at which the archive began when its manifest was last read; None before."""
        return None if self._manifest is None else self._manifest.base.pos

    def _again(self, start: int, read: Callable[[], _T]) -> _T:
        """Read something of the file at ``start``, a second time if a run has replaced an object. Raises as `fetch`."""
        try:
            try:
                return read()
            except NotStored as error:
                if not self._forget(start):
                    raise BackupDamaged(error.path, "it is missing") from error
                try:
                    return read()
                except NotStored as again:
                    raise BackupDamaged(again.path, "it is missing") from again
        except BackupDamaged:
            self._is_doubtful = True
            raise

    def _read_index(self, start: int) -> FileIndex:
        file = self._find_file(start, is_needed=True)
        assert file is not None, "a file that is needed is there, or refused"
        self._table(file)
        return decode_file_index(*self._index_content(file))

    def _of_file(self, start: int, begin: int, stop: int) -> list[tuple[int, bytes]]:
        file = self._find_file(start, is_needed=start <= begin)
        if file is None:
            return []
        table = self._table(file)
        first = max(bisect_right(table.begins, begin) - 1, 0)
        numbers = [number for number in range(first, len(table.begins)) if table.begins[number] < stop]
        blocks: dict[int, bytes] = {}
        for number in numbers:
            name = _block_name(file, table.begins[number])
            if (data := self._cache.get(name)) is not None:
                try:
                    self._verify(table, number, data)
                except BackupDamaged:
                    self._cache.drop(name)
                else:
                    self.hits += 1
                    blocks[number] = data
        for group in _requests(table, [number for number in numbers if number not in blocks]):
            blocks |= self._load(table, group)
        assert len(blocks) == len(numbers), f"{len(blocks)} of {len(numbers)} blocks from {begin} to {stop}"
        return [(table.begins[number], blocks[number]) for number in numbers]

    def _load(self, table: _BlockTable, numbers: Sequence[int]) -> dict[int, bytes]:
        """Consecutive blocks from the store."""
        assert numbers[-1] - numbers[0] == len(numbers) - 1, f"blocks {numbers} do not follow each other"
        file = table.stored
        begin = table.begins[numbers[0]]
        nbytes = sum(table.sizes[number] for number in numbers)
        data = self._get_store().read_range(file.name, nbytes, begin - file.start)
        self.requests += 1
        blocks: dict[int, bytes] = {}
        for number in numbers:
            at = table.begins[number] - begin
            block = data[at : at + table.sizes[number]]
            self._verify(table, number, block)
            self._cache.put(_block_name(file, table.begins[number]), block)
            blocks[number] = block
        return blocks

    def _verify(self, table: _BlockTable, number: int, data: bytes) -> None:
        """Check every entry of a block. Raises BackupDamaged, FormatTooNew."""
        assert 0 <= number < len(table.begins) < len(table.befores), f"block {number} of {len(table.begins)}"
        path = self._get_store().path(table.stored.name)
        pos, nbytes = table.begins[number], table.sizes[number]
        if len(data) != nbytes:
            raise BackupDamaged(path, f"{len(data)} bytes were read at {pos}, {nbytes} were written")
        last, after = table.befores[number].ref, table.befores[number + 1]
        view, at = memoryview(data), 0
        try:
            while at < nbytes:
                last = verify_entry(view, at, last.index + 1, last.term, pos + at, last.chain)
                at += last.size
        except EntryTooNew as error:
            raise FormatTooNew(path, f"the entry after {last.index}", error.found, error.newest) from error
        except FrameCorrupt as error:
            raise BackupDamaged(path, str(error)) from error
        if (last.index, last.term, last.chain) != (after.index, after.term, after.chain):
            raise BackupDamaged(path, f"its last entry, {last.index}, differs from the one in its index")

    # -- manifest and indexes ------------------------------------------------------------------------------------------

    def _get_store(self) -> RangeStore:
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def _find_file(self, start: int, *, is_needed: bool) -> StoredObject | None:
        """The object of the file that begins at a physical offset. Raises as `fetch`."""
        end = self._known_log.end()
        if start >= end.pos and not is_needed:
            return None  # the manifest may name it already; it is not known yet whether it is of this log
        with self._lock:
            self._get_store()
            is_old = self._clock() >= self._read_at + MANIFEST_SECONDS
            is_behind = start not in self._files and (is_old or start < end.pos > self._read_for)
            if is_behind or (is_old and self._is_doubtful):
                self._read_manifest()
            if start in self._files:
                return self._files[start]
            manifest = self._manifest
        if not is_needed:
            return None
        if manifest is not None and start >= manifest.archived.pos and start < end.pos:
            reason = (
                f"it ends at {manifest.archived.pos}, and the group has archived its log up to {end.pos}: "
                "somebody has replaced it by an older one"
            )
        else:
            reason = f"it does not have the log file that begins at {start}"
        raise BackupDamaged(self._get_store().path("manifest.json"), reason)

    def _read_manifest(self) -> None:
        store = self._get_store()
        known_log = self._known_log
        known_pos = known_log.end().pos
        manifest = Backup(store).manifest
        if manifest.objects is msgspec.UNSET:
            raise BackupRefused(store.name, "it is a backup in a directory, not an archive")
        if (manifest.cluster_id, manifest.segment_bytes) != (known_log.identity, known_log.segment_bytes):
            raise BackupRefused(
                store.name,
                f"it belongs to log {manifest.cluster_id} (segment_bytes {manifest.segment_bytes}); expected log "
                f"{known_log.identity} (segment_bytes {known_log.segment_bytes})",
            )
        end, archived_end = known_log.end(), manifest.archived
        if archived_end.pos == end.pos and archived_end != end:
            raise BackupRefused(store.name, f"its entry {end.index} differs from the one of this group")
        self._manifest = manifest
        self._files = {each.start: each for each in manifest.objects.files if each.start < archived_end.pos}
        self._read_at, self._read_for, self._is_doubtful = self._clock(), known_pos, False

    def _forget(self, start: int) -> bool:
        """Read the manifest again after an object was missing; returns whether it names another object now."""
        with self._lock:
            before = self._files.get(start)
            self._read_manifest()
            return self._files.get(start, before) != before

    def _table(self, file: StoredObject) -> _BlockTable:
        """Return the places of the blocks of a file of this log. Raises as `fetch`."""
        assert file.start % self._known_log.segment_bytes == 0, f"{file.name} is the file at {file.start}"
        if (kept_table := self._kept_table(file)) is not None:
            return kept_table
        newer = [self._read_table(file)]
        while (proven := self._proven_at(newer[-1].befores[-1].pos)) is None:
            following = self._find_file(newer[-1].befores[-1].pos, is_needed=True)
            assert following is not None, "a file that is needed is there, or refused"
            newer.append(self._read_table(following))
        for table in reversed(newer):
            if table.befores[-1] != proven:
                path = self._get_store().path(table.stored.name)
                raise BackupDamaged(path, f"its last entry {table.befores[-1].index} differs from the one of this log")
            proven = table.befores[0]
            self._keep(table)
        return newer[0]

    def _kept_table(self, file: StoredObject) -> _BlockTable | None:
        if file.index is None:
            return None
        with self._lock:
            if (table := self._tables.get(file.index.name)) is not None:
                self._tables.move_to_end(file.index.name)
            return table

    def _proven_at(self, pos: int) -> Base | None:
        """The log at the beginning of a file; None if it is not known yet."""
        for base in (self._known_log.end(), self._known_log.begin()):
            if base.pos == pos:
                return base
        return self._proven.get(pos)

    def _keep(self, table: _BlockTable) -> None:
        """Keep a table that is of this log."""
        assert table.stored.index is not None, f"{table.stored.name} has no index"
        begin = table.befores[0]
        with self._lock:
            self._proven[begin.pos] = begin
            if table.stored.index.name not in self._tables:  # another thread may have been faster
                self._tables[table.stored.index.name] = table
                self._blocks += len(table.begins)
            while self._blocks > self._blocks_max and len(self._tables) > 1:
                _, oldest = self._tables.popitem(last=False)
                self._blocks -= len(oldest.begins)

    def _read_table(self, file: StoredObject) -> _BlockTable:
        """Read the table of a file that the manifest names, of whatever log. Raises as `fetch`."""
        content, path = self._index_content(file)
        places, end = decode_block_places(content, path)
        befores = [before for before, _ in places]
        if befores[0].pos != file.start or end.pos != file.start + self._known_log.segment_bytes:
            raise BackupDamaged(path, f"it is not the index of the file at {file.start}")
        return _BlockTable(file, [each.pos for each in befores], [nbytes for _, nbytes in places], [*befores, end])

    def _index_content(self, file: StoredObject) -> tuple[bytes, str]:
        """The content of an index, as the manifest has it, and its name in messages. Raises as `fetch`."""
        index = file.index
        store = self._get_store()
        if index is None:
            raise BackupRefused(
                store.path(file.name),
                "it has no index yet, since `raftmq backup` has stored it: the archiving replica will add it",
            )
        name, path = f"{index.sha256[:16]}.{file.start:020d}", store.path(index.name)
        content = self._cache.get(name)
        if content is None or hashlib.sha256(content).hexdigest() != index.sha256:
            content = store.read_range(index.name, index.nbytes, 0)
            if hashlib.sha256(content).hexdigest() != index.sha256:
                raise BackupDamaged(path, "its content differs from what was written")
            self._cache.put(name, content)
        return content, path


def _block_name(file: StoredObject, begin: int) -> str:
    return f"{file.sha256[:16]}.{begin:020d}"


def _requests(table: _BlockTable, numbers: Sequence[int]) -> Iterator[list[int]]:
    """Group consecutive blocks that one request reads together."""
    group: list[int] = []
    nbytes = 0
    for number in numbers:
        if group and (number != group[-1] + 1 or nbytes + table.sizes[number] > REQUEST_BYTES_MAX):
            yield group
            group, nbytes = [], 0
        group.append(number)
        nbytes += table.sizes[number]
    if group:
        yield group
