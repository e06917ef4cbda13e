"""Restores the log of a backup into the directory of a new replica.

The backup is read once: each entry is verified, and then written (`LogImage`). The vote file is written when the last
entry has been verified; until then the directory is not a log, and cannot be opened. Finally the members of the new
group are appended. All directories restored from the same backup with the same members have equal logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from raftlog.consensus.confchange import decode_conf, encode_conf
from raftlog.consensus.types import ConfState, NodeId
from raftlog.forced_members import append_members, founding_configuration
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment.backup import Backup
from raftlog.segment.backup_store import BackupRefused
from raftlog.segment.codec import CONFIG, NORMAL, EntryRef
from raftlog.segment.disk import Disk
from raftlog.segment.entry_runs import EntryRun
from raftlog.segment.log import SegmentLog
from raftlog.segment.log_image import LogImage
from raftlog.segment.meta import MetaState
from raftlog.segment.note_names import CONF
from raftlog.segment.read_ahead import read_ahead

IsWanted = Callable[[bytes], bool]
"""Whether to restore a normal entry with this body; the log ends before the first one that is not wanted."""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """A restored log. ``last`` is the last entry from the backup, ``newest_body`` the last normal body, or empty.

    ``last_index`` and ``last_term`` are those of the log's last entry: equal for all replicas that are restored from
    the same backup with the same members.
    """

    last: EntryRef
    newest_body: bytes
    last_index: LogIndex
    last_term: Term


def restore(
    backup: Backup,
    disk: Disk,
    directory: str,
    *,
    node_id: NodeId,
    addresses: Mapping[NodeId, str],
    is_wanted: IsWanted | None = None,
    on_copy: Callable[[int], None] = lambda nbytes: None,
) -> RestoreResult:
    """Create the log of one replica of a new group.

    Args:
        directory: empty or missing.
        addresses: of all voters of the new group, including this one, ``HOST:PORT``.
        is_wanted: default: all entries.
        on_copy: called with the bytes of each verified and written piece.

    Raises:
        BackupRefused: it has no wanted entry, or cannot be restored to such an early point.
        BackupDamaged, FormatTooNew: an entry of the backup is damaged, or of a newer version.
        MembersInvalid: the new members cannot be reached from the old ones.
        SegmentError: an error of the disk or of the store. After any of these the directory must be removed.
    """
    manifest = backup.manifest
    snapshot = backup.snapshot()
    copy = _Copy(backup, LogImage(disk, directory, manifest.base, manifest.segment_bytes), is_wanted)
    try:
        if snapshot is not None:
            copy.image.add_snapshot(snapshot)
        with closing(read_ahead(backup.runs())) as runs:
            for run in runs:
                if not copy.copy_run(run):
                    break
                on_copy(len(run.data))
        last = copy.image.last
        first = max(manifest.base.index + 1, manifest.snapshot_index)
        if last.index < first:
            raise BackupRefused(
                backup.name,
                f"it begins with entry {manifest.base.index + 1} and can be restored to entry {first} or any later "
                f"one; what is wanted ends with entry {last.index}",
            )
        base_conf = copy.base_conf or ConfState(tuple(addresses), (), (), tuple(addresses.items()))
        copy.image.finish(
            MetaState(
                manifest.cluster_id,
                node_id,
                manifest.segment_bytes,
                term=last.term,
                commit_hint=last.index,
                durable_pos=last.pos + last.size,
                durable_chain=last.chain,
                clean=True,
                boot_id=disk.boot_id(),
                base=manifest.base,
                notes={CONF: encode_conf(base_conf)},
            )
        )
    finally:
        copy.image.close()
    log = SegmentLog.open(
        directory,
        cluster_id=manifest.cluster_id,
        node_id=node_id,
        segment_bytes=manifest.segment_bytes,
        disk=disk,
    )
    try:
        assert log.last_index == last.index, f"{directory}: ends with entry {log.last_index}, not {last.index}"
        append_members(log, copy.conf or base_conf, node_id, addresses)
        return RestoreResult(last, copy.newest_body, log.last_index, log.last_term)
    finally:
        log.close()


class _Copy:
    """Copies runs into an image, up to the last wanted entry.

    ``base_conf`` is the configuration at the base of the log, ``conf`` the one at its end; both are None if unknown.
    """

    def __init__(self, backup: Backup, image: LogImage, is_wanted: IsWanted | None) -> None:
        self.image = image
        self.base_conf = decode_conf(backup.manifest.conf) if backup.manifest.conf else None
        self.conf = self.base_conf
        self.newest_body = b""
        self._is_wanted = is_wanted

    def copy_run(self, run: EntryRun) -> bool:
        """Copy a run, or its beginning; returns whether all its entries are wanted."""
        newest: EntryRef | None = None
        whole = True
        for number, entry in enumerate(run.entries):
            if entry.kind == NORMAL:
                if self._is_wanted is not None and not self._is_wanted(run.body(entry)):
                    run = EntryRun(run.pos, run.data[: entry.pos - run.pos], run.entries[:number])
                    whole = False
                    break
                newest = entry
            elif entry.kind == CONFIG:
                self.conf = decode_conf(run.body(entry))
                self.base_conf = self.base_conf or founding_configuration(self.conf)
        if newest is not None:
            self.newest_body = run.body(newest)
        self.image.add(run)
        return whole
