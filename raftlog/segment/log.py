"""The replicated log of one replica on its disk.

Theory of operation. `SegmentLog` belongs to the event loop's thread and always has the log's future state: it assigns
positions, frames entries, and keeps recent ones in memory. Writing is asynchronous: `submit` passes everything since
the last call to the writer as one operation with a ticket. Until the ticket is done the entries are read from memory,
so only `durable_pos` tells which of them are on disk yet.

Files: ``LOCK`` (the owner of the directory), ``meta`` (term, vote, markers), and segments named by physical offset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import msgspec

from raftlog.log_numbers import NO_INDEX, LogIndex, Term
from raftlog.segment.closed_file_index import closed_files
from raftlog.segment.codec import (
    CONFIG,
    HEADER_BYTES,
    EntryRef,
    TailEntry,
    chain_after,
    frame,
    place,
)
from raftlog.segment.directory import OpenDirectory, open_directory
from raftlog.segment.disk import Disk
from raftlog.segment.errors import LogDiverged, SegmentError
from raftlog.segment.files import Preallocation, SegmentFiles
from raftlog.segment.group_commit import Cut, Store, WriteOp
from raftlog.segment.index import SegmentInfo
from raftlog.segment.limits import DEFAULT, LogLimits
from raftlog.segment.log_reader import LogReads
from raftlog.segment.meta import NOTES_BYTES_MAX, Base, MetaState
from raftlog.segment.note_names import CONF
from raftlog.segment.recent_entries import Tail
from raftlog.segment.scattered_reads import PieceReader
from raftlog.segment.snapshot_install import Manifest
from raftlog.segment.verified_reads import VerifiedReads
from raftlog.segment.writer import InlineWriter, LogWriter

TAIL_BYTES_MAX: Final = 32 * 1024 * 1024


class SegmentLog(LogReads):
    """A log in segment files, by the theory above. Indexes begin at 1; positions are physical offsets in bytes.

    Attributes:
        base: index and term of the entry before the first one; (0, 0) for a log that has its beginning.
        base_pos: where the first entry begins, or will begin: the start of a file.
        base_chain: the chain before the first entry.
        first_index, last_index, last_term: of the existing entries; ``last_index`` is ``first_index - 1`` when empty.
        end_pos: end of the last entry. Where the next one begins depends on its size, see `position_for`.
        chain: the chain after the last entry.
        meta: the content of the vote file at the opening, with term and vote as submitted since.
        boot_id: of the machine, at the opening.
        store_id: random name of the directory, drawn when it was created.
        stopped_unclean: the last process that had the log open did not close it: it was killed or failed, or
            the machine lost power. Entries that it had accepted and not synced may be lost.
        scrubs, scrubbed_bytes: how often everything was read again and verified since the opening, and how many bytes
            were intact then.
    """

    def __init__(self, directory: OpenDirectory, writer: LogWriter, tail_bytes_max: int) -> None:
        self._set_base(directory.meta_state.starts_at)
        self.last_index = directory.last.index
        self.last_term = directory.last.term
        self.end_pos = directory.last.pos + directory.last.size
        self.chain = directory.last.chain
        self.meta: MetaState = directory.meta_state
        self.store_id = directory.meta_state.store_id
        self.stopped_unclean = directory.stopped_unclean
        self.scrubs = self.scrubbed_bytes = 0
        self._directory = directory
        self._files = directory.files
        self._index = directory.index
        self._segment_bytes = directory.files.segment_bytes
        self._writer = writer
        self._tail = Tail(self.last_index + 1, tail_bytes_max)
        self.entry = self._tail.entry
        self._reads = VerifiedReads(self._files, self._index, self._tail, self.end_pos, lambda: self._durable_pos)
        self._pieces = PieceReader(self._reads, self._segment_bytes, self._tail, self._files.limits)
        self._pending_entries: list[TailEntry] = []
        self._pending_bytes = 0
        self._cut: Cut | None = None
        self._submissions: deque[tuple[int, int, LogIndex]] = deque()
        self._oldest_seen = (0, 0.0)
        self._submitted_end = self._durable_pos = self.end_pos
        self._file_end = self._end_of_file(self.end_pos)
        self._submitted_index = self._durable_index = self.last_index
        self._last_ticket = 0
        self._commit_hint = directory.meta_state.commit_hint
        self.boot_id = directory.meta_state.boot_id
        self._notes = dict(directory.meta_state.notes)
        self._notes_changed = False
        self._base_moved = False
        self._closed = False
        writer.start(Store(directory.files, directory.meta, self.end_pos, self.last_index, self.chain))

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        cluster_id: str,
        node_id: str,
        segment_bytes: int,
        disk: Disk,
        tail_bytes_max: int = TAIL_BYTES_MAX,
        writer: LogWriter | None = None,
        preallocation: Preallocation | None = None,
        store_id: str | None = None,
        acknowledges_unsynced: bool = False,
        limits: LogLimits = DEFAULT,
    ) -> SegmentLog:
        """Open the log in ``directory``, created if missing, and recover it.

        Args:
            segment_bytes: length of a file; equal on all replicas and for ever, since blanks depend on it.
            tail_bytes_max: how much of the newest entries stays in memory; unsynced ones always do.
            writer: not started yet; None executes every submit at once.
            preallocation: how new files get their length; None chooses by `Preallocation.for_segment`.
            store_id: name for a directory that has none yet; None draws one.
            acknowledges_unsynced: this process will acknowledge entries before they are durable. If it will, or the
                last one did, and `stopped_unclean`, then the note `ABSTAINING` is set, durably on return.

        Raises:
            DirectoryUnusable, DirectoryLocked, DirectoryMismatch: nothing was changed.
            MetaCorrupt, LogDamaged: acknowledged state is damaged; the files are left unchanged.
            StorageFailed: a disk error.
        """
        open_dir = open_directory(
            disk,
            directory,
            cluster_id=cluster_id,
            node_id=node_id,
            segment_bytes=segment_bytes,
            preallocation=preallocation or Preallocation.for_segment(segment_bytes),
            store_id=store_id,
            acknowledges_unsynced=acknowledges_unsynced,
            limits=limits,
        )
        return cls(open_dir, InlineWriter() if writer is None else writer, tail_bytes_max)

    @property
    def limits(self) -> LogLimits:
        """Return the limits that the log was opened with."""
        return self._files.limits

    @property
    def term_runs(self) -> list[tuple[LogIndex, Term]]:
        """Return a copy of the runs of entries of one term, (first index, term), both ascending."""
        return list(self._index.term_runs)

    @property
    def configs(self) -> list[tuple[LogIndex, bytes]]:
        """Index and body of the existing configuration entries, ascending; a copy."""
        return list(self._index.configs)

    @property
    def notes(self) -> Mapping[str, bytes]:
        """Small values stored with term and vote, as set last. The log does not interpret them."""
        return MappingProxyType(self._notes)

    def set_note(self, key: str, value: bytes | None) -> None:
        """Set a note, or remove it with None. It is durable when the ticket of the next `submit` is."""
        if self._notes.get(key) == value:
            return
        if value is None:
            del self._notes[key]
        else:
            self._notes[key] = value
        nbytes = sum(len(key) + len(value) for key, value in self._notes.items())
        assert nbytes <= NOTES_BYTES_MAX, f"notes of {nbytes} bytes, there is room for {NOTES_BYTES_MAX}"
        self._notes_changed = True

    @property
    def beginning(self) -> Base:
        """Return the base of the log, with the chain there."""
        return self._base

    @property
    def commit_hint(self) -> LogIndex:
        """Return the highest index that a `submit` has reported as committed."""
        return self._commit_hint

    @property
    def last_ticket(self) -> int:
        """Return the ticket of the last `submit`; 0 before the first."""
        return self._last_ticket

    @property
    def opening_state(self) -> str:
        """Describe the state in which the log was when it was opened."""
        return self._directory.opening_state

    @property
    def files(self) -> SegmentFiles:
        """Return the underlying files, for verification; read only."""
        return self._files

    @property
    def durable_pos(self) -> int:
        """Return the end of the last entry whose ticket is done. Everything below is durable."""
        self._update_durable()
        return self._durable_pos

    @property
    def durable_index(self) -> LogIndex:
        """Return the index of the last entry whose ticket is done."""
        self._update_durable()
        return self._durable_index

    def oldest_unsynced_age(self, now: float) -> float:
        """Seconds for which the oldest unfinished submit has been seen waiting; 0 if all are done.

        It counts from the first call that saw it, so no clock is needed here and ``now`` may come from any: call it a
        few times within the relevant age.
        """
        self._update_durable()
        if not self._submissions:
            return 0.0
        if self._oldest_seen[0] != (oldest := self._submissions[0][0]):
            self._oldest_seen = (oldest, now)
        return max(0.0, now - self._oldest_seen[1])

    def position_for(self, size: int) -> int:
        """The position at which the next entry of ``size`` bytes (including the header) would begin.

        Raises:
            ValueError: it fits into no segment.
        """
        return place(self.end_pos, size, self._segment_bytes)

    def append(self, kind: int, index: LogIndex, term: Term, body: bytes, annotation: bytes = b"") -> TailEntry:
        """Frame a new entry at the end of the log; the next `submit` passes it to the writer.

        Raises:
            ValueError: it fits into no segment; nothing happened.
        """
        return self.append_built(kind, index, term, len(body), lambda pos: (body, annotation))

    def append_built(
        self, kind: int, index: LogIndex, term: Term, nbytes: int, build: Callable[[int], tuple[bytes, bytes]]
    ) -> TailEntry:
        """Works like `append`, for a body of ``nbytes`` bytes that depends on its place.

        ``build(physical_offset)`` is called at once with the offset of the body's first byte, and returns the body and
        its annotation.
        """
        assert index == self.last_index + 1, f"entry {index} behind {self.last_index}"
        size = HEADER_BYTES + nbytes
        pos = place(self.end_pos, size, self._segment_bytes)
        body, annotation = build(pos + HEADER_BYTES)
        assert len(body) == nbytes, f"{nbytes} bytes were announced, {len(body)} were built"
        header, chain = frame(kind, index, term, pos, body, self.chain)
        entry = TailEntry(index, term, kind, pos, size, chain, header, body, annotation)
        self._push(entry)
        return entry

    def append_framed(self, ref: EntryRef, header: bytes, body: bytes, annotation: bytes = b"") -> TailEntry:
        """Append an entry that another replica framed and `scan_entries` verified.

        Raises:
            LogDiverged: it does not continue this log, although index and term match. Nothing was appended.
        """
        size = len(header) + len(body)
        assert ref.index == self.last_index + 1, f"entry {ref.index} behind {self.last_index}"
        assert ref.size == size, f"entry {ref.index} of {ref.size} bytes comes with {size}"
        pos = place(self.end_pos, size, self._segment_bytes)
        if ref.pos != pos:
            raise LogDiverged(self._files.directory, ref.index, "position", pos, ref.pos)
        if (chain := chain_after(header, self.chain)) != ref.chain:
            raise LogDiverged(self._files.directory, ref.index, "chain", chain, ref.chain)
        entry = TailEntry(ref.index, ref.term, ref.kind, pos, size, ref.chain, header, body, annotation)
        self._push(entry)
        return entry

    def truncate(self, from_index: LogIndex) -> None:
        """Remove the entries from ``from_index`` on; the next `submit` removes them on disk, before anything new."""
        assert self.base[0] < from_index, f"cut at {from_index}, the log begins at {self.first_index}"
        assert from_index > self._commit_hint, f"cut at {from_index}, committed is {self._commit_hint}"
        if from_index > self.last_index:
            return
        self._update_durable()
        last = self._last_before(from_index - 1)
        end = last.pos + last.size
        if end < self._submitted_end:
            limit, old_end = self._submitted_end, self._submitted_end
            steps: tuple[int, ...] = ()
            if self._cut is not None:
                limit, old_end, steps = self._cut.pos, self._cut.old_end, self._cut.steps
            steps = (end, *self._index.anchors_behind(end, limit), *steps)
            self._cut = Cut(last.index, last.chain, steps, old_end)
            self._submitted_end, self._submitted_index = end, last.index
            # A write in flight counts only for the rest of it.
            self._durable_pos = min(self._durable_pos, end)
            self._durable_index = min(self._durable_index, last.index)
            self._submissions = deque(
                (ticket, min(pos, end), min(index, last.index)) for ticket, pos, index in self._submissions
            )
        while self._pending_entries and self._pending_entries[-1].index >= from_index:
            self._pending_bytes -= self._pending_entries.pop().size
        self._tail.truncate(from_index)
        self._pieces.forget()
        self._index.truncate(from_index)
        self._reads.cut(end)
        self.last_index, self.last_term, self.end_pos, self.chain = last.index, last.term, end, last.chain
        self._file_end = min(self._file_end, self._end_of_file(end))

    def segments(self) -> list[SegmentInfo]:
        """The files with entries, ascending; the last one is the active one."""
        return self._index.files(self.first_index, self.last_index, self.base_pos, self.end_pos)

    def manifest(self, commit: LogIndex, *, conf: bytes) -> Manifest:
        """Describe the log that another replica may start with instead of its own: the base and all following closed
        files that are durable here and committed, with a committed entry after them, so that whole files can be read.
        It names no snapshot.

        Args:
            commit: the highest index known to be committed.
            conf: the configuration in force at the base.

        Raises:
            StorageCorrupt, StorageFailed: as `locate`.
        """
        limit = min(commit, self.durable_index)
        closed_segments = [segment for segment in self.segments() if segment.closed and segment.last_index < limit]
        last = self.locate(closed_segments[-1].last_index) if closed_segments else self._base.ref
        return Manifest(self._base, last, conf, self._segment_bytes)

    def prefix_before(self, pos: int, bytes_max: int, conf_at: Callable[[LogIndex], bytes]) -> Manifest | None:
        """The closed files before ``pos``, the start of a file, as far back as ``bytes_max`` allows; None without any.

        Args:
            conf_at: the configuration in force after an entry.

        Raises:
            StorageCorrupt, StorageFailed: as `locate`.
        """
        behind = self._index.first_at(pos)
        if pos <= self.base_pos or behind is None or behind > self.durable_index:
            return None
        last = self.locate(behind - 1)
        starts = [segment.start for segment in self.segments() if pos - bytes_max <= segment.start < pos]
        if not starts:
            return None
        base = self._base
        if starts[0] > self.base_pos:
            first = self._index.first_at(starts[0])
            assert first is not None, f"no file with entries begins at {starts[0]}"
            before = self.locate(first - 1)
            base = Base(before.index, before.term, starts[0], before.chain)
        return Manifest(base, last, conf_at(base.index), self._segment_bytes)

    def drop_prefix(self, base_pos: int, conf: bytes, commit: LogIndex = NO_INDEX) -> None:
        """Move the beginning of the log to ``base_pos``, the start of a file above the current base whose first entry
        is durable and committed: if it could still be truncated, a smaller one might belong into the previous file.

        Readers lose everything below at once; it is deleted from the disk some time after the next `submit`.

        Args:
            conf: the configuration in force at the new base.
            commit: highest index known to be committed, if it is higher than in the last `submit`.

        Raises:
            StorageCorrupt, StorageFailed: the entry before the new base cannot be read; nothing happened.
        """
        first = self._index.first_at(base_pos)
        assert first is not None, f"no file with entries begins at {base_pos}"
        assert base_pos > self.base_pos, f"base {base_pos}, it is at {self.base_pos} already"
        self._commit_hint = max(self._commit_hint, commit)
        assert first <= self._commit_hint, f"first entry {first}, committed is {self._commit_hint}"
        assert first <= self.durable_index, f"first entry {first}, durable is {self._durable_index}"
        last = self.locate(first - 1)
        self._set_base(Base(last.index, last.term, base_pos, last.chain))
        self._base_moved = True
        self._index.drop_prefix(first)
        # From here on readers on other threads know what a missing file means.
        self._files.base_pos = base_pos
        self.set_note(CONF, conf)

    def submit(
        self,
        ticket: int,
        *,
        term: Term | None = None,
        voted_for: str | None = None,
        commit_hint: LogIndex | None = None,
    ) -> None:
        """Pass everything since the last submit to the writer, as one operation.

        Args:
            ticket: ascending; the writer reports the newest one that is durable.
            term: the new term, if term or vote changed; ``voted_for`` is the vote in it, or None.
            commit_hint: highest index known to be committed; written to disk now and then, never ahead of the log.
        """
        assert ticket > self._last_ticket, f"ticket {ticket} after {self._last_ticket}"
        assert not self._closed, f"ticket {ticket} for a closed log"
        assert term is not None or voted_for is None, f"a vote for {voted_for!r} without its term"
        self._last_ticket = ticket
        hard_state: tuple[Term, str | None] | None = None
        if term is not None:
            assert term >= self.meta.term, f"term {term} after {self.meta.term}"
            hard_state = (term, voted_for)
            self.meta = msgspec.structs.replace(self.meta, term=term, voted_for=voted_for)
        if commit_hint is not None and commit_hint > self._commit_hint:
            self._commit_hint = commit_hint
        entries, nbytes, cut = self._pending_entries, self._pending_bytes, self._cut
        # A new list even for an empty one: the writer's thread may read it later than the next append.
        self._pending_entries, self._pending_bytes = [], 0
        if entries:
            self._submitted_end, self._submitted_index = self.end_pos, self.last_index
        self._cut = None
        self._submissions.append((ticket, self._submitted_end, self._submitted_index))
        sidecars = self._closed_files() if self.end_pos >= self._file_end else ()
        notes = None
        if self._notes_changed:
            notes, self._notes_changed = dict(self._notes), False
        base = None
        if self._base_moved:
            base, self._base_moved = self._base, False
        self._writer.submit(WriteOp(ticket, entries, nbytes, cut, hard_state, commit_hint, notes, base, sidecars))
        if self._tail.nbytes > self._tail.nbytes_max:
            self._tail.evict(self.durable_index)

    @property
    def writer(self) -> LogWriter:
        """Return the writer that makes submitted operations durable, in order."""
        return self._writer

    def close(self, clean: bool = True) -> None:
        """Finish all submitted writes and release the directory; anything not submitted is lost.

        ``clean`` promises the next start that nothing can be torn. Waits for the disk. Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._writer.close(clean=clean)
        finally:
            self._directory.close()

    def check_invariants(self) -> None:
        """Assert that the bookkeeping is consistent; slow, for tests."""
        self._update_durable()
        assert self._durable_pos <= self._submitted_end <= self.end_pos, (
            f"durable {self._durable_pos}, submitted {self._submitted_end}, end {self.end_pos}"
        )
        assert self._durable_index <= self._submitted_index <= self.last_index, (
            f"durable {self._durable_index}, submitted {self._submitted_index}, last {self.last_index}"
        )
        tail = self._tail
        tail.check()
        assert tail.first + len(tail.entries) == self.last_index + 1, (
            f"{len(tail.entries)} entries from {tail.first} in memory, last is {self.last_index}"
        )
        assert not tail.entries or tail.first <= self._durable_index + 1, (
            f"entries from {tail.first} in memory, durable is {self._durable_index}"
        )
        assert self._pending_bytes == sum(entry.size for entry in self._pending_entries), (
            f"pending is not {self._pending_bytes} bytes"
        )
        runs = self.term_runs
        assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(runs)), f"runs {runs}"
        last_term = self._index.term_at(self.last_index) or self.base[1]
        assert last_term == self.last_term, f"last term {self.last_term}, runs {runs}"

    def _closed_files(self) -> Sequence[tuple[int, bytes]]:
        start, self._file_end = self._file_end - self._segment_bytes, self._end_of_file(self.end_pos)
        try:
            return closed_files(self._index, start, self.end_pos, self._segment_bytes, self._last_before)
        except SegmentError:
            # Indexes of closed files only save time. Reads of the damaged place report it.
            return ()

    def _end_of_file(self, pos: int) -> int:
        return self._files.start_of(pos) + self._segment_bytes

    def _set_base(self, base: Base) -> None:
        self._base = base
        self.base = (base.index, base.term)
        self.base_pos, self.base_chain = base.pos, base.chain
        self.first_index = base.index + 1

    def _push(self, entry: TailEntry) -> None:
        assert entry.term >= self.last_term, f"entry of term {entry.term} behind {self.last_term}"
        self._index.append(entry.index, entry.term, entry.pos)
        if entry.kind == CONFIG:
            self._index.add_config(entry.index, entry.body)
        self._tail.push(entry)
        self._pending_entries.append(entry)
        self._pending_bytes += entry.size
        self.last_index = entry.index
        self.last_term = entry.term
        self.end_pos = entry.pos + entry.size
        self.chain = entry.chain

    def _update_durable(self) -> None:
        """Process finished tickets. The writer's thread only sets a number."""
        ticket = self._writer.done_ticket
        writes = self._submissions
        while writes and writes[0][0] <= ticket:
            _, self._durable_pos, self._durable_index = writes.popleft()
