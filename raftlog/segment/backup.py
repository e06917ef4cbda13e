"""Backups of a log: committed entries in a separate store, extended by each run.

Theory of operation. Committed entries never change and are equal on all replicas, byte by byte. So a backup is a
growing prefix of the log: a run copies what follows the last entry of the previous run, from any replica. A manifest
says up to which entry the copy is valid. Files are only written after that entry, and the manifest is replaced last,
atomically. So an interrupted run leaves the backup unchanged.

In a directory: ``manifest.json``; ``log/`` with segment files by their names, without trailing zeros; ``snapshot``,
opaque here, for a log without its beginning; ``LOCK``. In object storage the same files are immutable objects, see
`backup_layouts`. Copies of either can be read as well.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby, takewhile
from typing import Final, Protocol

import msgspec

from raftlog.log_numbers import NO_INDEX, LogIndex
from raftlog.segment.backup_layouts import (
    INDEX_FOLDER,
    SNAPSHOT_NAME,
    Snapshot,
    check_stored,
    drop_leftovers,
    file_name,
    layout_for,
    objects_for,
    quietly_tidy,
    without_beginning,
)
from raftlog.segment.backup_manifest import (
    BackupManifest,
    StoredObject,
    decode_backup_manifest,
    encode_backup_manifest,
)
from raftlog.segment.backup_store import (
    CONDITIONS_NAME,
    LOCK_FILE_NAME,
    LOG_FOLDER,
    MANIFEST_NAME,
    BackupDamaged,
    BackupRefused,
    BackupStore,
    EagerStore,
    ManifestChanged,
    NotStored,
)
from raftlog.segment.codec import BLANK_BYTES_MIN, EntryRef
from raftlog.segment.entry_runs import EntryRun, entry_runs
from raftlog.segment.errors import EntryTooNew, FormatTooNew, FrameCorrupt, SegmentError, StorageCorrupt
from raftlog.segment.meta import Base
from raftlog.segment.running_log import RunningLog

_READ_BYTES: Final = 1024 * 1024
_OWN_NAMES: Final = frozenset(
    (
        LOG_FOLDER,
        INDEX_FOLDER,
        LOCK_FILE_NAME,
        SNAPSHOT_NAME,
        SNAPSHOT_NAME + ".tmp",
        MANIFEST_NAME + ".tmp",
        CONDITIONS_NAME,
    )
)
_IGNORED_NAMES: Final = frozenset(("lost+found",))


class Backup:
    """An existing backup, for reading. Call `close` at the end, which closes the store.

    Raises:
        BackupRefused: there is no backup in the store.
        BackupDamaged, FormatTooNew: its manifest cannot be decoded.
        StorageFailed, StoreFailed: an error of the store.
    """

    def __init__(self, store: BackupStore) -> None:
        self.name = store.name
        self._store = store
        manifest = _load_manifest(store)
        if manifest is None:
            raise BackupRefused(store.name, "the location contains no backup")
        self.manifest: BackupManifest = manifest
        self._objects = _objects(manifest)
        self._checksum = _Checksum(None)
        self._whole: set[StoredObject] = set()

    def path(self, pos: int) -> str:
        """Path of the file that contains a physical offset."""
        return self._store.path(self._name(pos - pos % self.manifest.segment_bytes))

    def read(self, pos: int, length: int) -> bytes:
        """Bytes of one file; zeros after its end. Raises BackupDamaged, StorageFailed, StoreFailed."""
        offset = pos % self.manifest.segment_bytes
        start = pos - offset
        try:
            data = self._store.read(self._name(start), length, offset)
        except NotStored as error:
            if not self._superseded(start):
                raise self.missing_error(error) from error
            return self.read(pos, length)
        if object_ := self._objects.get(start):
            if offset == 0 or self._checksum.object != object_:
                self._checksum = _Checksum(object_)
            if (reason := self._checksum.why_damaged(offset, data, length)) is not None:
                raise BackupDamaged(self._store.path(object_.name), reason)
            if self._checksum.complete:
                self._whole.add(object_)
        return data.ljust(length, b"\0")

    def runs(self) -> Iterator[EntryRun]:
        """Yield every entry, verified, in order; runs before an error are valid.

        Raises:
            BackupDamaged, FormatTooNew, StorageFailed, StoreFailed
        """
        manifest = self.manifest
        last = manifest.base.ref
        if isinstance(self._store, EagerStore) and self._objects:
            self._store.will_read([(each.name, each.nbytes) for each in self._objects.values()])
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
                self.path(last.pos), f"the last entry, {last.index}, differs from the one in the manifest"
            )
        if manifest.next_file.pos > last.pos:  # what follows the last entry of a complete file
            self.read(manifest.end_pos, BLANK_BYTES_MIN)
        for each in _objects(manifest).values():
            if self._objects[each.start] == each and each not in self._whole:
                raise BackupDamaged(self._store.path(each.name), "it does not end with an entry of this backup")

    def snapshot(self) -> bytes | None:
        """The snapshot, verified; None if there is none. Raises BackupDamaged, StorageFailed, StoreFailed."""
        manifest = self.manifest
        if manifest.snapshot_index == 0:
            return None
        name = SNAPSHOT_NAME if manifest.objects is msgspec.UNSET else manifest.objects.snapshot
        try:
            data = self._read_all(name, manifest.snapshot_bytes + 1)
        except NotStored as error:
            raise self.missing_error(error) from error
        if (len(data), zlib.crc32(data)) != (manifest.snapshot_bytes, manifest.snapshot_crc):
            raise BackupDamaged(self._store.path(name), "its length or checksum differs from the manifest")
        return data

    def missing_error(self, error: NotStored) -> BackupDamaged | BackupRefused:
        """The error for a missing object: it is damage, unless it was deleted after this backup was opened.

        Raises BackupDamaged, FormatTooNew, StorageFailed, StoreFailed: the manifest cannot be read again.
        """
        now = _load_manifest(self._store)
        if now is None or now.objects is msgspec.UNSET or now.base.pos <= self.manifest.base.pos:
            return BackupDamaged(error.path, "it is missing")
        return BackupRefused(
            error.path,
            f"it was deleted during the reading, since the backup now begins with entry {now.base.index + 1}: "
            "begin again",
        )

    def close(self) -> None:
        """Release the file that was read last."""
        self._store.close()

    def _name(self, start: int) -> str:
        object_ = self._objects.get(start)
        return file_name(start) if object_ is None else object_.name

    def _superseded(self, start: int) -> bool:
        """Whether a run has replaced this object meanwhile by one with the same beginning, which is used then."""
        if start not in self._objects or (now := _load_manifest(self._store)) is None:
            return False
        newer = _objects(now).get(start)
        if newer is None or newer == self._objects[start]:
            return False
        self._objects[start] = newer
        return True

    def _read_all(self, name: str, limit: int) -> bytes:
        pieces: list[bytes] = []
        nbytes = 0
        while nbytes < limit and (piece := self._store.read(name, min(_READ_BYTES, limit - nbytes), nbytes)):
            pieces.append(piece)
            nbytes += len(piece)
        return b"".join(pieces)


class FileIndex(Protocol):
    """Builds the index of one file of the log."""

    def add(self, run: EntryRun) -> None:
        """Add the next entries of the file."""

    def content(self) -> bytes:
        """The index, after all of the file; not empty."""


class BackupTarget:
    """A store to write a backup to, for one process at a time. Call `close` at the end.

    What an aborted run has left in a directory is removed.

    ``manifest`` is its content, None before its first complete run. ``not_tidied`` is why the last run could not remove
    obsolete files, None if it could.

    Raises:
        BackupRefused: the store contains something else, or another process writes to it.
        BackupDamaged, FormatTooNew: its manifest cannot be decoded.
        StorageFailed, StoreFailed: an error of the store. In all these cases the store was closed.
    """

    def __init__(self, store: BackupStore) -> None:
        self.name = store.name
        self.not_tidied: SegmentError | None = None
        self._store = store
        try:
            self.manifest = _load_manifest(store)
            if self.manifest is None and (other := set(store.names()) - _OWN_NAMES - _IGNORED_NAMES):
                raise BackupRefused(store.name, f"has no backup; it contains {', '.join(sorted(other)[:5])}")
            store.begin_writing()
            self.manifest = _load_manifest(store)  # loaded again under the lock
            drop_leftovers(store, self.manifest)
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Release the lock."""
        self._store.close()

    def free_bytes(self) -> int | None:
        """Free space, None if unknown. Raises `StorageFailed`."""
        return self._store.free_bytes()

    def extend(
        self,
        source: RunningLog,
        *,
        conf: bytes,
        snapshot: Snapshot | None,
        now_ms: int,
        on_copy: Callable[[int], None] = lambda nbytes: None,
    ) -> BackupManifest:
        """Copy the entries after the last one, as far as the source knows them to be committed.

        Args:
            conf: in force at the source's base; only for the first run, like ``snapshot``, which a log without its
                beginning needs.
            on_copy: called for each written piece, with its size; may sleep.

        Returns:
            The durable manifest. It has the new time even if there were no new entries.

        Raises:
            BackupRefused: the source does not continue this backup, or cannot start one.
            StorageCorrupt, FormatTooNew: an entry of the source is damaged, or of a newer version.
            EntryGone: retention deleted a file of the source that was not copied yet.
            StorageFailed, StoreFailed: an error of a disk or the store, or no room.
            BackupDamaged: files of the backup are missing. In all these cases the backup is unchanged.
        """
        state, store = source.state, self._store
        before, first = self._begin(source, conf, snapshot, now_ms), self.manifest is None
        layout = layout_for(store, before, first=first, now_ms=now_ms, node_id=state.node_id)
        last = layout.resume_after if state.commit_hint > before.last.index else before.last

        def pieces(runs: Iterator[EntryRun]) -> Iterator[bytes]:
            nonlocal last
            for run in runs:
                yield run.data
                last = run.entries[-1] if run.entries else last
                on_copy(len(run.data))

        with _source_errors(source, lambda: last):
            all_runs = entry_runs(source.read, last, state.commit_hint, state.segment_bytes)
            for start, runs in groupby(all_runs, lambda run: run.pos - run.pos % state.segment_bytes):
                layout.put(start, last, pieces(runs))
        commit, had = state.commit_hint, before.last.index
        assert had <= last.index <= commit, f"copied up to {last.index}, {had} was there, {commit} is committed"
        manifest = msgspec.structs.replace(before, last=last, taken_at_ms=now_ms, node_id=state.node_id)
        manifest = layout.complete(manifest, snapshot if first else None)
        store.replace_manifest(encode_backup_manifest(manifest))
        self.manifest = manifest
        self.not_tidied = quietly_tidy(layout, manifest)
        return manifest

    def archive_file(
        self,
        source: RunningLog,
        *,
        conf: bytes,
        snapshot: Snapshot | None,
        now_ms: int,
        new_index: Callable[[Base], FileIndex],
        state_for: Callable[[LogIndex], Snapshot | None] = lambda last: None,
        may_tidy: bool = True,
        on_copy: Callable[[int], None] = lambda nbytes: None,
    ) -> BackupManifest:
        """Store the next file of the log with its index; read back what the store has not compared itself, then replace
        the manifest.

        The file must be complete: the source knows of a committed entry in the next one (`RunningLog.goes_on_at`). A
        file that a backup has stored before it was complete is stored again as a whole.

        Args:
            conf, snapshot: as for `extend`.
            new_index: called with the log before the file; the result gets all of the file.
            state_for: called with the last entry of the file; a snapshot from which the log can be restored when the
                backup begins later, at most of that entry, or None.
            may_tidy: whether old objects that the manifest does not name are left by aborted runs. They are not if
                somebody has replaced it by an older one: then they may be all that is left of a part of the log.
            on_copy: called for each piece that was written or read back, with its size; may sleep.

        Returns:
            The durable manifest, read back.

        Raises as `extend`; and ManifestChanged if another run has replaced the manifest.
        """
        state, store = source.state, self._store
        before, first = self._begin(source, conf, snapshot, now_ms), self.manifest is None
        layout = objects_for(store, before, first=first, now_ms=now_ms, node_id=state.node_id, on_verify=on_copy)
        begin = before.next_file
        last, index = begin.ref, new_index(begin)

        def pieces(runs: Iterator[EntryRun]) -> Iterator[bytes]:
            nonlocal last
            for run in runs:
                index.add(run)
                yield run.data
                last = run.entries[-1] if run.entries else last
                on_copy(len(run.data))

        with _source_errors(source, lambda: last):
            all_runs = entry_runs(source.read, last, state.commit_hint, state.segment_bytes)
            file = takewhile(lambda run: run.pos < begin.pos + state.segment_bytes, all_runs)
            layout.put(begin.pos, begin.ref, pieces(file))
        assert last.index < state.commit_hint, f"the file at {begin.pos} ends with entry {last.index}, the last one"
        layout.put_index(index.content())
        if (stored_state := state_for(last.index)) is not None:
            assert stored_state.index <= last.index, f"a snapshot after {stored_state.index}, behind entry {last.index}"
            layout.put_state(stored_state)
        manifest = msgspec.structs.replace(before, last=last, taken_at_ms=now_ms, node_id=state.node_id)
        manifest = layout.complete(manifest, snapshot if first else None, is_complete=True)
        self._replace_manifest(manifest)
        self.not_tidied = quietly_tidy(layout, manifest) if may_tidy else None
        return manifest

    def begin_at(self, begin: Base, *, now_ms: int, node_id: str) -> BackupManifest:
        """Leave out the files before ``begin``, where one of them begins: first in the manifest, then their objects.

        Objects that an earlier run left out are deleted now, those of this run by the next one. Only if the manifest
        has all that the group knows to be archived, and one of its snapshots is not older than ``begin``.

        Returns:
            The durable manifest.

        Raises:
            ManifestChanged: another run has replaced the manifest.
            StorageFailed, StoreFailed: an error of the store. In both cases the backup is unchanged.
        """
        before = self.manifest
        assert before is not None, f"nothing to shorten at {self.name}"
        manifest = without_beginning(before, begin)
        layout = objects_for(self._store, before, first=False, now_ms=now_ms, node_id=node_id)
        self._replace_manifest(manifest)
        self.not_tidied = quietly_tidy(layout, manifest)
        return manifest

    def verify_objects(self, on_read: Callable[[int], None] = lambda nbytes: None) -> BackupManifest:
        """Read back the complete objects of a backup that was taken without, and note in the manifest that they are
        intact.

        Raises:
            BackupDamaged: an object is missing, or not what was written.
            ManifestChanged: another run has replaced the manifest.
            StorageFailed, StoreFailed: an error of the store. In all these cases the backup is unchanged.
        """
        before = self.manifest
        assert before is not None, f"nothing to verify at {self.name}"
        if before.objects is msgspec.UNSET:
            raise BackupRefused(self.name, "it is a copy of a backup in a directory: use a new prefix for an archive")
        files = []
        for each in before.objects.files:
            if not each.verified and each.start < before.next_file.pos:
                check_stored(self._store, each, on_read)
                each = msgspec.structs.replace(each, verified=True)
            files.append(each)
        if tuple(files) != before.objects.files:
            objects = msgspec.structs.replace(before.objects, files=tuple(files))
            self._replace_manifest(msgspec.structs.replace(before, objects=objects))
        assert self.manifest is not None, "a manifest was replaced by none"
        return self.manifest

    def add_index(self, object_: StoredObject, content: bytes, *, now_ms: int, node_id: str) -> BackupManifest:
        """Store a complete file's missing index, read it back, and replace the manifest. Raises as `verify_objects`."""
        before = self.manifest
        assert before is not None, f"no file at {self.name} lacks an index"
        assert before.objects is not msgspec.UNSET, f"{self.name} is a copy of a directory"
        assert object_.index is None, f"{object_.name} has an index"
        layout = objects_for(self._store, before, first=False, now_ms=now_ms, node_id=node_id)
        with_index = msgspec.structs.replace(object_, index=layout.write_index(object_.start, content))
        files = tuple(with_index if each == object_ else each for each in before.objects.files)
        assert with_index in files, f"{object_.name} is not an object of {self.name}"
        manifest = msgspec.structs.replace(before, objects=msgspec.structs.replace(before.objects, files=files))
        self._replace_manifest(manifest)
        return manifest

    def _replace_manifest(self, manifest: BackupManifest) -> None:
        """Replace the manifest, and read it back: a store may ignore the condition of another writer."""
        content = encode_backup_manifest(manifest)
        self._store.replace_manifest(content)
        if self._store.load_manifest() != content:
            raise ManifestChanged(self.name, "another run has changed the manifest right after this one")
        self.manifest = manifest

    def check_continued(self, source: RunningLog) -> None:
        """Raises BackupRefused if this backup cannot be continued from the source."""
        assert self.manifest is not None, f"nothing to continue at {self.name}"
        self._check_continued(source, self.manifest)

    def _begin(self, source: RunningLog, conf: bytes, snapshot: Snapshot | None, now_ms: int) -> BackupManifest:
        """The manifest to continue, or the manifest of an empty backup. Raises BackupRefused."""
        if self.manifest is None:
            return self._first_backup(source, conf, snapshot, now_ms)
        self._check_continued(source, self.manifest)
        return self.manifest

    def _first_backup(self, source: RunningLog, conf: bytes, snapshot: Snapshot | None, now_ms: int) -> BackupManifest:
        state = source.state
        base = state.starts_at
        if state.commit_hint <= base.index:
            raise BackupRefused(self.name, f"{source.directory} has no committed entry yet")
        if base.index and snapshot is None:
            raise BackupRefused(
                self.name,
                f"the log in {source.directory} begins with entry {base.index + 1}, and there is no checkpoint of the "
                "entries before it",
            )
        if snapshot is not None:
            assert base.index <= snapshot.index <= state.commit_hint, (
                f"a snapshot at {snapshot.index} of entries {base.index + 1} to {state.commit_hint}"
            )
        return BackupManifest(
            cluster_id=state.cluster_id,
            node_id=state.node_id,
            segment_bytes=state.segment_bytes,
            base=base,
            conf=conf,
            last=base.ref,
            taken_at_ms=now_ms,
            snapshot_index=NO_INDEX if snapshot is None else snapshot.index,
            snapshot_bytes=0 if snapshot is None else len(snapshot.data),
            snapshot_crc=0 if snapshot is None else zlib.crc32(snapshot.data),
        )

    def _check_continued(self, source: RunningLog, before: BackupManifest) -> None:
        state, last = source.state, before.last
        reason: str | None = None
        if state.cluster_id != before.cluster_id:
            reason = f"it belongs to log {before.cluster_id}, and {source.directory} to log {state.cluster_id}"
        elif state.segment_bytes != before.segment_bytes:
            reason = f"its files have {before.segment_bytes} bytes, those in {source.directory} {state.segment_bytes}"
        elif state.commit_hint < last.index:
            reason = (
                f"it ends with entry {last.index}, and {source.directory} knows only of {state.commit_hint} entries "
                "that they are committed: that replica is behind, or belongs to a group that was created again"
            )
        elif state.starts_at == before.next_file and state.starts_at.index == last.index:
            pass  # their chains are equal: retention has deleted exactly what is stored
        elif state.starts_at.pos > last.pos:
            reason = (
                f"its last entry is {last.index}, and the log in {source.directory} begins with entry "
                f"{state.starts_at.index + 1} by now: begin a new backup in another directory"
            )
        elif not source.holds(last):
            reason = f"the log in {source.directory} has another entry {last.index}: the group was created again"
        elif before.next_file.index == last.index < state.commit_hint and not source.begins_file(
            LogIndex(last.index + 1), before.next_file.pos
        ):
            reason = (
                f"it ends with entry {last.index} and a complete file, which goes on in {source.directory}: "
                "the group was restored from it, and needs a new prefix"
            )
        if reason is not None:
            raise BackupRefused(self.name, reason)


class _Checksum:
    """The checksum of one object, read in ascending pieces that may overlap. Other pieces are ignored."""

    def __init__(self, object_: StoredObject | None) -> None:
        self.object = object_
        self._nbytes = 0
        self._sha256 = hashlib.sha256()

    @property
    def complete(self) -> bool:
        """Whether all of the object was read, and is intact."""
        return self.object is not None and self._nbytes == self.object.nbytes

    def why_damaged(self, offset: int, data: bytes, requested_bytes: int) -> str | None:
        """The reason that ``data``, read at ``offset`` for ``requested_bytes`` bytes, is damaged; None if it is not."""
        assert self.object is not None, "a checksum of nothing"
        nbytes, end = self.object.nbytes, offset + len(data)
        if (data and end > nbytes) or (len(data) < requested_bytes and end < nbytes):
            return f"it does not have the {nbytes:,} bytes that were written"
        if offset <= self._nbytes < end:
            self._sha256.update(memoryview(data)[self._nbytes - offset :])
            self._nbytes = end
            if end == nbytes and self._sha256.hexdigest() != self.object.sha256:
                return "its content differs from what was written: the SHA-256 is different"
        return None


@contextmanager
def _source_errors(source: RunningLog, last: Callable[[], EntryRef]) -> Iterator[None]:
    """Add the source's path to errors of entries read in the block; ``last`` returns the last intact entry."""
    try:
        yield
    except EntryTooNew as error:
        what = f"the entry after {last().index}"
        raise FormatTooNew(source.directory, what, error.found, error.newest) from error
    except FrameCorrupt as error:
        raise StorageCorrupt(source.directory, error.physical_offset, str(error)) from error


def _objects(manifest: BackupManifest) -> dict[int, StoredObject]:
    return {} if manifest.objects is msgspec.UNSET else {each.start: each for each in manifest.objects.files}


def _load_manifest(store: BackupStore) -> BackupManifest | None:
    content, path = store.load_manifest(), store.path(MANIFEST_NAME)
    try:
        return None if content is None else decode_backup_manifest(content, path)
    except ValueError as error:
        raise BackupDamaged(path, str(error)) from error
