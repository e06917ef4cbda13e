"""Inspects the directory of a closed log, without changing it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from raftlog.log_numbers import FIRST_INDEX, NO_INDEX, LogIndex
from raftlog.segment.codec import HEADER, HEADER_BYTES, EntryRef, is_blank, verify_entry
from raftlog.segment.directory import LOCK_NAME, foreign_names
from raftlog.segment.disk import Disk
from raftlog.segment.errors import (
    DirectoryLocked,
    DirectoryUnusable,
    EntryTooNew,
    FormatTooNew,
    FrameCorrupt,
    StorageFailed,
)
from raftlog.segment.files import segment_start
from raftlog.segment.index import SparseIndex
from raftlog.segment.meta import FILE_NAME, SLOT_BYTES, MetaState, decode_slot, newest_state, read_slots
from raftlog.segment.note_names import ABSTAINING, DAMAGED
from raftlog.segment.recovery import (
    Corrupt,
    DamagedRange,
    Decision,
    Keep,
    StopReason,
    TruncateAt,
    damaged_ranges,
    decide,
    end_of_all,
    examine,
    in_words,
    is_intact,
    scan_files,
    stale_end,
)

INTACT: Final = "intact"
TORN: Final = "torn"
DAMAGED_STATE: Final = "damaged"
UNUSABLE: Final = "unusable"


@dataclass(slots=True)
class DirectoryReport:
    """The state of a directory, and the effect of opening it.

    ``verdict`` is one of `INTACT`, `TORN` (opening cuts off the torn end), `DAMAGED_STATE` (opening refuses until the
    ranges are repaired from other replicas) and `UNUSABLE` (the entries cannot be assessed, or nothing can be done).
    ``configs`` are index and body of the configuration entries of an undamaged log.
    """

    directory: str
    verdict: str
    findings: list[str] = field(default_factory=list)
    state: MetaState | None = None
    first_index: LogIndex = NO_INDEX
    last: EntryRef | None = None
    ranges: Sequence[DamagedRange] = ()
    configs: Sequence[tuple[LogIndex, bytes]] = ()


class StoppedLog:
    """The directory of a log that no process has open. It is never written to; the lock is held until `close`.

    Raises:
        DirectoryLocked: a process has it open.
        DirectoryUnusable: it contains no log, or is not readable.
        FormatTooNew: a newer version of the software wrote the vote file.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self._disk = disk
        self._fds: dict[int, int] = {}
        with contextlib.ExitStack() as undo:
            try:
                self._names = disk.listdir(directory)
                if FILE_NAME not in self._names and not any(segment_start(name, 1) is not None for name in self._names):
                    raise DirectoryUnusable(directory, "the directory contains no log")
                if LOCK_NAME in self._names:
                    self._lock(undo)
                self._slots = [b"", b""]
                if FILE_NAME in self._names:
                    meta_fd = disk.open(os.path.join(directory, FILE_NAME))
                    undo.callback(disk.close, meta_fd)
                    self._slots = read_slots(disk, meta_fd)
            except OSError as error:
                raise DirectoryUnusable(directory, error.strerror or str(error)) from error
            self._undo = undo.pop_all()
        try:
            self.state: MetaState | None = newest_state(b"".join(self._slots), os.path.join(directory, FILE_NAME))
        except FormatTooNew:
            self.close()
            raise
        self._segment_bytes = self.state.segment_bytes if self.state is not None else 1
        starts = (segment_start(name, self._segment_bytes) for name in self._names)
        self.starts = sorted(start for start in starts if start is not None)

    def close(self) -> None:
        """Release the directory."""
        self._undo.close()

    def report(self) -> DirectoryReport:
        """Verify the whole log, and report.

        Raises:
            StorageFailed: the disk cannot read it.
            FormatTooNew: a newer version of the software wrote an entry.
        """
        try:
            return self._report()
        except EntryTooNew as error:
            pos = error.physical_offset
            path = os.path.join(self.directory, f"{pos - pos % self._segment_bytes:020d}")
            raise FormatTooNew(path, f"the entry at physical offset {pos}", error.found, error.newest) from error

    def _report(self) -> DirectoryReport:
        findings = [*self._slot_findings()]
        if self.state is None:
            findings.append("no slot of the vote file is valid: term and vote are lost; replace the node")
            return DirectoryReport(self.directory, UNUSABLE, findings)
        state, base = self.state, self.state.starts_at.ref
        if foreign := foreign_names(self._names, self._segment_bytes):
            findings.append(f"not files of a log, left alone: {', '.join(foreign)}")
        if ABSTAINING in state.notes:
            findings.append("abstains: it may have lost acknowledged entries, and does not vote until it has caught up")
        findings += self._file_findings(base.pos)
        starts = [start for start in self.starts if start >= base.pos]
        index = SparseIndex(self._segment_bytes)
        last, stop = scan_files(self.pread, base.pos, starts, self._segment_bytes, base, index)
        if (stale := stale_end(self.pread, index, last, state)) is not None:
            findings += [
                "damaged: the last durable entry differs from the one in the vote file",
                _range_in_words(stale),
            ]
            return DirectoryReport(
                self.directory, DAMAGED_STATE, findings, state, base.index + 1, stale.before, [stale]
            )
        evidence = examine(self.pread, stop, last, starts, self._segment_bytes, state.durable_pos, state.commit_hint)
        is_clean = state.clean and state.durable_pos == evidence.end_pos
        decision: Decision = Keep() if is_clean else decide(evidence)
        findings.append(in_words(decision, evidence))
        ranges: list[DamagedRange] = []
        verdict = INTACT
        match decision:
            case TruncateAt(pos, is_blank=False):
                verdict = TORN
                end = end_of_all(self.pread, pos, starts, self._segment_bytes)
                findings.append(f"opening it would cut off {end - pos} bytes at {pos}")
            case Corrupt():
                verdict = DAMAGED_STATE
                ranges, _ = damaged_ranges(self.pread, evidence, last, starts, self._segment_bytes)
                findings += map(_range_in_words, ranges)
            case Keep() | TruncateAt():
                pass
        if note := state.notes.get(DAMAGED):
            findings.append(f"the running node found damage at {note.decode(errors='replace')}")
        return DirectoryReport(
            self.directory, verdict, findings, state, base.index + 1, last, ranges, list(index.configs)
        )

    def entries(self, from_index: LogIndex = FIRST_INDEX) -> Iterator[EntryRef | DamagedRange]:
        """Yield the entries from ``from_index`` on, and the damaged ranges, in the order of the log.

        Files that end before ``from_index`` are not read.
        """
        assert self.state is not None, f"{self.directory}: no vote file says where the log begins"
        base = last = self.state.starts_at.ref
        starts = [start for start in self.starts if start >= base.pos]
        for start in reversed(starts[1:]):
            first = self._first_entry(start)
            if first is not None and first.index <= from_index:
                last = first
                break
        while True:
            if last is not base and last.index >= from_index:
                yield last
            for entry in self._run(last):
                last = entry
                if entry.index >= from_index:
                    yield entry
            stop = StopReason(last.pos + last.size, "no entry")
            state = self.state
            evidence = examine(
                self.pread, stop, last, starts, self._segment_bytes, state.durable_pos, state.commit_hint
            )
            if not isinstance(decide(evidence), Corrupt):
                return
            damage = damaged_ranges(self.pread, evidence, last, starts, self._segment_bytes)[0][0]
            yield damage
            if damage.behind is None:
                return
            last = damage.behind

    def body(self, entry: EntryRef) -> bytes:
        """Return the body of an entry."""
        return self.pread(entry.pos + HEADER_BYTES, entry.size - HEADER_BYTES)

    def body_crc(self, entry: EntryRef) -> int:
        """Return the checksum of an entry's body, from its header."""
        return int(HEADER.unpack(self.pread(entry.pos, HEADER_BYTES))[7])

    def pread(self, pos: int, length: int) -> bytes:
        """Read within one file; missing bytes read as zero. Raises `StorageFailed`."""
        start = pos - pos % self._segment_bytes
        path = os.path.join(self.directory, f"{start:020d}")
        try:
            if (fd := self._fds.get(start)) is None:
                fd = self._fds[start] = self._disk.open(path)
                self._undo.callback(self._disk.close, fd)
            return self._disk.pread(fd, length, pos - start).ljust(length, b"\0")
        except OSError as error:
            raise StorageFailed(path, error.errno or 0, "read") from error

    def _run(self, last: EntryRef) -> Iterator[EntryRef]:
        """The good entries after ``last``."""
        while True:
            pos = last.pos + last.size
            end = pos - pos % self._segment_bytes + self._segment_bytes
            if end - self._segment_bytes in self.starts and is_blank(self.pread(pos, min(8, end - pos)), end - pos):
                pos, end = end, end + self._segment_bytes
            if end - self._segment_bytes not in self.starts or end - pos < HEADER_BYTES:
                return
            size = HEADER.unpack(self.pread(pos, HEADER_BYTES))[1]
            if not HEADER_BYTES <= size <= end - pos:
                return
            try:
                data = memoryview(self.pread(pos, size))
                last = verify_entry(data, 0, last.index + 1, last.term, pos, last.chain)
            except FrameCorrupt:
                return
            yield last

    def _first_entry(self, start: int) -> EntryRef | None:
        if not is_intact(self.pread, start, start + self._segment_bytes):
            return None
        kind, size, index, term, pos, _, chain, _, _ = HEADER.unpack(self.pread(start, HEADER_BYTES))
        return EntryRef(index, term, kind, pos, size, chain)

    def _lock(self, undo: contextlib.ExitStack) -> None:
        fd = self._disk.open(os.path.join(self.directory, LOCK_NAME))
        undo.callback(self._disk.close, fd)
        try:
            self._disk.lock(fd)
        except BlockingIOError as error:
            holder = self._disk.pread(fd, 20, 0).strip()
            raise DirectoryLocked(self.directory, int(holder) if holder.isdigit() else 0) from error

    def _slot_findings(self) -> Iterator[str]:
        for number, data in enumerate(self._slots):
            slot = decode_slot(data)
            if slot is not None:
                seq, state = slot
                yield f"vote file, slot {number}: sequence {seq}, term {state.term}, vote {state.voted_for or 'none'}"
            elif len(data) < SLOT_BYTES:
                yield f"vote file, slot {number}: truncated to {len(data)} bytes"
            elif any(data):
                yield f"vote file, slot {number}: damaged"
            else:
                yield f"vote file, slot {number}: never written"

    def _file_findings(self, base_pos: int) -> Iterator[str]:
        next_start = base_pos
        for start in self.starts:
            if start < base_pos:
                yield f"segment {start:020d} lies before the log's beginning and would be removed"
                continue
            if start > next_start:
                yield f"gap between segments: {next_start:020d} to {start:020d} is missing"
            next_start = start + self._segment_bytes


def _range_in_words(damage: DamagedRange) -> str:
    where = f"bytes {damage.pos}..{damage.end} are damaged"
    if damage.behind is None:
        return f"{where}; unknown end: repaired as far as peers have entries, the rest would be cut off"
    return f"{where}; repairable from peers, entry {damage.behind.index} after them is intact"
