"""Group commit: writes queued operations in order, in large writes, with one sync for many of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from raftlog.log_numbers import LogIndex, Term
from raftlog.segment.codec import TailEntry, blank
from raftlog.segment.disk import Buffer
from raftlog.segment.errors import StorageFailed
from raftlog.segment.files import SegmentFiles
from raftlog.segment.meta import Base, MetaFile, MetaState

MARKER_SECONDS: Final = 0.1
"""Seconds by which ``durable_pos`` and ``commit_hint`` on disk may lag behind."""


class Cut(msgspec.Struct, frozen=True, gc=False):
    """Removes entries after ``last_index``, after which the chain is ``chain``. Submitted entries reached to
    ``old_end``.

    ``steps`` are positions of entries on disk, ascending, from the end of ``last_index`` on: where zeroing may pause.
    """

    last_index: LogIndex
    chain: int
    steps: tuple[int, ...]
    old_end: int

    @property
    def pos(self) -> int:
        """Return the end of the log after the cut."""
        return self.steps[0]


class WriteOp(msgspec.Struct, frozen=True, gc=False):
    """The work of one ticket: first the cut, then the entries. ``hard_state`` is term and vote, if they changed.

    ``notes`` are all notes, if one of them changed. ``base`` is the log's new base, if it moved: anything below is
    deleted after all the rest is done. ``closed`` are start and sidecar of files completed by these entries.
    """

    ticket: int
    entries: Sequence[TailEntry]
    nbytes: int
    cut: Cut | None = None
    hard_state: tuple[Term, str | None] | None = None
    commit_hint: LogIndex | None = None
    notes: Mapping[str, bytes] | None = None
    base: Base | None = None
    closed: Sequence[tuple[int, bytes]] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """The open files of a log after recovery: the log ends at ``end_pos`` with ``last_index`` and ``chain``."""

    files: SegmentFiles
    meta: MetaFile
    end_pos: int
    last_index: LogIndex
    chain: int


class GroupCommit:
    """Applies operations to the files. Owned by a writer thread, or by a caller in a test.

    Rules that recovery relies on:

    - no more than `LogLimits.sync_bytes_max`, or one larger entry, is written before it is synced, and all of it in
      one file; so a file is synced to its end before the next one is touched;
    - ``durable_pos`` on disk is never above what is synced: it is lowered before a cut and raised after a sync.
    """

    def __init__(self, store: Store, clock: Callable[[], float], *, prepare_ahead: bool) -> None:
        assert store.meta.state is not None, f"{store.meta.path}: no state to go on from"
        self._files = store.files
        self._meta = store.meta
        self._state: MetaState = store.meta.state
        self._segment_bytes = store.files.segment_bytes
        self._sync_bytes_max = store.files.limits.sync_bytes_max
        self._clock = clock
        self._prepare_ahead = prepare_ahead
        self._buffers: list[Buffer] = []
        self._chunk_pos = store.end_pos
        self._chunk_bytes = 0
        self._end_pos = store.end_pos
        self._last_index = store.last_index
        self._chain = store.chain
        self._durable_pos = store.end_pos
        self._durable_chain = store.chain
        self._durable_index = store.last_index
        self._commit_hint = self._state.commit_hint
        self._markers_at = clock()
        # Opening wrote one slot; the other one follows.
        self._markers_stale = True
        self._prepared_start = -1

    def apply(self, ops: Sequence[WriteOp]) -> None:
        """Carry out operations in order; all of them are durable on return.

        Raises:
            StorageFailed: the state of everything not durable before is unknown, and nothing may be applied afterwards.
        """
        state = self._state
        new_base: Base | None = None
        sidecars: list[tuple[int, bytes]] = []
        for op in ops:
            if op.hard_state is not None:
                assert op.hard_state[0] >= state.term, f"term {op.hard_state[0]} after {state.term}"
                state = msgspec.structs.replace(state, term=op.hard_state[0], voted_for=op.hard_state[1])
            if op.notes is not None:
                state = msgspec.structs.replace(state, notes=dict(op.notes))
            if op.base is not None:
                assert op.base.pos >= state.starts_at.pos, f"base {op.base.pos} after {state.starts_at.pos}"
                state = msgspec.structs.replace(state, base=op.base)
        if state is not self._state and state != self._state:
            # The term is written first: no entry may be on disk with a term that the vote file has never had.
            new_base = state.base if state.base != self._state.base else None
            self._write_meta(state)
            self._markers_stale = True
        for op in ops:
            if op.cut is not None:
                self._flush()
                self._cut(op.cut)
                sidecars = [sidecar for sidecar in sidecars if sidecar[0] + self._segment_bytes <= op.cut.pos]
            for entry in op.entries:
                self._add(entry)
            if op.commit_hint is not None and op.commit_hint > self._commit_hint:
                self._commit_hint = op.commit_hint
                self._markers_stale = True
            if op.closed:
                sidecars += op.closed
        self._flush()
        for start, sidecar in sidecars:
            end = start + self._segment_bytes
            assert end <= self._durable_pos, f"the file up to {end} is complete, durable is {self._durable_pos}"
            self._files.write_sidecar(start, sidecar)
        if new_base is not None:
            # Both slots have the new base before a file is deleted, so that damage to one of them cannot restore the
            # old one.
            self._write_meta(self._state)
            self._files.drop_below(new_base.pos)

    @property
    def end_pos(self) -> int:
        """Return the position below which everything is written and durable, between two calls of `apply`."""
        return self._end_pos

    @property
    def commit_hint(self) -> LogIndex:
        """Return the highest index that an operation has reported as committed."""
        return self._commit_hint

    def append_limit(self) -> int:
        """The position up to which another writer may write entries after `end_pos` without any other work.

        They must be synced before `record_written`, and no more than `LogLimits.sync_bytes_max` of them before all are.
        """
        start = self._files.start_of(self._end_pos)
        if not self._files.exists(start):
            return self._end_pos
        is_prepared = not self._prepare_ahead or self._prepared_start >= start
        return start + (self._segment_bytes if is_prepared else self._segment_bytes // 2)

    def record_written(self, end_pos: int, last_index: LogIndex, chain: int, commit_hint: LogIndex) -> None:
        """Note that another writer wrote entries, durably, to ``end_pos``, the last with ``last_index`` and ``chain``.

        ``commit_hint`` is the highest index known to be committed.
        """
        assert not self._buffers, f"written up to {end_pos} with unwritten entries"
        assert end_pos >= self._end_pos, f"written up to {end_pos}, the log ends at {self._end_pos}"
        if end_pos != self._end_pos:
            assert last_index > self._last_index, f"written up to entry {last_index}, {self._last_index} was there"
            self._end_pos = self._durable_pos = end_pos
            self._last_index = self._durable_index = last_index
            self._chain = self._durable_chain = chain
            self._markers_stale = True
        if commit_hint > self._commit_hint:
            self._commit_hint = commit_hint
            self._markers_stale = True

    def marker_seconds(self) -> float:
        """Seconds until `write_markers` would be due if something has changed; negative if it is late."""
        return self._markers_at + MARKER_SECONDS - self._clock()

    def marker_delay(self) -> float | None:
        """Seconds until `write_markers` is due; None while nothing has changed."""
        if not self._markers_stale:
            return None
        return max(0.0, self.marker_seconds())

    def write_markers(self) -> None:
        """Update ``durable_pos`` and ``commit_hint`` on disk. Raises `StorageFailed`."""
        self._write_meta(self._state)
        self._markers_stale = False

    def close(self, *, clean: bool) -> None:
        """Write the last markers; ``clean`` tells the next start that nothing can be torn. Raises `StorageFailed`."""
        self._write_meta(self._state, clean=clean)

    def _add(self, entry: TailEntry) -> None:
        if entry.pos != self._end_pos:
            rest = self._segment_bytes - self._end_pos % self._segment_bytes
            assert entry.pos == self._end_pos + rest, f"entry at {entry.pos}, the log ends at {self._end_pos}"
            self._begin_chunk(self._end_pos)
            self._buffers.append(blank(rest))
            self._flush()
            self._markers_at -= MARKER_SECONDS
        elif self._chunk_bytes + entry.size > self._sync_bytes_max:
            self._flush()
        self._begin_chunk(entry.pos)
        self._buffers.append(entry.header)
        self._buffers.append(entry.body)
        self._chunk_bytes += entry.size
        self._end_pos = entry.pos + entry.size
        self._last_index = entry.index
        self._chain = entry.chain

    def _begin_chunk(self, pos: int) -> None:
        if not self._buffers:
            self._chunk_pos = pos
            self._chunk_bytes = 0

    def _flush(self) -> None:
        if not self._buffers:
            return
        start = self._chunk_pos - self._chunk_pos % self._segment_bytes
        file_end = start + self._segment_bytes
        assert self._end_pos <= file_end, f"entries up to {self._end_pos} cross the end of the file at {file_end}"
        self._files.write_synced(self._chunk_pos, self._buffers)
        self._buffers.clear()
        self._chunk_bytes = 0
        self._durable_pos = self._end_pos
        self._durable_index = self._last_index
        self._durable_chain = self._chain
        self._markers_stale = True
        if self._prepare_ahead and self._prepared_start < start and self._end_pos - start > self._segment_bytes // 2:
            self._prepared_start = start
            self._files.prepare(start + self._segment_bytes)

    def _cut(self, cut: Cut) -> None:
        assert not self._buffers, f"cut at {cut.pos} with unwritten entries"
        assert cut.pos <= self._end_pos == cut.old_end, f"cut {cut} of a log that ends at {self._end_pos}"
        assert cut.last_index <= self._last_index, f"cut after {cut.last_index}, the log ends with {self._last_index}"
        self._end_pos = self._durable_pos = cut.pos
        self._last_index = self._durable_index = cut.last_index
        self._chain = self._durable_chain = cut.chain
        start = self._files.start_of(cut.pos)
        end = min(cut.old_end, start + self._segment_bytes)
        # If a sync of these zeros fails, the next opening reads them all the same, and must know to write them again.
        self._write_meta(self._state, cut_end=end)
        self._markers_stale = True
        self._files.drop_behind(start)
        # From the end backwards, in synced steps that begin with an entry and are no longer than a write: so a crash
        # leaves the same as a torn write, never a hole with good entries far behind it.
        limit = end
        for number in range(len(cut.steps) - 1, -1, -1):
            step = cut.steps[number]
            if step >= end:
                continue
            if number == 0 or limit - cut.steps[number - 1] > self._sync_bytes_max:
                self._files.zero(step, limit)
                limit = step
        self._prepared_start = -1

    def _write_meta(self, state: MetaState, *, clean: bool = False, cut_end: int = 0) -> None:
        assert self._durable_pos <= self._end_pos, f"durable {self._durable_pos}, end {self._end_pos}"
        assert self._durable_index <= self._last_index, f"durable {self._durable_index}, last {self._last_index}"
        assert not (clean and self._buffers), f"closed with entries before {self._end_pos} that are not written"
        state = msgspec.structs.replace(
            state,
            durable_pos=self._durable_pos,
            durable_chain=self._durable_chain,
            # An entry may be committed by others before it is durable here; the hint covers entries that are both.
            commit_hint=min(self._commit_hint, self._durable_index),
            clean=clean,
            cut_end=cut_end,
        )
        try:
            self._meta.write(state)
        except OSError as error:
            raise StorageFailed(self._meta.path, error.errno or 0, "write") from error
        self._state = state
        self._markers_at = self._clock()
