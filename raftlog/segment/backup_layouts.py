"""The layouts of log files in the store of a backup: growing files, or immutable objects.

Both start with `Layout.resume_after`, take the files of the log one after the other, and finally return the manifest.
Until that is written, the backup is unchanged.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from raftlog.log_numbers import LogIndex
from raftlog.segment.backup_manifest import (
    OBJECTS_FORMAT,
    BackupManifest,
    ObjectList,
    StoredIndex,
    StoredObject,
    StoredState,
)
from raftlog.segment.backup_store import LOG_FOLDER, BackupDamaged, BackupRefused, BackupStore, GrowingStore, NotStored
from raftlog.segment.codec import EntryRef
from raftlog.segment.errors import SegmentError
from raftlog.segment.files import segment_start
from raftlog.segment.meta import Base

SNAPSHOT_NAME: Final = "snapshot"
"""A file in a directory, a folder in object storage."""

INDEX_FOLDER: Final = "index"
"""The folder in object storage with an index for each log file of an archive."""

_READ_BYTES: Final = 1024 * 1024

LEFTOVERS_STAY_MS: Final = 24 * 3_600_000
"""An object without a manifest belongs to a running or an aborted run. Removed at this age."""


def _ignore(nbytes: int) -> None:
    """Ignore the count, for callers who do not count."""


_ODD = re.compile(r"[^A-Za-z0-9_-]")
_RUN = re.compile(r"(\d{20})\.(\d+)\..+")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the application right after the entry ``index``."""

    index: LogIndex
    data: bytes


class Layout(Protocol):
    """Stores the data of one run. Every method may raise BackupDamaged, `StorageFailed`, `StoreFailed`.

    Attributes:
        resume_after: the run copies the entries after this one; earlier ones are stored already.
    """

    resume_after: EntryRef

    def put(self, start: int, before: EntryRef, pieces: Iterable[bytes]) -> None:
        """Store the file that begins at ``start``, or the rest of it; ``before`` is the entry before the first piece.

        Exceptions of ``pieces`` propagate unchanged.
        """

    def complete(self, manifest: BackupManifest, snapshot: Snapshot | None) -> BackupManifest:
        """Store the snapshot of a first run, and check that everything is there. Returns the new manifest."""

    def tidy(self, manifest: BackupManifest) -> None:
        """Remove objects that are obsolete once this manifest is written."""


def layout_for(store: BackupStore, before: BackupManifest, *, first: bool, now_ms: int, node_id: str) -> Layout:
    """The layout of a backup in a store.

    Args:
        before: the manifest of the previous run, or of an empty backup for the ``first`` run.

    Raises:
        BackupRefused: the backup has the other layout.
    """
    has_objects = before.objects is not msgspec.UNSET
    if isinstance(store, GrowingStore):
        if has_objects:
            raise BackupRefused(
                store.name, "it is a copy of a backup in object storage, which can only be continued there"
            )
        return GrowingFiles(store, before)
    return objects_for(store, before, first=first, now_ms=now_ms, node_id=node_id)


def objects_for(
    store: BackupStore,
    before: BackupManifest,
    *,
    first: bool,
    now_ms: int,
    node_id: str,
    on_verify: Callable[[int], None] | None = None,
) -> ImmutableObjects:
    """The layout in object storage; see `layout_for` and `ImmutableObjects`. Raises BackupRefused."""
    if not first and before.objects is msgspec.UNSET:
        raise BackupRefused(
            store.name, "it is a copy of a backup in a directory, which can only be continued there: use a new prefix"
        )
    run = f"{now_ms}.{_ODD.sub('_', node_id)}"
    return ImmutableObjects(store, before, run, now_ms, on_verify=on_verify)


class GrowingFiles:
    """Stores a backup as files named as in the log, without trailing zeros (format 1)."""

    def __init__(self, store: GrowingStore, before: BackupManifest) -> None:
        self.resume_after = before.last
        self._store = store
        self._end_pos = before.end_pos

    def put(self, start: int, before: EntryRef, pieces: Iterable[bytes]) -> None:
        """Write the new data of a file."""
        self._store.append(file_name(start), max(self._end_pos - start, 0), pieces)

    def complete(self, manifest: BackupManifest, snapshot: Snapshot | None) -> BackupManifest:
        """Check that no file of the backup was removed meanwhile, before a manifest refers to them."""
        names = set(self._store.names(LOG_FOLDER))
        for start in range(manifest.base.pos, manifest.end_pos, manifest.segment_bytes):
            if f"{start:020d}" not in names:
                raise BackupDamaged(self._store.path(file_name(start)), "the file is missing")
        if snapshot is not None:
            self._store.write(SNAPSHOT_NAME, (snapshot.data,))
        return manifest

    def tidy(self, manifest: BackupManifest) -> None:
        """Do nothing: nothing has to be removed."""


class ImmutableObjects:
    """One object for each file of the log, with a name unique to this run. Format 2.

    If the newest file is not complete yet, a run with new entries stores all of it again, under another name. So a
    manifest is valid as long as its objects exist, whatever other runs do.

    Args:
        on_verify: if given, every object is read back after it is written, unless the store has compared checksums
            of all of it; this is called for each piece that is read, with its size; may sleep. Raises BackupDamaged if
            it is not what was written.
    """

    def __init__(
        self,
        store: BackupStore,
        before: BackupManifest,
        run: str,
        now_ms: int,
        *,
        on_verify: Callable[[int], None] | None = None,
    ) -> None:
        objects = before.objects
        self._before = ObjectList(last_file=before.base, files=()) if objects is msgspec.UNSET else objects
        self.resume_after = before.next_file.ref
        self._store = store
        self._on_verify = on_verify
        self._run = run
        self._now_ms = now_ms
        self._last_file = self._before.last_file
        self._new: list[StoredObject] = []
        self._states = self._before.states

    def put(self, start: int, before: EntryRef, pieces: Iterable[bytes]) -> None:
        """Store a whole file: a run begins at the start of the newest one."""
        last = self._new[-1].start if self._new else -1
        assert last < start, f"a file at {start} behind the one at {last}"
        nbytes, checksum = 0, hashlib.sha256()

        def count_bytes() -> Iterator[bytes]:
            nonlocal nbytes
            for piece in pieces:
                nbytes += len(piece)
                checksum.update(piece)
                yield piece

        name = f"{file_name(start)}.{self._run}"
        was_compared = self._store.write(name, count_bytes())
        object_ = StoredObject(start, name, nbytes, checksum.hexdigest(), verified=self._on_verify is not None)
        if self._on_verify is not None and not was_compared:
            check_stored(self._store, object_, self._on_verify)
        self._new.append(object_)
        self._last_file = Base(before.index, before.term, start, before.chain)

    def put_index(self, content: bytes) -> None:
        """Store the index of the file that was put last."""
        assert self._new, f"an index of {len(content)} bytes, and no file was stored"
        object_ = self._new[-1]
        self._new[-1] = msgspec.structs.replace(object_, index=self.write_index(object_.start, content))

    def write_index(self, start: int, content: bytes) -> StoredIndex:
        """Store the index of the file that begins at a physical offset, and read it back."""
        name = f"{INDEX_FOLDER}/{start:020d}.{self._run}"
        self._store.write(name, (content,))
        index = StoredIndex(name, len(content), hashlib.sha256(content).hexdigest())
        check_stored(self._store, index)
        return index

    def put_state(self, state: Snapshot) -> None:
        """Store a snapshot on the way, behind those that are there."""
        last = self._states[-1].index if self._states else -1
        assert last < state.index, f"a snapshot after entry {state.index} behind the one after {last}"
        name = f"{SNAPSHOT_NAME}/{state.index:020d}.{self._run}"
        self._store.write(name, (state.data,))
        check_stored(
            self._store,
            StoredIndex(name, len(state.data), hashlib.sha256(state.data).hexdigest()),
            self._on_verify or _ignore,
        )
        self._states += (StoredState(state.index, name, len(state.data), zlib.crc32(state.data)),)

    def complete(
        self, manifest: BackupManifest, snapshot: Snapshot | None, *, is_complete: bool = False
    ) -> BackupManifest:
        """List the objects in a manifest. A previous run's incomplete newest object is replaced if this run stored any.

        ``is_complete`` says that the newest object that this run has stored is a complete file.
        """
        start = self._new[0].start if self._new else manifest.end_pos
        name = self._before.snapshot
        if snapshot is not None:
            name = f"{SNAPSHOT_NAME}/{snapshot.index:020d}.{self._run}"
            self._store.write(name, (snapshot.data,))
            if self._on_verify is not None:
                index_object = StoredIndex(name, len(snapshot.data), hashlib.sha256(snapshot.data).hexdigest())
                check_stored(self._store, index_object, self._on_verify)
        objects = ObjectList(
            last_file=self._last_file,
            files=(*(each for each in self._before.files if each.start < start), *self._new),
            snapshot=name,
            superseded=tuple(each.name for each in self._before.files if each.start >= start),
            complete=is_complete if self._new else self._before.complete,
            states=self._states,
        )
        if absent := objects.names - set(self._names()):
            raise BackupDamaged(self._store.path(min(absent)), "the object is missing")
        return msgspec.structs.replace(manifest, format=OBJECTS_FORMAT, objects=objects)

    def tidy(self, manifest: BackupManifest) -> None:
        """Remove objects that neither this manifest nor the one before it has: those that the previous run superseded,
        and old leftovers.

        What is behind the end of this manifest stays, however old it is by this clock: another run may be about to
        name it, or did so in a newer manifest, which another run has replaced by this one.
        """
        assert manifest.objects is not msgspec.UNSET, "objects without a list of them"
        used_names = manifest.objects.names | _with_indexes(manifest.objects.superseded) | self._before.names
        old_names = _with_indexes(self._before.superseded)
        newest_state = max(manifest.snapshot_index, *(each.index for each in manifest.objects.states), 0)
        for name in list(self._names()):
            if name in used_names:
                continue
            folder, _, its_name = name.rpartition("/")
            run = _RUN.fullmatch(its_name)
            old = run is not None and int(run[2]) < self._now_ms - LEFTOVERS_STAY_MS
            if old and run is not None:
                number = int(run[1])
                old = number <= newest_state if folder == SNAPSHOT_NAME else number < manifest.next_file.pos
            if old or name in old_names:
                self._store.remove(name)

    def _names(self) -> Iterator[str]:
        for folder in (LOG_FOLDER, INDEX_FOLDER, SNAPSHOT_NAME):
            yield from (f"{folder}/{name}" for name in self._store.names(folder))


def _with_indexes(names: Iterable[str]) -> set[str]:
    """Names of log files, and of their indexes, which runs store under the same name in another folder."""
    return {f"{folder}/{name.rpartition('/')[2]}" for name in names for folder in (LOG_FOLDER, INDEX_FOLDER)}


def without_beginning(manifest: BackupManifest, begin: Base) -> BackupManifest:
    """The manifest of a backup without the files before ``begin``, where one of them begins. One of its snapshots is
    not older, so that a log that begins there can be restored. Later runs delete the objects.
    """
    objects = manifest.objects
    assert objects is not msgspec.UNSET, "a backup in a directory has no objects to leave out"
    assert manifest.base.pos < begin.pos <= objects.files[-1].start, f"a backup is to begin at {begin.pos}"
    states = [each for each in objects.states if each.index >= begin.index]
    snapshot, index = objects.snapshot, manifest.snapshot_index
    nbytes, crc = manifest.snapshot_bytes, manifest.snapshot_crc
    if index < begin.index:
        assert states, f"no snapshot of {manifest.cluster_id} is behind entry {begin.index}"
        first = states.pop(0)
        snapshot, index, nbytes, crc = first.name, first.index, first.nbytes, first.crc
    else:
        states = [each for each in states if each.index > index]
    new_list = msgspec.structs.replace(
        objects,
        files=tuple(each for each in objects.files if each.start >= begin.pos),
        states=tuple(states),
        snapshot=snapshot,
        superseded=tuple(each.name for each in objects.files if each.start < begin.pos),
    )
    return msgspec.structs.replace(
        manifest,
        base=begin,
        conf=b"",
        objects=new_list,
        snapshot_index=index,
        snapshot_bytes=nbytes,
        snapshot_crc=crc,
    )


def check_stored(
    store: BackupStore, object_: StoredObject | StoredIndex, read: Callable[[int], None] = _ignore
) -> None:
    """Read an object and compare its length and SHA-256. ``read`` is called with the size of each piece.

    Raises:
        BackupDamaged: it is missing, or not what was written.
        StorageFailed, StoreFailed: an error of the store.
    """
    checksum, nbytes = hashlib.sha256(), 0
    try:
        while piece := store.read(object_.name, _READ_BYTES, nbytes):
            checksum.update(piece)
            nbytes += len(piece)
            read(len(piece))
    except NotStored as error:
        raise BackupDamaged(error.path, "it is missing") from error
    if (nbytes, checksum.hexdigest()) != (object_.nbytes, object_.sha256):
        raise BackupDamaged(
            store.path(object_.name),
            f"what was read back ({nbytes:,} bytes) differs from what was written ({object_.nbytes:,} bytes)",
        )


def stored_at_ms(object_: StoredObject) -> int | None:
    """The time at which the run began that stored an object, by its clock; None if the name does not tell."""
    run = _RUN.fullmatch(object_.name.rpartition("/")[2])
    return None if run is None else int(run[2])


def file_name(start: int) -> str:
    """Name in the store of the file that begins at this physical offset, or of its first part."""
    return f"{LOG_FOLDER}/{start:020d}"


def drop_leftovers(store: BackupStore, manifest: BackupManifest | None) -> None:
    """Remove what an aborted run has left in a directory: it takes room that the next run needs.

    Objects of an aborted run stay, since another run may be using them; see `ImmutableObjects.tidy`.

    Args:
        manifest: None if there is no backup yet.

    Raises:
        StorageFailed: an error of the disk.
    """
    if not isinstance(store, GrowingStore) or (manifest is not None and manifest.objects is not msgspec.UNSET):
        return
    for name in list(store.names(LOG_FOLDER)):
        if manifest is None:
            store.remove(f"{LOG_FOLDER}/{name}")
        elif (start := segment_start(name, manifest.segment_bytes)) is None:
            continue  # not of a backup
        elif start >= manifest.end_pos:
            store.remove(f"{LOG_FOLDER}/{name}")
        elif start + manifest.segment_bytes > manifest.end_pos and store.read(
            file_name(start), 1, end := manifest.end_pos - start
        ):
            store.append(file_name(start), end, ())


def quietly_tidy(layout: Layout, manifest: BackupManifest) -> SegmentError | None:
    """Call `Layout.tidy` and return its error. The backup is complete all the same: a later run retries."""
    try:
        layout.tidy(manifest)
    except SegmentError as error:
        return error
    return None
