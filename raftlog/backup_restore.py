"""Restores the log of a backup into the directory of a new replica.

A restore has two steps. `survey` reads and verifies the whole backup and finds the last wanted entry; nothing is
written before. `restore` writes a directory: closed files and the snapshot as when a replica takes over a log from
another one (`SnapshotInstall`), the following entries as a follower appends them, and finally the members of the new
group. All directories restored from the same backup with the same members have equal logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raftlog.consensus.confchange import decode_conf, encode_conf
from raftlog.consensus.types import ConfState, NodeId
from raftlog.forced_members import append_members, founding_configuration
from raftlog.segment.backup import Backup
from raftlog.segment.backup_store import BackupDamaged, BackupRefused
from raftlog.segment.codec import CONFIG, HEADER_BYTES, NORMAL, EntryRef
from raftlog.segment.disk import Disk
from raftlog.segment.entry_runs import entry_runs
from raftlog.segment.errors import FrameCorrupt
from raftlog.segment.log import SegmentLog
from raftlog.segment.meta_keys import CONF
from raftlog.segment.snapshot_install import SnapshotInstall

Wanted = Callable[[bytes], bool]
"""Whether to restore a normal entry with this body; the log ends before the first one that is not wanted."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The part of a backup to restore.

    ``last`` is its last entry, ``closed_last`` the last one in the file before that of ``last``, or the placeholder for
    the base. ``base_conf`` is the configuration at the base of the log, ``conf`` the one at its end; both are None if
    unknown.
    """

    last: EntryRef
    closed_last: EntryRef
    base_conf: ConfState | None
    conf: ConfState | None


def survey(backup: Backup, wanted: Wanted | None = None, read: Callable[[int], None] = lambda nbytes: None) -> Survey:
    """Read all of a backup, up to its last wanted entry.

    Args:
        wanted: default: all entries.
        read: called with the bytes of each piece.

    Raises:
        BackupRefused: it has no wanted entry, or cannot be restored to such an early point.
        BackupDamaged, StorageFailed, StoreFailed: it cannot be read.
    """
    manifest = backup.manifest
    last = closed_last = manifest.base.ref
    base_conf = decode_conf(manifest.conf) if manifest.conf else None
    conf = base_conf
    backup.snapshot()
    for run in backup.runs():
        read(len(run.data))
        for entry in run.entries:
            if wanted is not None and entry.kind == NORMAL and not wanted(run.body(entry)):
                return _checked(backup, Survey(last, closed_last, base_conf, conf))
            if entry.pos // manifest.segment_bytes != last.pos // manifest.segment_bytes:
                closed_last = last
            last = entry
            if entry.kind == CONFIG:
                conf = decode_conf(run.body(entry))
                base_conf = base_conf or founding_configuration(conf)
    return _checked(backup, Survey(last, closed_last, base_conf, conf))


def _checked(backup: Backup, found: Survey) -> Survey:
    base, first = backup.manifest.base.index, max(backup.manifest.base.index + 1, backup.manifest.snapshot_index)
    if found.last.index < first:
        raise BackupRefused(
            backup.name,
            f"it begins with entry {base + 1} and can be restored to entry {first} or any later one; "
            f"what is wanted ends with entry {found.last.index}",
        )
    return found


def restore(
    backup: Backup,
    found: Survey,
    disk: Disk,
    directory: str,
    *,
    node_id: NodeId,
    addresses: Mapping[NodeId, str],
    copied: Callable[[int], None] = lambda nbytes: None,
) -> tuple[int, int]:
    """Create the log of one replica of a new group.

    Args:
        directory: empty or missing.
        addresses: of all voters of the new group, including this one, ``HOST:PORT``.

    Returns:
        Index and term of the last entry: equal for all replicas restored from the same backup.

    Raises:
        MembersRefused: the new members cannot be reached from the old ones.
        BackupDamaged: the backup has changed since `survey`.
        SegmentError: a disk error. The directory is unusable then.
    """
    manifest = backup.manifest
    base_conf = found.base_conf or ConfState(tuple(addresses), (), (), tuple(addresses.items()))
    if found.closed_last.index > 0:
        install = SnapshotInstall(disk, directory, manifest.as_offer(found.closed_last, encode_conf(base_conf)))
        try:
            snapshot = backup.snapshot() or b""
            while (piece := install.wanted()) is not None:
                what, pos, nbytes = piece
                data = backup.read(pos, nbytes) if what == "log" else snapshot[pos : pos + nbytes]
                if not install.take(what, pos, data):
                    raise BackupDamaged(backup.path(pos), "it changed during the read")
                copied(nbytes)
            install.finish()
        finally:
            install.close()
    log = SegmentLog.open(
        directory,
        cluster_id=manifest.cluster_id,
        node_id=node_id,
        segment_bytes=manifest.segment_bytes,
        disk=disk,
    )
    try:
        assert log.last_index == found.closed_last.index, f"{directory}: ends with entry {log.last_index}"
        for run in entry_runs(backup.read, found.closed_last, found.last.index, manifest.segment_bytes):
            for entry in run.entries:
                at = entry.pos - run.pos
                log.append_framed(entry, run.data[at : at + HEADER_BYTES], run.body(entry))
            log.submit(log.last_ticket + 1, commit_hint=log.last_index)
            copied(len(run.data))
        log.set_note(CONF, encode_conf(base_conf))
        append_members(log, found.conf or base_conf, node_id, addresses)
        return log.last_index, log.last_term
    except FrameCorrupt as error:
        raise BackupDamaged(backup.path(error.physical_offset), str(error)) from error
    finally:
        log.close()
