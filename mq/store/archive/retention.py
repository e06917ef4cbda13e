"""Chooses the oldest files of an archive to delete, by the age of messages or by the bytes of all files.

They are deleted in three steps, and whatever ends one of them, the next run continues. The group agrees on where its
messages begin from then on, so that no replica serves older ones; the manifest no longer names the files; their objects
are removed.
"""

from __future__ import annotations

import hashlib

import msgspec

from mq.store.archive.file_index import decode_file_index
from raftlog.segment.backup_layouts import stored_at_ms
from raftlog.segment.backup_manifest import BackupManifest, StoredObject
from raftlog.segment.backup_store import BackupDamaged, BackupStore, NotStored
from raftlog.segment.meta import Base


def expired_begin(
    manifest: BackupManifest,
    store: BackupStore,
    *,
    now_ms: int,
    oldest_ms: int | None,
    bytes_max: int | None,
    pos_max: int,
) -> Base | None:
    """Return where the archive should begin; None if nothing is to be deleted. The newest file is always kept, and so
    are the files that are needed to restore from one of the snapshots.

    Args:
        now_ms: the time. A message that was stored later, by the clock of its leader, does not hold its file for ever:
            it is as old as the file in the archive.
        oldest_ms: a file whose newest message was stored before this time is to be deleted; None for no limit. One
            without an index, and all behind it, are kept.
        bytes_max: of all files that are kept; None for no limit.
        pos_max: nothing behind this physical offset is deleted.

    Raises:
        BackupDamaged: an index is missing or damaged. FormatTooNew. StoreFailed: an error of the store.
    """
    objects = manifest.objects
    assert objects is not msgspec.UNSET, "an archive without objects"
    begin: Base | None = None
    newest_state = max(manifest.snapshot_index, *(each.index for each in objects.states), 0)
    nbytes = sum(each.nbytes for each in objects.files)
    for each in objects.files[:-1]:
        is_surplus = bytes_max is not None and nbytes > bytes_max
        if not is_surplus and oldest_ms is None:
            break
        newest_and_end = _newest_and_end(each, store)
        if newest_and_end is None:
            break
        newest_ms, end = newest_and_end
        if newest_ms > now_ms and (archived_ms := stored_at_ms(each)) is not None:
            newest_ms = min(newest_ms, archived_ms)
        if not is_surplus and not (oldest_ms is not None and newest_ms < oldest_ms):
            break
        if end.pos > min(manifest.archived.pos, pos_max) or end.index > newest_state:
            break
        begin = end
        nbytes -= each.nbytes
    assert begin is None or manifest.base.pos < begin.pos <= objects.files[-1].start, (
        f"an archive that begins at {begin}"
    )
    return begin


def _newest_and_end(file: StoredObject, store: BackupStore) -> tuple[int, Base] | None:
    """Return the store time of a file's newest message, and the log behind the file; None if it has no index."""
    index = file.index
    if index is None:
        return None
    path = store.path(index.name)
    try:
        content = store.read(index.name, index.nbytes, 0)
    except NotStored as error:
        raise BackupDamaged(path, "it is missing") from error
    if hashlib.sha256(content).hexdigest() != index.sha256:
        raise BackupDamaged(path, "its content differs from what was written")
    file_index = decode_file_index(content, path)
    return max(block.newest_ms for block in file_index.blocks), file_index.end
