"""Archives that have a limit, of logs that grow a file at a time."""

from __future__ import annotations

from pathlib import Path

from chaos.disk import MemoryDisk
from chaos.object_store import BucketStore
from mq.store.archive.reader import ArchiveReader
from mq.store.archive.worker_protocol import ArchiveStep
from mq.store.checkpoint import CHECKPOINT_NAME, PREVIOUS_NAME, Checkpoint, encode_checkpoint
from raftlog import NodeId
from raftlog.backup_restore import restore
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment.backup import Backup
from raftlog.segment.backup_manifest import BackupManifest, decode_backup_manifest
from raftlog.segment.backup_store import MANIFEST_NAME
from tests.support.archived_logs import BEGIN_MS, SEGMENT_BYTES, MessageLog, new_bucket, steps

DAY_MS = 24 * 3_600_000
KEPT = 3 * SEGMENT_BYTES


class Home:
    """A log that grows a file at a time, with a checkpoint in each, and its archive, which has a limit."""

    def __init__(self, directory: Path, files: int = 6, now_ms: int = BEGIN_MS) -> None:
        self.directory = directory
        self.log, self.bucket = MessageLog(), new_bucket()
        self.now_ms = now_ms
        while len([each for each in self.log.log.segments() if each.closed]) < files:
            self.log.send(5)
            self.checkpoint()
            self.run(bytes_max=1 << 30)

    def checkpoint(self) -> None:
        state = Checkpoint(applied_index=LogIndex(self.log.log.last_index), applied_term=Term(1), state=b"state")
        if (self.directory / CHECKPOINT_NAME).exists():
            (self.directory / CHECKPOINT_NAME).replace(self.directory / PREVIOUS_NAME)
        (self.directory / CHECKPOINT_NAME).write_bytes(encode_checkpoint(state))

    def run(self, **given: object) -> list[ArchiveStep]:
        self.now_ms += DAY_MS * 2
        known = self.manifest.archived.index if MANIFEST_NAME in self.bucket.objects else 0
        job = {"has_retention": True, "data_dir": str(self.directory)} | given
        return list(steps(self.log, self.bucket, known_index=known, now_ms=self.now_ms, **job))

    @property
    def manifest(self) -> BackupManifest:
        return decode_backup_manifest(self.bucket.objects[MANIFEST_NAME])

    def check(self) -> None:
        """The archive is sound, and can be restored."""
        reader = ArchiveReader(BucketStore(self.bucket))
        reader.verify()
        disk, node = MemoryDisk(), NodeId("n9")
        restored = restore(Backup(BucketStore(self.bucket)), disk, "/new", node_id=node, addresses={node: "a:1"})
        assert restored.last.index == self.manifest.last.index
        assert self.manifest.snapshot_index >= self.manifest.base.index

    def files(self) -> list[str]:
        return sorted(name for name in self.bucket.objects if name.startswith("log/"))
