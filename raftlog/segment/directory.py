"""Opens a log's directory: checks its owner, classifies its state, and repairs its end."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from raftlog.segment.closed_file_index import scan_log
from raftlog.segment.codec import EntryRef
from raftlog.segment.disk import Disk, write_fully
from raftlog.segment.errors import (
    DirectoryLocked,
    DirectoryMismatch,
    DirectoryUnusable,
    EntryTooNew,
    FormatTooNew,
    MetaCorrupt,
    StorageFailed,
)
from raftlog.segment.files import Preallocation, SegmentFiles, segment_start
from raftlog.segment.index import SparseIndex
from raftlog.segment.limits import LogLimits
from raftlog.segment.meta import FILE_NAME, MetaFile, MetaState
from raftlog.segment.note_names import ABSTAINING, DAMAGED, REPLACING, UNSYNCED
from raftlog.segment.prefix_install import install_prefix
from raftlog.segment.recovery import (
    Corrupt,
    Decision,
    Keep,
    LogDamaged,
    TruncateAt,
    damaged_ranges,
    decide,
    end_of_data,
    examine,
    in_words,
    stale_end,
)
from raftlog.segment.snapshot_install import install

LOCK_NAME: Final = "LOCK"
OWN_NAMES: Final = re.compile(r"LOCK|meta|reset|refill|snapshot|.*\.tmp|\d{20}\.index")
"""Allowed names in a log's directory besides segments."""
SEGMENT_BYTES_MIN: Final = 256

_UNUSABLE: Final = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENOENT,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)


@dataclass(slots=True)
class OpenDirectory:
    """A locked directory in a consistent state; ``last`` is the log's last entry, or a placeholder for the base.

    ``opening_state`` describes its state before.
    """

    disk: Disk
    lock_fd: int
    files: SegmentFiles
    meta: MetaFile
    meta_state: MetaState
    index: SparseIndex
    last: EntryRef
    stopped_unclean: bool
    opening_state: str

    def close(self) -> None:
        """Close all files and release the directory."""
        self.files.close()
        self.meta.close()
        self.disk.close(self.lock_fd)


def open_directory(
    disk: Disk,
    directory: str,
    *,
    cluster_id: str,
    node_id: str,
    segment_bytes: int,
    preallocation: Preallocation,
    store_id: str | None,
    acknowledges_unsynced: bool,
    limits: LogLimits,
) -> OpenDirectory:
    """Lock a directory, check that it is ours, and recover its log; see `SegmentLog.open`."""
    if segment_bytes < SEGMENT_BYTES_MIN:
        raise ValueError(f"segments of {segment_bytes} bytes, at least {SEGMENT_BYTES_MIN} are needed")
    with contextlib.ExitStack() as undo:
        try:
            disk.mkdir(directory)
            lock_fd = lock_directory(disk, directory)
            undo.callback(disk.close, lock_fd)
            meta = MetaFile(disk, os.path.join(directory, FILE_NAME))
            undo.callback(meta.close)
            files = SegmentFiles(disk, directory, segment_bytes, preallocation, limits)
            undo.callback(files.close)
            requested_state = MetaState(cluster_id, node_id, segment_bytes)
            disk_state = _stored_state(meta, files, requested_state)
            has_changed = install(disk, directory, files, meta, disk_state)
            if has_changed:
                disk_state = _stored_state(meta, files, requested_state)
            has_changed |= install_prefix(disk, directory, meta, disk_state)
            if has_changed:
                files.close()
                files = SegmentFiles(disk, directory, segment_bytes, preallocation, limits)
                undo.callback(files.close)
                disk_state = _stored_state(meta, files, requested_state)
            # Remains of files that were deleted from the front before a crash.
            files.base_pos = disk_state.starts_at.pos
            if files.starts and files.starts[0] < files.base_pos:
                meta.write_again()  # if its sync failed, a power cut would restore the older base
            files.drop_below(files.base_pos)
            index = SparseIndex(segment_bytes, limits.anchor_bytes)
            last, recovery = _recover(files, disk_state, index)
            if foreign := foreign_names(disk.listdir(directory), segment_bytes):
                recovery += f"; not ours and left alone: {', '.join(foreign)}"
            boot_id = disk.boot_id()
            state = _starting_state(disk_state, meta, last, boot_id)
            notes = {key: value for key, value in state.notes.items() if key != UNSYNCED}
            unclean = not disk_state.clean and disk_state.boot_id != ""
            if unclean and (acknowledges_unsynced or UNSYNCED in disk_state.notes):
                # Unsynced acknowledged entries of the last process are lost with it, whether the machine continued or
                # not.
                notes[ABSTAINING] = b"1"
            if acknowledges_unsynced:
                notes[UNSYNCED] = b"1"
            state = msgspec.structs.replace(state, notes=notes)
            if not state.store_id:
                state = msgspec.structs.replace(state, store_id=store_id or secrets.token_hex(8))
            meta.write(state)
            # Makes the names of meta and lock durable; a segment is only created after a valid meta file.
            disk.sync_directory(directory)
            files.ensure(files.start_of(last.pos + last.size))
        except OSError as error:
            raise _translate(directory, error.errno or 0, error.filename or directory) from error
        except StorageFailed as error:
            raise _translate(directory, error.errno, error.path) from error
        undo.pop_all()
    return OpenDirectory(disk, lock_fd, files, meta, state, index, last, unclean, recovery)


def foreign_names(names: Iterable[str], segment_bytes: int) -> list[str]:
    """Return the names in a directory that do not belong to a log, sorted."""
    return sorted(
        name for name in names if not OWN_NAMES.fullmatch(name) and segment_start(name, segment_bytes) is None
    )


def lock_directory(disk: Disk, directory: str) -> int:
    """Lock a directory for this process, until the returned descriptor is closed. Raises `DirectoryLocked`."""
    path = os.path.join(directory, LOCK_NAME)
    fd = disk.open(path, create=True)
    try:
        try:
            disk.lock(fd)
        except BlockingIOError as error:
            holder = disk.pread(fd, 20, 0).strip()
            raise DirectoryLocked(directory, int(holder) if holder.isdigit() else 0) from error
        disk.truncate(fd, 0)
        write_fully(disk.pwritev, fd, [b"%d\n" % os.getpid()], 0)
    except BaseException:
        disk.close(fd)
        raise
    return fd


def _stored_state(meta: MetaFile, files: SegmentFiles, requested_state: MetaState) -> MetaState:
    state = meta.state
    if state is None:
        # The first segment is created before this node may vote, so without segments there was no vote.
        if files.starts:
            raise MetaCorrupt(meta.path)
        return requested_state
    for field in ("cluster_id", "node_id", "segment_bytes"):
        if (was := getattr(state, field)) != (now := getattr(requested_state, field)):
            raise DirectoryMismatch(files.directory, field, was, now)
    return state


def _starting_state(state: MetaState, meta: MetaFile, last: EntryRef, boot_id: str) -> MetaState:
    term, voted_for = state.term, state.voted_for
    if last.term > term:
        # The newest slot is lost: the vote file is always ahead of the log. A vote in that term is lost with it.
        term, voted_for = last.term, None
        lost = True
    else:
        lost = meta.damaged_slots > 0
    if lost and voted_for is None:
        # The lost slot's vote in this term is unknown. A node that votes for itself votes for no other.
        voted_for = state.node_id
    end_pos = last.pos + last.size
    notes = {key: value for key, value in state.notes.items() if key not in (DAMAGED, REPLACING)}
    return msgspec.structs.replace(
        state,
        term=term,
        voted_for=voted_for,
        durable_pos=end_pos,
        durable_chain=last.chain,
        clean=False,
        boot_id=boot_id,
        cut_end=0,
        notes=notes,
    )


def _recover(files: SegmentFiles, state: MetaState, index: SparseIndex) -> tuple[EntryRef, str]:
    try:
        return _recover_last(files, state, index)
    except EntryTooNew as error:
        path = files.path(files.start_of(error.physical_offset))
        what = f"the entry at physical offset {error.physical_offset}"
        raise FormatTooNew(path, what, error.found, error.newest) from error


def _recover_last(files: SegmentFiles, state: MetaState, index: SparseIndex) -> tuple[EntryRef, str]:
    """The last good entry, and a description of the log's state. Raises EntryTooNew, LogDamaged."""
    segment_bytes = files.segment_bytes
    starts = files.starts
    read = files.pread_padded
    base = state.starts_at.ref
    _write_again(files, state)
    # After damage was found at run time, verify everything.
    last, stop, new_sidecars = scan_log(files, base, 0 if DAMAGED in state.notes else state.durable_pos, index)
    if (stale := stale_end(read, index, last, state)) is not None:
        raise LogDamaged(
            files.directory, [stale], stale.pos, "the last durable entry differs from the one in the vote file"
        )
    end_pos = last.pos + last.size
    tail_start = files.start_of(end_pos)
    decision: Decision = Keep()
    recovery = f"closed in order: last index {last.index} ends at {end_pos}"
    if not (state.clean and state.durable_pos == end_pos):
        evidence = examine(
            read, stop, last, starts, segment_bytes, state.durable_pos, state.commit_hint, files.limits.sync_bytes_max
        )
        decision = decide(evidence)
        recovery = in_words(decision, evidence)
        if isinstance(decision, Corrupt):
            # The part known from sidecars may be damaged, too.
            index.truncate(base.index + 1)
            last, stop, _ = scan_log(files, base, 0, index)
            evidence = examine(
                read,
                stop,
                last,
                starts,
                segment_bytes,
                state.durable_pos,
                state.commit_hint,
                files.limits.sync_bytes_max,
            )
            ranges, good_end = damaged_ranges(read, evidence, last, starts, segment_bytes)
            raise LogDamaged(files.directory, ranges, good_end, decision.reason)
    files.drop_behind(tail_start)
    if tail_start in starts:
        files.restore_length(tail_start)
        if isinstance(decision, TruncateAt):
            file_end = tail_start + segment_bytes
            files.zero(decision.pos, end_of_data(files.pread_padded, decision.pos, file_end))
        if not state.clean:
            _end_cut(files, end_pos, state.cut_end)
    for start, sidecar in new_sidecars:
        files.write_sidecar(start, sidecar)
    files.reopen()
    return last, recovery


def _write_again(files: SegmentFiles, state: MetaState) -> None:
    """Make what the last process may have left only in the cache durable, before reading it.

    Everything below the stored durable position was synced. After it, a sync may be missing, or may have failed.
    """
    if note := state.notes.get(REPLACING):
        begin, end = map(int, note.split())
        files.write_again(begin, end, needs_all=False)  # damage is still detected, and written again
    if (starts := files.starts) and not state.clean:
        files.write_again(state.durable_pos, starts[-1] + files.segment_bytes)


def _end_cut(files: SegmentFiles, end_pos: int, cut_end: int) -> None:
    """Zero the rest of an interrupted cut, backwards: the disk may have entries where the cache has zeros."""
    start = files.start_of(end_pos)
    end = min(cut_end, start + files.segment_bytes)
    while end > end_pos:
        begin = max(end_pos, end - files.limits.sync_bytes_max)
        files.zero(begin, end)
        end = begin


def _translate(directory: str, number: int, path: str) -> DirectoryUnusable | StorageFailed:
    if number in _UNUSABLE:
        return DirectoryUnusable(directory, f"{os.strerror(number)} ({path})")
    return StorageFailed(path, number, "opening")
