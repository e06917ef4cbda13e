"""Reads of a log: positions and bytes of its entries, from memory or disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from raftlog.log_numbers import NO_INDEX, LogIndex, Term
from raftlog.segment.codec import EntryRef, TailEntry, chain_after
from raftlog.segment.entry_reader import StoredRun, find_entry, find_entry_at, read_behind, read_run
from raftlog.segment.errors import EntryGone, StorageCorrupt
from raftlog.segment.files import SegmentFiles
from raftlog.segment.index import SparseIndex
from raftlog.segment.meta import Base
from raftlog.segment.recent_entries import Tail
from raftlog.segment.scattered_reads import Buffer, Piece, PieceReader, read_across
from raftlog.segment.verified_reads import OnDamage, VerifiedReads, VerifiedRun


class LogReads:
    """The reading half of `SegmentLog`, which sets these attributes.

    Attributes:
        entry: returns an entry that is still in memory, or None.
    """

    entry: Callable[[LogIndex], TailEntry | None]

    base: tuple[LogIndex, Term]
    base_pos: int
    base_chain: int
    first_index: LogIndex
    last_index: LogIndex
    end_pos: int
    chain: int
    _base: Base
    _files: SegmentFiles
    _index: SparseIndex
    _tail: Tail
    _pieces: PieceReader
    _reads: VerifiedReads

    @property
    def memory_pos(self) -> int:
        """The physical offset from which on entries are read from memory; everything before it is synced."""
        pos = self._tail.pos
        return self.end_pos if pos is None else pos

    def locate(self, index: LogIndex) -> EntryRef:
        """Find a present entry's position. Reads the disk unless the entry is in memory.

        Raises:
            EntryGone: it is below the base.
            StorageCorrupt, StorageFailed: its header cannot be read.
        """
        self._check_index(index)
        if (entry := self.entry(index)) is not None:
            return EntryRef(entry.index, entry.term, entry.kind, entry.pos, entry.size, entry.chain)
        try:
            return find_entry(self._files, *self._index.anchor(index), index)
        except StorageCorrupt as damage:
            self._reads.on_damage(damage)
            raise

    def entry_at(self, pos: int) -> EntryRef | None:
        """The entry that contains the byte at the physical offset ``pos``; None if there is none.

        Raises:
            StorageCorrupt, StorageFailed: a header cannot be read.
        """
        if not self.base_pos <= pos < self.end_pos:
            return None
        if (entry := self._tail.entry_at(pos)) is not None:
            ref = EntryRef(entry.index, entry.term, entry.kind, entry.pos, entry.size, entry.chain)
        else:
            index, anchor_pos, behind = self._index.anchor_at(pos)
            last = min(behind or self._tail.first, self._tail.first) - 1
            try:
                ref = find_entry_at(self._files, index, anchor_pos, last, pos)
            except StorageCorrupt as damage:
                self._reads.on_damage(damage)
                raise
        return ref if ref.pos <= pos < ref.pos + ref.size else None

    def anchors(self, pos: int, end: int) -> list[int]:
        """Positions of some entries after ``pos`` and before ``end``, ascending, about 64 KiB apart."""
        return self._index.anchors_behind(pos, end)

    def chain_at(self, index: LogIndex) -> int:
        """Return the chain after entry ``index``, or at the base.

        Raises:
            EntryGone: the entry is below the base.
            StorageCorrupt, StorageFailed: as `locate`.
        """
        if index == self.last_index:
            return self.chain
        if index == self.first_index - 1:
            return self.base_chain
        if index >= self.first_index and (entry := self.entry(index)) is not None:
            return entry.chain
        ref = self.locate(index)
        # A header alone proves nothing; the next entry in memory reveals damage before a peer does.
        if (entry := self.entry(index + 1)) is not None and chain_after(entry.header, ref.chain) != entry.chain:
            path = self._files.path(self._files.start_of(ref.pos))
            raise StorageCorrupt(path, ref.pos, f"entry {index} does not link to the next")
        return ref.chain

    def read_entries(self, first_index: LogIndex, bytes_max: int) -> tuple[list[EntryRef], bytes]:
        """Entries from ``first_index`` on, back to back as they travel, without blanks.

        As many complete ones as fit into ``bytes_max``, but at least one. Those read from disk are verified.

        Raises:
            EntryGone: the first one is below the base.
            StorageCorrupt: one of them is damaged.
            StorageFailed: a disk error.
        """
        self._check_index(first_index)
        refs: list[EntryRef] = []
        parts: list[bytes] = []
        index, room = first_index, bytes_max
        previous: EntryRef | None = None
        while index <= self.last_index:
            if (entry := self.entry(index)) is not None:
                if refs and entry.size > room:
                    break
                refs.append(EntryRef(entry.index, entry.term, entry.kind, entry.pos, entry.size, entry.chain))
                parts += (entry.header, entry.body)
                room -= entry.size
                index += 1
                continue
            if previous is None:
                previous = self._last_before(index - 1)
            run, data = read_run(self._files, previous, self._tail.first, room, at_least_one=not refs)
            if not run:
                break
            refs += run
            parts.append(data)
            room -= len(data)
            previous = run[-1]
            index = previous.index + 1
        assert refs, f"no entry from {first_index} on, there are {self._range()}"
        return refs, b"".join(parts)

    def stored_reader(self, first_index: LogIndex, bytes_max: int) -> Callable[[], StoredRun] | None:
        """Return a function, for any thread, that reads like `read_entries` from ``first_index`` to the end of a file
        at most.

        None if the first entry is in memory. The function's result is only valid if the log was not truncated
        meanwhile.

        Raises:
            EntryGone: the first one is below the base.
        """
        self._check_index(first_index)
        if self.entry(first_index) is not None:
            return None
        before = first_index - 1
        base, anchor = (None, self._index.anchor(before)) if before > self.base[0] else (self._base.ref, (NO_INDEX, 0))
        return partial(read_behind, self._files, base, anchor, before, self._tail.first, bytes_max)

    def pread(self, pos: int, length: int, *, trusts_page_cache: bool = False) -> bytes:
        """Read bytes by physical offset, from memory, disk, or both.

        Bytes from disk are verified, see `verified_reads`. ``trusts_page_cache`` is only for data for consumers.

        Raises:
            EntryGone: some of them are below the base.
            StorageCorrupt: an entry is damaged.
            StorageFailed: a disk error.
        """
        if pos < self._base.pos:
            raise EntryGone(self._files.directory, "position", pos, self._base.pos)
        end = pos + length
        assert pos <= end <= self.end_pos, f"read of {pos}..{end}, the log ends at {self.end_pos}"
        tail_pos = self._tail.pos
        if tail_pos is None or end <= tail_pos:
            return self._reads.read(pos, end, trusts_page_cache=trusts_page_cache)
        if pos >= tail_pos:
            return self._tail.read(pos, end)
        return read_across(self._reads.read, self._tail, self._end_before_tail(), pos, end)

    def pread_each(self, pieces: Sequence[Piece]) -> Sequence[Buffer]:
        """Read ascending pieces, each (position, length) in one entry, like `pread` with trust in the page cache."""
        if pieces[0][0] < self._base.pos:
            raise EntryGone(self._files.directory, "position", pieces[0][0], self._base.pos)
        return self._pieces.read(pieces)

    def read_range(self, pos: int, length: int) -> bytes:
        """Read verified bytes below `durable_pos` from the files, including blanks. For any thread, unlike the rest.

        Raises:
            EntryGone: some of them are below the base.
            StorageCorrupt: an entry is damaged.
            StorageFailed: a disk error.
        """
        return self._reads.read(pos, pos + length, keeps=False)

    def read_runs(self, pos: int, length: int) -> Iterator[VerifiedRun]:
        """Bytes below `durable_pos` as runs of complete verified entries, see `VerifiedReads.runs`. For any thread.

        Raises the errors of `read_range`, also during iteration.
        """
        return self._reads.runs(pos, pos + length)

    def load(self, pos: int, length: int) -> None:
        """Verify bytes below `durable_pos` and load them into memory, so that `pread` does not wait. For any thread.

        Raises the errors of `read_range`.
        """
        self._reads.load(pos, pos + length)

    def has(self, pos: int, length: int) -> bool:
        """Whether `pread` with trust in the page cache returns these bytes without waiting for the disk."""
        return self._reads.has(pos, pos + length)

    def has_verified(self, pos: int, length: int) -> bool:
        """Whether `pread` can return these bytes from verified ones in memory, without the disk."""
        return self._reads.has_verified(pos, pos + length)

    @property
    def begin_pos(self) -> int:
        """The physical offset of the first record that can be read, as of other sources of records."""
        return self.base_pos

    @property
    def trusted_pos(self) -> int:
        """The position from which `pread` may trust the page cache; rises when that has evicted a block."""
        return self._reads.trusted_pos

    @property
    def kept_bytes(self) -> int:
        """Verified bytes of files in memory, without the newest entries."""
        return self._reads.kept_bytes

    @property
    def loaded_bytes(self) -> int:
        """Return the bytes read from files and verified since the log was opened."""
        return self._reads.loaded_bytes

    def set_damage_handler(self, on_damage: OnDamage) -> None:
        """Call ``on_damage`` whenever a read finds a damaged entry, on the reader's thread."""
        self._reads.on_damage = on_damage

    def damage_found(self, damage: StorageCorrupt) -> None:
        """Call the `set_damage_handler` callback: a reader of `stored_reader` found a damaged entry."""
        self._reads.on_damage(damage)

    def _last_before(self, index: LogIndex) -> EntryRef:
        return self.locate(index) if index > self.base[0] else self._base.ref

    def _range(self) -> str:
        return f"{self.first_index}..{self.last_index}"

    def _check_index(self, index: LogIndex) -> None:
        if index < self.first_index:
            raise EntryGone(self._files.directory, "index", index, self.first_index)
        assert index <= self.last_index, f"no entry {index}, there are {self._range()}"

    def _end_before_tail(self) -> int:
        if self._tail.first == self.first_index:
            return self._base.pos
        last, tail_pos = self.locate(self._tail.first - 1), self._tail.pos
        end = last.pos + last.size
        assert tail_pos is None or end <= tail_pos, f"entry {last.index} ends at {end}, the next begins at {tail_pos}"
        return end
