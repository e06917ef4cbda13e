"""Repairs a damaged log with bytes from other replicas, whose files are equal byte by byte.

Theory of operation. A `Repair` works on the directory while no log is open on it. It says which bytes it needs, one
piece after the other, and accepts them from any peer: each entry must continue the chain, and if there is an intact
entry after the damage, the chain must lead to that one. Only then are the bytes written to their place; until then they
are in a side file, which the next opening removes. A crash at any time leaves the damage as it was, or less of it.

If nothing verifies the end of the damage, or no peer has the missing data, the log is cut after the last received
entry, as soon as every peer has said that it has no more. The removed part may have been acknowledged. So the note
``abstaining`` is made durable before, and a replica with this note does not vote until it has caught up.

A log is never cut before intact entries while a peer is damaged at the same place: that peer had them, too, so they may
all be committed, and only one entry is lost rather than all after it. The repair then waits for a replica that has the
entry, or for an operator, who may `cut`.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

import msgspec

from raftlog.segment.codec import (
    BLANK_BYTES_MIN,
    HEADER,
    HEADER_BYTES,
    blank,
    chain_after,
    is_blank,
    place,
    verify_entry,
)
from raftlog.segment.directory import lock_directory
from raftlog.segment.disk import Buffer, Disk, write_fully
from raftlog.segment.errors import FrameCorrupt, MetaCorrupt, StorageCorrupt, StorageFailed
from raftlog.segment.files import DISK_BLOCK_BYTES, Preallocation, SegmentFiles, shorter_read
from raftlog.segment.limits import DEFAULT, LogLimits
from raftlog.segment.meta import FILE_NAME, MetaFile, MetaState
from raftlog.segment.note_names import ABSTAINING, DAMAGED, REPLACING
from raftlog.segment.recovery import DamagedRange, LogDamaged, end_of_all
from raftlog.terms import highest_plausible

P = ParamSpec("P")
T = TypeVar("T")

SIDE_FILE_NAME: Final = "repair.tmp"


@dataclass(frozen=True, slots=True)
class RepairedRange:
    """An overwritten range: ``crc`` is the CRC-32 of the ``nbytes`` bytes that were at ``pos`` before."""

    pos: int
    nbytes: int
    crc: int


class Repair:
    """Repairs a damaged log. Use it until `done`, then call `finish`, and open the log again.

    Attributes:
        peers: will be asked. The log is cut when all of them have refused, so name every other member; without any
            it is never cut.
        replaced_ranges: the overwritten ranges so far.
        cut_at: where the log was cut, since no peer had more of it; None while it was not.
    """

    def __init__(self, disk: Disk, damage: LogDamaged, *, peers: Iterable[str], limits: LogLimits = DEFAULT) -> None:
        """Lock the directory. ``limits`` are the log's.

        Raises:
            DirectoryLocked: another process has the directory.
            MetaCorrupt, StorageFailed: it changed since ``damage`` was raised, or a disk error.
        """
        self.directory = damage.directory
        self.replaced_ranges: list[RepairedRange] = []
        self.cut_at: int | None = None
        self._disk = disk
        self._limits = limits
        self.peers = set(peers)
        self._ranges = list(damage.ranges)
        self._good_end = damage.end_pos
        self._unreadable: set[int] = set()
        """Blocks that were intact when the log was opened, and became unreadable."""
        self._partial_entry, self._holder = b"", ""
        self._side_path = os.path.join(damage.directory, SIDE_FILE_NAME)
        with contextlib.ExitStack() as undo:
            try:
                undo.callback(disk.close, lock_directory(disk, damage.directory))
                meta = MetaFile(disk, os.path.join(damage.directory, FILE_NAME))
                undo.callback(meta.close)
                if meta.state is None:
                    raise MetaCorrupt(meta.path)
                self._meta, self._state = meta, meta.state
                self._segment_bytes = meta.state.segment_bytes
                allocation = Preallocation.for_segment(self._segment_bytes)
                self._files = SegmentFiles(disk, damage.directory, self._segment_bytes, allocation, limits)
                undo.callback(self._files.close)
                self._side = disk.open(self._side_path, create=True)
                undo.callback(disk.close, self._side)
            except OSError as error:
                raise StorageFailed(error.filename or damage.directory, error.errno or 0, "repair") from error
            self._begin_range()
            if DAMAGED not in self._state.notes:
                # Until this is finished, every opening verifies all entries, whatever their sidecars contain.
                self._write_meta(notes={**self._state.notes, DAMAGED: b""})
            self._undo = undo.pop_all()

    @property
    def meta(self) -> MetaState:
        """Return the content of the vote file."""
        return self._state

    @property
    def done(self) -> bool:
        """Whether nothing is missing."""
        return not self._ranges

    @property
    def missing_ranges(self) -> list[tuple[int, int]]:
        """Return the incomplete ranges, as first position and end."""
        return [(damage.pos, damage.end) for damage in self._ranges]

    def next_request(self) -> tuple[int, int] | None:
        """Position and number of the bytes to request next, at most `LogLimits.repair_bytes_max`; None when `done`.

        Unchanged until they are offered or refused.
        """
        if self.done:
            return None
        pos = self._at + len(self._partial_entry)
        return pos, min(self._limits.repair_bytes_max, self._limit() - pos)

    def offer(self, pos: int, data: bytes, source: str) -> bool:
        """Accept bytes at ``pos`` in the log of ``source``; fewer than requested are fine.

        Returns:
            Whether to continue with this source. If not, ask another one, since these bytes do not belong to this log.

        Raises:
            StorageFailed: a disk error; abort.
        """
        if self.done:
            return True
        if source in self._conflicting_peers:
            return False
        if self._partial_entry and source != self._holder:
            # An entry comes from one source, so that a bad one can be attributed.
            self._partial_entry = b""
        if pos != self._at + len(self._partial_entry):
            return True
        if not data:
            self.on_refusal(pos, source)
            return False
        self._partial_entry += data
        self._holder = source
        try:
            self._accept_received()
        except FrameCorrupt:
            self._partial_entry = b""
            self._refuse(source)
            return False
        return True

    def on_refusal(self, pos: int, source: str, *, damaged: bool = False) -> None:
        """Record that ``source`` has no bytes at ``pos``, or only damaged ones. Raises `StorageFailed`."""
        if not self.done and pos == self._at + len(self._partial_entry):
            self._partial_entry = b""
            self._damaged_too.discard(source)
            if damaged:
                self._damaged_too.add(source)
            self._refuse(source)

    def cut(self) -> None:
        """Discard everything behind the received bytes, intact or not: an operator's decision.

        Call `finish` afterwards. Raises `StorageFailed`.
        """
        if not self.done:
            self._cut()

    def serve(self, pos: int, nbytes: int) -> bytes | None:
        """Read up to ``nbytes`` verified bytes at ``pos``, for a peer that repairs its log; None without any.

        Newly unreadable data is treated as damaged, see `lacks`: the opening after `finish` detects it.

        Raises:
            StorageFailed: a disk error.
        """
        begin = self._state.starts_at.pos
        for damage in self._ranges:
            if begin <= pos < damage.pos:
                return self._intact(pos, min(nbytes, damage.pos - pos))
            begin = damage.end
        if begin <= pos < self._good_end:
            return self._intact(pos, min(nbytes, self._good_end - pos))
        return None

    def _intact(self, pos: int, nbytes: int) -> bytes | None:
        while True:
            try:
                return self._files.pread(pos, nbytes)
            except StorageCorrupt:
                shorter = shorter_read(pos - self._files.start_of(pos), nbytes)
            if shorter is None:
                self._unreadable.add(self._block(pos))
                return None
            nbytes = shorter

    def lacks(self, pos: int) -> bool:
        """Whether ``pos`` is damaged here, so that `serve` would have something otherwise."""
        is_damaged = any(damage.pos <= pos < damage.end for damage in self._ranges)
        return is_damaged or self._block(pos) in self._unreadable

    def _block(self, pos: int) -> int:
        """The beginning of the disk block that contains ``pos``."""
        return pos - (pos - self._files.start_of(pos)) % DISK_BLOCK_BYTES

    def finish(self) -> None:
        """Make the repair durable and release the directory. Raises `StorageFailed`."""
        assert self.done, f"{self.directory}: {self.missing_ranges} are still damaged"
        notes = {key: value for key, value in self._state.notes.items() if key not in (DAMAGED, REPLACING)}
        if self._unreadable:
            notes[DAMAGED] = b"%d" % min(self._unreadable)
        if notes != self._state.notes:
            self._write_meta(notes=notes)
        self.close()

    def close(self) -> None:
        """Release the directory; incomplete ranges stay damaged. Idempotent."""
        self._undo.close()

    def _begin_range(self) -> None:
        self._conflicting_peers: set[str] = set()
        while self._ranges:
            damage = self._ranges[0]
            self._behind = damage.behind
            self._behind_header = b"" if self._behind is None else self._files.pread(self._behind.pos, HEADER_BYTES)
            self._rewind()
            # If only a blank is damaged, no peer is needed.
            if not self._links():
                return
            self._complete(damage.end)

    def _rewind(self) -> None:
        assert self._ranges, f"{self.directory}: nothing is damaged any more"
        self._last = self._ranges[0].before
        self._at = self._end_pos()
        self._partial_entry = b""
        self._holder = ""
        self._forget_refusals()
        self._side_call(self._disk.truncate, self._side, 0)

    def _end_pos(self) -> int:
        return self._last.pos + self._last.size

    def _file_end(self, pos: int) -> int:
        return self._files.start_of(pos) + self._segment_bytes

    def _limit(self) -> int:
        """The end of the current file, or the beginning of the intact entry if it is in this file."""
        file_end = self._file_end(self._at)
        return file_end if self._behind is None else min(file_end, self._behind.pos)

    def _links(self) -> bool:
        """Whether the intact entry is the next one."""
        behind, last = self._behind, self._last
        return (
            behind is not None
            and behind.index == last.index + 1
            and behind.term >= last.term
            and place(self._end_pos(), behind.size, self._segment_bytes) == behind.pos
            and chain_after(self._behind_header, last.chain) == behind.chain
        )

    def _accept_received(self) -> None:
        """Accept the complete part of the received bytes. Raises `FrameCorrupt` for the first wrong entry."""
        while self._partial_entry and not self.done:
            file_end = self._file_end(self._at)
            if is_blank(self._partial_entry, file_end - self._at):
                self._write_side(self._at, blank(file_end - self._at))
                self._partial_entry = b""
                self._at = file_end
            elif not self._take_entry(file_end):
                return
            self._forget_refusals()
            self._look_ahead()

    def _take_entry(self, file_end: int) -> bool:
        """Accept the first received entry; False if it is incomplete."""
        last, room = self._last, file_end - BLANK_BYTES_MIN - self._at
        if room < HEADER_BYTES:
            if len(self._partial_entry) < BLANK_BYTES_MIN:
                return False
            raise FrameCorrupt(self._at, "no room for an entry here", HEADER_BYTES, room)
        if self._limit() - self._at < HEADER_BYTES:
            raise self._conflict()
        if len(self._partial_entry) < HEADER_BYTES:
            return False
        _, size, index, term, pos, *_ = HEADER.unpack_from(self._partial_entry)
        if (index, pos) != (last.index + 1, self._at):
            raise FrameCorrupt(self._at, "the index or position is that of a different entry", last.index + 1, index)
        if term > (highest := highest_plausible(self._state.term)):
            raise FrameCorrupt(self._at, "implausible term", highest, term)
        if not HEADER_BYTES <= size <= room:
            raise FrameCorrupt(self._at, "entry is too large for the rest of its file", room, size)
        if place(self._end_pos(), size, self._segment_bytes) != self._at:
            raise FrameCorrupt(self._at, "entry should be in the previous file", self._end_pos(), self._at)
        if self._at + size > self._limit():
            raise self._conflict()
        if len(self._partial_entry) < size:
            return False
        ref = verify_entry(memoryview(self._partial_entry), 0, last.index + 1, last.term, self._at, last.chain)
        self._write_side(self._at, self._partial_entry[:size])
        self._last, self._at, self._partial_entry = ref, self._at + size, self._partial_entry[size:]
        return True

    def _look_ahead(self) -> None:
        """End the range if it is complete, or start it again if the received entries lead elsewhere."""
        damage = self._ranges[0]
        if self._links() or (self._behind is None and self._is_all(damage.end)):
            self._complete(damage.end)
            self._begin_range()
        elif self._behind is not None and self._at >= self._behind.pos:
            raise self._conflict()

    def _is_all(self, end: int) -> bool:
        """Whether the received part reaches as far as was durable, with the same chain, if nothing followed."""
        state = self._state
        return self._end_pos() == end == state.durable_pos and self._last.chain == state.durable_chain

    def _conflict(self) -> FrameCorrupt:
        """Start the range again: the current source's data does not lead to the intact entry after it."""
        assert self._behind is not None, f"a conflict at {self._at} with nothing behind"
        error = FrameCorrupt(
            self._at, "checksum chain does not reach the next intact entry", self._behind.chain, self._last.chain
        )
        self._conflicting_peers.add(self._holder)
        self._rewind()
        return error

    def _forget_refusals(self) -> None:
        self._refusing_peers: set[str] = set()
        self._damaged_too: set[str] = set()

    def _refuse(self, source: str) -> None:
        self._refusing_peers.add(source)
        if not self.peers or not self.peers <= self._refusing_peers | self._conflicting_peers:
            return
        if self._behind is not None and self._damaged_too:
            return
        if self._behind is None or not self._conflicting_peers:
            self._cut()
            return
        # Peers have entries that continue ours, but do not lead to the one after the damage: that one cannot be
        # trusted.
        self._behind = None
        self._ranges = [DamagedRange(self._ranges[0].before, None, max(self._ranges[-1].end, self._data_end()))]
        self._conflicting_peers.clear()
        self._rewind()

    def _cut(self) -> None:
        end, base = self._end_pos(), self._state.starts_at
        self._copy(end)
        notes = {key: value for key, value in self._state.notes.items() if key not in (DAMAGED, REPLACING)}
        notes[ABSTAINING] = b"1"
        start = self._files.start_of(end)
        data_end = max(end, self._data_end())
        zeroed_end = min(data_end, self._file_end(end))
        # The rest may end with entries of a stale block, which were not the committed ones.
        self._write_meta(
            notes=notes,
            durable_pos=end,
            durable_chain=self._last.chain,
            commit_hint=min(self._state.commit_hint, base.index),
            clean=False,
            cut_end=zeroed_end,
        )
        self._record_replaced(end, data_end)
        self._files.drop_behind(start)
        if start in self._files.starts:
            self._files.restore_length(start)
            self._files.zero(end, zeroed_end)
        self._ranges.clear()
        self.cut_at = self._good_end = end

    def _complete(self, end: int) -> None:
        """Write the received part to its place: everything up to ``end``, with a blank at the end of each file."""
        last_end = self._end_pos()
        if last_end < end == self._file_end(last_end):
            self._write_side(last_end, blank(end - last_end))
        self._copy(end)
        del self._ranges[0]
        if not self._ranges:
            self._good_end = max(self._good_end, end)

    def _copy(self, end: int) -> None:
        begin = pos = self._ranges[0].pos
        assert begin <= end, f"bytes up to {end} for the damage at {begin}"
        if begin < end:
            self._record_replaced(begin, end)
            # If a sync fails, the next opening reads these bytes all the same, and must know to write them again.
            self._write_meta(notes={**self._state.notes, REPLACING: b"%d %d" % (begin, end)})
        while pos < end:
            start = self._files.start_of(pos)
            last = min(end, self._file_end(pos))
            self._files.ensure(start)
            self._files.restore_length(start)
            while pos < last:
                nbytes = min(self._limits.sync_bytes_max, last - pos)
                data = self._side_call(self._disk.pread, self._side, nbytes, pos - begin)
                self._files.write(pos, [data.ljust(nbytes, b"\0")])
                pos += nbytes
            self._files.sync(start)

    def _record_replaced(self, begin: int, end: int) -> None:
        assert begin <= end, f"{begin}..{end} is replaced"
        crc, nbytes, pos = 0, end - begin, begin
        present = set(self._files.starts)
        while pos < end:
            piece = min(self._limits.sync_bytes_max, end - pos, self._file_end(pos) - pos)
            if self._files.start_of(pos) in present:
                crc = zlib.crc32(self._files.pread_padded(pos, piece), crc)
            pos += piece
        self.replaced_ranges.append(RepairedRange(begin, nbytes, crc))

    def _data_end(self) -> int:
        return end_of_all(self._files.pread_padded, 0, self._files.starts, self._segment_bytes)

    def _write_meta(self, **changes: object) -> None:
        state = msgspec.structs.replace(self._state, **changes)
        try:
            self._meta.write(state)
        except OSError as error:
            raise StorageFailed(self._meta.path, error.errno or 0, "write") from error
        self._state = state

    def _write_side(self, pos: int, data: Buffer) -> None:
        begin = self._ranges[0].pos
        assert begin <= pos, f"bytes at {pos} for the damage at {begin}"
        self._side_call(write_fully, self._disk.pwritev, self._side, [data], pos - begin)

    def _side_call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except OSError as error:
            raise StorageFailed(self._side_path, error.errno or 0, "repair") from error
