"""A backup of a log: its committed entries in a directory of their own, extended by each run of a backup.

Theory of operation. Committed entries never change and are equal on all replicas, byte by byte. So a backup is the
beginning of a log that grows: a run copies what lies behind the last entry of the run before, from any replica. A
manifest says up to which entry the copy counts. Files are only ever written behind that entry, and the manifest is
replaced last, in one step. So whatever ends a run in the middle, the backup is what it was before.

Layout: ``manifest.json``; ``log/`` with segment files by their names, cut off behind their last byte that is not zero;
``snapshot``, opaque here, for a log that does not have its beginning; ``LOCK``.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from raftlog.segment.codec import EntryRef
from raftlog.segment.disk import Disk, write_file, write_fully
from raftlog.segment.entry_runs import EntryRun, entry_runs
from raftlog.segment.errors import (
    EntryTooNew,
    FormatTooNew,
    FrameCorrupt,
    SegmentError,
    StorageCorrupt,
    StorageFailed,
)
from raftlog.segment.meta import Base
from raftlog.segment.running_log import RunningLog
from raftlog.segment.snapshot_install import Manifest, why_impossible

MANIFEST_NAME: Final = "manifest.json"
SNAPSHOT_FILE_NAME: Final = "snapshot"
FILES_DIRECTORY: Final = "log"
LOCK_FILE_NAME: Final = "LOCK"
FORMAT: Final = 1
SYNC_EVERY_BYTES: Final = 16 * 1024 * 1024
"""Written bytes are synced in steps of this size: one sync of a whole file would hold up other writers of the disk."""

_OWN_NAMES: Final = frozenset(
    (FILES_DIRECTORY, LOCK_FILE_NAME, SNAPSHOT_FILE_NAME, SNAPSHOT_FILE_NAME + ".tmp", MANIFEST_NAME + ".tmp")
)
_IGNORED_NAMES: Final = frozenset(("lost+found",))


class BackupRefused(SegmentError):
    """What was asked for makes no sense for this backup; nothing was changed in it."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"{directory}: {reason}")
        self.directory = directory
        self.reason = reason


class BackupDamaged(SegmentError):
    """A file of a backup is not what was written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: damaged: {reason}")
        self.path = path
        self.reason = reason


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup has.

    ``base`` is where it begins, ``last`` its last entry. ``conf`` is the configuration in force at the base, empty if
    the source did not know it. ``taken_at_ms`` (since 1970) is when the last run began, ``node_id`` its source.
    ``snapshot_index`` is the entry that the snapshot was taken behind, 0 if there is none.
    """

    format: int = FORMAT
    cluster_id: str
    node_id: str
    segment_bytes: int
    base: Base
    conf: bytes
    last: EntryRef
    taken_at_ms: int
    snapshot_index: int = 0
    snapshot_bytes: int = 0
    snapshot_crc: int = 0

    @property
    def end_pos(self) -> int:
        """Physical offset of the end of the last entry."""
        return self.last.pos + self.last.size

    def as_offer(self, last: EntryRef | None = None, conf: bytes | None = None) -> Manifest:
        """The same for a replica that takes the log over, up to the entry ``last``."""
        return Manifest(
            self.base,
            self.last if last is None else last,
            self.conf if conf is None else conf,
            self.segment_bytes,
            self.snapshot_bytes,
            self.snapshot_crc,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the application right after the entry ``index``."""

    index: int
    data: bytes


class _Format(msgspec.Struct):
    format: int


class _Sealed(msgspec.Struct):
    """The content of the manifest's file; the CRC-32 is that of ``backup`` in JSON."""

    crc32: int
    backup: msgspec.Raw


def encode_backup_manifest(manifest: BackupManifest) -> bytes:
    """The content of the manifest's file: JSON."""
    inner = msgspec.json.encode(manifest)
    return b'{"crc32":%d,\n"backup":%s}\n' % (zlib.crc32(inner), inner)


def decode_backup_manifest(data: bytes, path: str = MANIFEST_NAME) -> BackupManifest:
    """Raises ValueError for what `encode_backup_manifest` did not write, FormatTooNew for what a newer version did."""
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        inner = bytes(sealed.backup)
        if (crc := zlib.crc32(inner)) != sealed.crc32:
            raise ValueError(f"checksum {crc:#010x} instead of {sealed.crc32:#010x}")
        if (found := msgspec.json.decode(inner, type=_Format).format) > FORMAT:
            raise FormatTooNew(path, "the backup", found, FORMAT)
        manifest = msgspec.json.decode(inner, type=BackupManifest)
        if (reason := why_impossible(manifest.as_offer())) is not None:
            raise ValueError(f"invalid backup: {reason}")
        return manifest
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


class Backup:
    """A backup that exists, to be read. `close` it at the end.

    Raises:
        BackupRefused: there is no backup in the directory.
        BackupDamaged, FormatTooNew: its manifest cannot be read.
        StorageFailed: the disk refused.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self._disk = disk
        self._open: tuple[int, int] | None = None
        manifest = _read_manifest(disk, directory)
        if manifest is None:
            raise BackupRefused(directory, "there is no backup in it")
        self.manifest: BackupManifest = manifest

    def path(self, pos: int) -> str:
        """Path of the file in which a physical offset lies."""
        return _file_path(self.directory, pos - pos % self.manifest.segment_bytes)

    def read(self, pos: int, length: int) -> bytes:
        """Bytes of one file; behind its end they are zero. Raises BackupDamaged, StorageFailed."""
        start = pos - pos % self.manifest.segment_bytes
        path = _file_path(self.directory, start)
        try:
            if self._open is None or self._open[0] != start:
                self.close()
                self._open = (start, self._disk.open(path))
            return self._disk.pread(self._open[1], length, pos - start).ljust(length, b"\0")
        except FileNotFoundError as error:
            raise BackupDamaged(path, "the file is missing") from error
        except OSError as error:
            raise StorageFailed(path, error.errno or 0, "read") from error

    def runs(self) -> Iterator[EntryRun]:
        """Every entry, verified, in order. Raises BackupDamaged, FormatTooNew, StorageFailed; runs before were good."""
        manifest = self.manifest
        last = manifest.base.ref
        try:
            for run in entry_runs(self.read, last, manifest.last.index, manifest.segment_bytes):
                yield run
                last = run.entries[-1] if run.entries else last
        except EntryTooNew as error:
            path = self.path(error.physical_offset)
            raise FormatTooNew(path, f"the entry after {last.index}", error.found, error.newest) from error
        except FrameCorrupt as error:
            raise BackupDamaged(self.path(error.physical_offset), str(error)) from error
        if last != manifest.last:
            raise BackupDamaged(
                self.path(last.pos), f"entry {last.index} is not the one that the manifest names as its last"
            )

    def snapshot(self) -> bytes | None:
        """The snapshot, verified; None if there is none. Raises BackupDamaged, StorageFailed."""
        manifest = self.manifest
        if manifest.snapshot_index == 0:
            return None
        path = os.path.join(self.directory, SNAPSHOT_FILE_NAME)
        try:
            data = _read_file(self._disk, path)
        except FileNotFoundError as error:
            raise BackupDamaged(path, "the file is missing") from error
        except OSError as error:
            raise StorageFailed(path, error.errno or 0, "read") from error
        if (len(data), zlib.crc32(data)) != (manifest.snapshot_bytes, manifest.snapshot_crc):
            raise BackupDamaged(path, "its length or checksum is not that of the manifest")
        return data

    def close(self) -> None:
        """Release the file that was read last."""
        if self._open is not None:
            self._disk.close(self._open[1])
            self._open = None


class BackupTarget:
    """A directory that a backup is written to, for one process at a time. `close` it at the end.

    ``manifest`` is what it has, None before its first run ended.

    Raises:
        BackupRefused: it has something else in it, or another process writes to it.
        BackupDamaged, FormatTooNew: its manifest cannot be read.
        StorageFailed: the disk refused.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self._disk = disk
        self._lock_fd: int | None = None
        try:
            disk.mkdir(directory)
            self.manifest = _read_manifest(disk, directory)
            if self.manifest is None and (other := set(disk.listdir(directory)) - _OWN_NAMES - _IGNORED_NAMES):
                raise BackupRefused(directory, f"there is no backup in it, but {', '.join(sorted(other)[:5])}")
            self._lock_fd = disk.open(os.path.join(directory, LOCK_FILE_NAME), create=True)
            disk.lock(self._lock_fd)
            self.manifest = _read_manifest(disk, directory)  # as it is now that nobody else writes
        except BlockingIOError as error:
            self.close()
            raise BackupRefused(directory, "another process is writing to it") from error
        except OSError as error:
            self.close()
            raise StorageFailed(error.filename or directory, error.errno or 0, "opening the backup") from error

    def close(self) -> None:
        """Let others write to it."""
        if self._lock_fd is not None:
            self._disk.close(self._lock_fd)
            self._lock_fd = None

    def free_bytes(self) -> int:
        """Room that is left. Raises `StorageFailed`."""
        try:
            return self._disk.usage(self.directory)[0]
        except OSError as error:
            raise StorageFailed(self.directory, error.errno or 0, "asking for its room") from error

    def extend(
        self,
        source: RunningLog,
        *,
        conf: bytes,
        snapshot: Snapshot | None,
        now_ms: int,
        copied: Callable[[int], None] = lambda nbytes: None,
    ) -> BackupManifest:
        """Copy the entries behind the last one, up to what the source knows is committed.

        Args:
            conf: in force at the source's base; for the first run only, as is ``snapshot``, which a log without its
                beginning needs.
            copied: called for each piece that was written, with its bytes; may sleep.

        Returns:
            The manifest, which is durable. It has the new time also if there were no new entries.

        Raises:
            BackupRefused: the source does not continue this backup, or has nothing to begin one with.
            StorageCorrupt, FormatTooNew: an entry of the source is damaged, or of a newer version.
            EntryGone: retention took a file of the source that was not copied yet.
            StorageFailed: a disk refused, or has no room. In all these cases the backup is what it was.
            BackupDamaged: files of the backup are gone.
        """
        state = source.state
        before = self.manifest
        if before is None:
            before = self._first(source, conf, snapshot, now_ms)
        else:
            self._check_continued(source, before)
        last = before.last
        writing = _Files(self._disk, self.directory, state.segment_bytes)
        try:
            for run in entry_runs(source.read, last, state.commit_hint, state.segment_bytes):
                writing.write(run.pos, run.data)
                last = run.entries[-1] if run.entries else last
                copied(len(run.data))
            writing.finish()
            self._check_present(range(before.base.pos, last.pos + last.size, state.segment_bytes))
            if self.manifest is None and snapshot is not None:
                self._replace(SNAPSHOT_FILE_NAME, snapshot.data)
            manifest = msgspec.structs.replace(before, last=last, taken_at_ms=now_ms, node_id=state.node_id)
            self._replace(MANIFEST_NAME, encode_backup_manifest(manifest))
        except EntryTooNew as error:
            raise FormatTooNew(source.directory, f"the entry after {last.index}", error.found, error.newest) from error
        except FrameCorrupt as error:
            raise StorageCorrupt(source.directory, error.physical_offset, str(error)) from error
        except OSError as error:
            raise StorageFailed(error.filename or self.directory, error.errno or 0, "writing the backup") from error
        finally:
            writing.close()
        self.manifest = manifest
        return manifest

    def _first(self, source: RunningLog, conf: bytes, snapshot: Snapshot | None, now_ms: int) -> BackupManifest:
        state = source.state
        base = state.starts_at
        if state.commit_hint <= base.index:
            raise BackupRefused(self.directory, f"{source.directory} has no committed entry yet")
        if base.index and snapshot is None:
            raise BackupRefused(
                self.directory,
                f"the log in {source.directory} begins with entry {base.index + 1}, and there is no checkpoint of what "
                "was before that",
            )
        if snapshot is not None:
            assert base.index <= snapshot.index <= state.commit_hint, (
                f"a snapshot at {snapshot.index} of entries {base.index + 1} to {state.commit_hint}"
            )
        try:
            _clear(self._disk, os.path.join(self.directory, FILES_DIRECTORY))
        except OSError as error:
            raise StorageFailed(error.filename or self.directory, error.errno or 0, "clearing the backup") from error
        return BackupManifest(
            cluster_id=state.cluster_id,
            node_id=state.node_id,
            segment_bytes=state.segment_bytes,
            base=base,
            conf=conf,
            last=base.ref,
            taken_at_ms=now_ms,
            snapshot_index=0 if snapshot is None else snapshot.index,
            snapshot_bytes=0 if snapshot is None else len(snapshot.data),
            snapshot_crc=0 if snapshot is None else zlib.crc32(snapshot.data),
        )

    def _check_continued(self, source: RunningLog, before: BackupManifest) -> None:
        state, last = source.state, before.last
        reason: str | None = None
        if state.cluster_id != before.cluster_id:
            reason = f"it is of the log {before.cluster_id}, that in {source.directory} is {state.cluster_id}"
        elif state.segment_bytes != before.segment_bytes:
            reason = f"its files have {before.segment_bytes} bytes, those in {source.directory} {state.segment_bytes}"
        elif state.commit_hint < last.index:
            reason = (
                f"it ends with entry {last.index}, and {source.directory} knows only of {state.commit_hint} entries "
                "that they are committed: that replica is behind, or belongs to a group that was created again"
            )
        elif state.starts_at.pos > last.pos:
            reason = (
                f"its last entry is {last.index}, and the log in {source.directory} begins with entry "
                f"{state.starts_at.index + 1} by now: begin a new backup in another directory"
            )
        elif not source.holds(last):
            reason = f"the log in {source.directory} has another entry {last.index}: the group was created again"
        if reason is not None:
            raise BackupRefused(self.directory, reason)

    def _check_present(self, starts: range) -> None:
        """Whoever removes files of a backup meanwhile must not end up with a manifest that counts them.

        Raises BackupDamaged, OSError.
        """
        names = set(self._disk.listdir(os.path.join(self.directory, FILES_DIRECTORY)))
        for start in starts:
            if f"{start:020d}" not in names:
                raise BackupDamaged(_file_path(self.directory, start), "the file is missing")

    def _replace(self, name: str, content: bytes) -> None:
        """Have a file with this content, or the one before, whatever happens. Raises OSError."""
        path = os.path.join(self.directory, name)
        write_file(self._disk, path + ".tmp", content)
        self._disk.rename(path + ".tmp", path)
        self._disk.sync_directory(self.directory)


class _Files:
    """Writes ascending pieces to the files of a backup; what lies behind the first piece of a file is dropped."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int) -> None:
        self.start = -1
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._fd = -1
        self._unsynced = 0

    def write(self, pos: int, data: bytes) -> None:
        """Raises BackupDamaged, OSError."""
        start = pos - pos % self._segment_bytes
        if start != self.start:
            self._sync()
            self.close()
            path = _file_path(self._directory, start)
            # What is there already is not made: the target may have been removed, or mounted elsewhere.
            self._fd = self._disk.open(path, create=pos == start)
            self.start = start
            if (size := self._disk.size(self._fd)) < pos - start:
                raise BackupDamaged(path, f"it has {size} bytes where {pos - start} were written")
            self._disk.truncate(self._fd, pos - start)
        write_fully(self._disk.pwritev, self._fd, [data], pos - start)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_EVERY_BYTES:
            self._sync()

    def finish(self) -> None:
        """Make all of it durable. Raises OSError."""
        self._sync()
        self.close()
        self._disk.sync_directory(os.path.join(self._directory, FILES_DIRECTORY))

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    def _sync(self) -> None:
        if self._fd >= 0:
            self._disk.fdatasync(self._fd)
            self._unsynced = 0


def _file_path(directory: str, start: int) -> str:
    return os.path.join(directory, FILES_DIRECTORY, f"{start:020d}")


def _read_manifest(disk: Disk, directory: str) -> BackupManifest | None:
    path = os.path.join(directory, MANIFEST_NAME)
    try:
        return decode_backup_manifest(_read_file(disk, path), path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise BackupDamaged(path, str(error)) from error
    except OSError as error:
        raise StorageFailed(path, error.errno or errno.EIO, "read") from error


def _read_file(disk: Disk, path: str) -> bytes:
    fd = disk.open(path)
    try:
        return disk.pread(fd, disk.size(fd), 0)
    finally:
        disk.close(fd)


def _clear(disk: Disk, directory: str) -> None:
    """Remove what a run left that did not end."""
    disk.mkdir(directory)
    for name in disk.listdir(directory):
        disk.unlink(os.path.join(directory, name))
