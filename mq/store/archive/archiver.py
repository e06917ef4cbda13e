"""Archives the complete files of a log one after the other: objects, then the manifest, then the report.

Objects are read back, unless the store has compared them with checksums itself (`BackupStore.write`). Only what this
module reports may count as archived, and it reports nothing before the manifest that names it is durable and was read
back. Two archivers at once are harmless: the manifest is replaced only by whoever read it last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import msgspec

from mq.store.archive.file_index import FileIndexBuilder
from mq.store.archive.reader import ArchiveReader
from mq.store.archive.retention import expired_begin
from mq.store.archive.worker_protocol import ArchiveJob, ArchiveStep, Trouble
from mq.store.backup_checkpoint import forget_pending, keep_pending, snapshot_between
from raftlog.forced_members import configuration_at_base
from raftlog.log_numbers import LogIndex
from raftlog.segment.backup import BackupTarget
from raftlog.segment.backup_layouts import Snapshot
from raftlog.segment.backup_manifest import BackupManifest
from raftlog.segment.backup_store import BackupDamaged, BackupRefused, BackupStore, ManifestChanged, StoreFailed
from raftlog.segment.errors import SegmentError
from raftlog.segment.meta import Base
from raftlog.segment.running_log import RunningLog


class SnapshotNotReady(Exception):
    """The log has lost its beginning, and no checkpoint of the lost part is known to be committed yet."""


class ArchiveStore(BackupStore, Protocol):
    """A store that several replicas may write to."""

    def check_conditions(self) -> None:
        """Raises BackupRefused if the store ignores the condition of a write; then two writers would lose a manifest.
        Also `StoreFailed`.
        """


def archive(
    store: ArchiveStore,
    source: RunningLog,
    job: ArchiveJob,
    *,
    now_ms: Callable[[], int],
    on_copy: Callable[[int], None] = lambda nbytes: None,
) -> Iterator[ArchiveStep]:
    """Archive all complete files of a log that the archive does not have; closes the store at the end.

    Yields a step for the files that were archived before, one for each new file, and one with ``is_last``. ``on_copy``
    is called for each piece that was written or read back; it may sleep.
    """
    assert job.known_index >= 0, f"the group knows that {job.known_index} entries are archived"
    try:
        target = BackupTarget(store)
    except SegmentError as error:
        yield _trouble(error)
        return
    try:
        store.check_conditions()
        yield from _Archiver(target, store, source, job, now_ms, on_copy).steps()
    except SegmentError as error:
        yield _trouble(error)
    except SnapshotNotReady:
        yield ArchiveStep(is_last=True)  # a moment later there is one
    except OSError as error:
        yield ArchiveStep(is_last=True, trouble=Trouble.REPLICA, reason=str(error))
    finally:
        target.close()


class _Archiver:
    """Archives the log once; see `archive`."""

    def __init__(
        self,
        target: BackupTarget,
        store: ArchiveStore,
        source: RunningLog,
        job: ArchiveJob,
        now_ms: Callable[[], int],
        on_copy: Callable[[int], None],
    ) -> None:
        self._target = target
        self._store = store
        self._source = source
        self._job = job
        self._now_ms = now_ms
        self._on_copy = on_copy

    def steps(self) -> Iterator[ArchiveStep]:
        """Archive file after file, and yield a step for each. Raises SegmentError, OSError, SnapshotNotReady."""
        target, known_index = self._target, self._job.known_index
        manifest = target.manifest
        if manifest is None and known_index:
            raise BackupRefused(
                target.name,
                f"the manifest is missing, although the group has archived up to entry {known_index} there. Restore "
                "the manifest, or set archive_url to a new prefix",
            )
        if manifest is not None:
            if manifest.archived.index < known_index:
                yield ArchiveStep(is_older=True)  # also if it cannot be continued: the group must not rely on it
            target.check_continued(self._source)
            manifest = target.verify_objects(self._on_copy)
            if manifest.archived.index >= known_index:
                manifest = self._add_indexes(manifest)
            yield _step(manifest)
        while (more := self._next_file()) is not None:
            begin = more.base.pos if manifest is None else manifest.archived.pos
            assert more.archived.pos > begin, f"a file from {begin} on was archived, up to {more.archived.pos}"
            yield _step(more, nbytes=more.archived.pos - begin)
            manifest = more
        if manifest is not None and self._job.has_retention and manifest.archived.index >= known_index:
            yield from self._shorten(manifest)
        if self._job.has_retention:
            keep_pending(self._job.data_dir, self._next_snapshot(), self._source.state.commit_hint)
        else:
            forget_pending(self._job.data_dir)
        yield ArchiveStep(is_last=True)

    def _add_indexes(self, manifest: BackupManifest) -> BackupManifest:
        """Add indexes for files of `raftmq backup`: brokers read messages by them, and retention needs them."""
        objects, end = manifest.objects, manifest.next_file.pos
        assert objects is not msgspec.UNSET, "an archive without objects"
        if all(each.index is not None for each in objects.files if each.start < end):
            return manifest
        reader = ArchiveReader(self._store)
        for file in reader.files():
            if file.index is None and file.stored.start < end:
                content = reader.derived_index(file, self._on_copy)
                manifest = self._target.add_index(
                    file.stored, content, now_ms=self._now_ms(), node_id=self._source.state.node_id
                )
        return manifest

    def _next_file(self) -> BackupManifest | None:
        target, source = self._target, self._source
        state = source.refresh()
        size = state.segment_bytes
        next_file = state.starts_at if target.manifest is None else target.manifest.next_file
        if not source.goes_on_at(next_file.pos + size):
            return None
        manifest = target.manifest
        return target.archive_file(
            source,
            may_tidy=manifest is None or manifest.archived.index >= self._job.known_index,
            conf=configuration_at_base(state),
            snapshot=_snapshot(source, self._job.data_dir) if manifest is None else None,
            now_ms=self._now_ms(),
            new_index=lambda begin: FileIndexBuilder(begin, size),
            state_for=self._state_for(),
            on_copy=self._on_copy,
        )

    def _state_for(self) -> Callable[[LogIndex], Snapshot | None]:
        """Return a function that finds the snapshot to store with the next file: one behind the stored snapshots."""
        if not self._job.has_retention:
            return lambda last: None
        first = self._next_snapshot()
        # Found now: when the file is stored, the checkpoints may be of later ones.
        snapshot = snapshot_between(self._job.data_dir, first, self._source.state.commit_hint, pending=True)

        def state_for(last: LogIndex) -> Snapshot | None:
            is_in = snapshot is not None and snapshot.index <= last
            return snapshot if is_in else snapshot_between(self._job.data_dir, first, last, pending=True)

        return state_for

    def _next_snapshot(self) -> LogIndex:
        """The lowest entry of which the next snapshot may be."""
        manifest = self._target.manifest
        if manifest is None or manifest.objects is msgspec.UNSET:
            return LogIndex(1)
        newest = manifest.objects.states[-1].index if manifest.objects.states else manifest.snapshot_index
        return LogIndex(max(newest, manifest.base.index) + 1)

    def _shorten(self, manifest: BackupManifest) -> Iterator[ArchiveStep]:
        """Report the files to delete, and delete the files that no replica serves."""
        job = self._job
        limits = partial(
            expired_begin,
            manifest,
            self._store,
            now_ms=self._now_ms(),
            oldest_ms=job.oldest_ms,
            bytes_max=job.bytes_max,
        )
        new = limits(pos_max=manifest.archived.pos)
        if new is None:
            return
        assert new.pos > manifest.base.pos, f"the archive begins at {manifest.base.pos}, and is to begin at {new.pos}"
        yield ArchiveStep(expired_pos=new.pos)
        if (begin := new if new.pos <= job.begin_pos else limits(pos_max=job.begin_pos)) is not None:
            yield _step(self._target.begin_at(begin, now_ms=self._now_ms(), node_id=self._source.state.node_id))


def _snapshot(source: RunningLog, data_dir: str) -> Snapshot | None:
    """The snapshot that a log without its beginning needs. Raises SnapshotNotReady, OSError."""
    state = source.state
    if state.starts_at.index == 0:
        return None
    newest = snapshot_between(data_dir, state.starts_at.index, state.commit_hint)
    if newest is None:
        raise SnapshotNotReady
    assert state.starts_at.index <= newest.index <= state.commit_hint, (
        f"a state after entry {newest.index} for a log that begins behind {state.starts_at.index}, and is committed up "
        f"to {state.commit_hint}"
    )
    return newest


def _step(manifest: BackupManifest, *, nbytes: int = 0) -> ArchiveStep:
    end: Base = manifest.archived
    return ArchiveStep(end.index, end.term, end.pos, end.chain, nbytes, begin_pos=manifest.base.pos)


def _trouble(error: SegmentError) -> ArchiveStep:
    match error:
        case ManifestChanged():
            kind = Trouble.OTHER_WRITER
        case StoreFailed():
            kind = Trouble.STORE
        case BackupDamaged():
            kind = Trouble.DAMAGED
        case BackupRefused():
            kind = Trouble.REFUSED
        case _:
            kind = Trouble.REPLICA
    return ArchiveStep(is_last=True, trouble=kind, reason=str(error))
