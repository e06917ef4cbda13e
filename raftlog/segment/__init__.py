"""A replicated log on one disk: entry framing, segment files, group commit, the vote file, and recovery."""

from raftlog.segment.codec import (
    CONFIG,
    HEADER_BYTES,
    NOOP,
    NORMAL,
    EntryRef,
    TailEntry,
    frame,
    initial_chain,
    scan_entries,
)
from raftlog.segment.deletable_files import Deletion, LocalTier, RetentionPolicy, Situation, droppable
from raftlog.segment.disk import Disk, RealDisk
from raftlog.segment.errors import (
    DirectoryLocked,
    DirectoryMismatch,
    DirectoryUnusable,
    EntryGone,
    FormatTooNew,
    FrameCorrupt,
    LogDiverged,
    MetaCorrupt,
    SegmentError,
    StorageCorrupt,
    StorageFailed,
)
from raftlog.segment.files import Preallocation
from raftlog.segment.index import SegmentInfo
from raftlog.segment.log import SegmentLog
from raftlog.segment.meta import Base, MetaState
from raftlog.segment.note_names import COPIED, EARLY, EARLY_ELSEWHERE, REFILLED
from raftlog.segment.recovery import LogDamaged
from raftlog.segment.repair import Repair
from raftlog.segment.snapshot_install import SNAPSHOT_NAME, Manifest, SnapshotInstall, decode_manifest, encode_manifest
from raftlog.segment.writer import InlineWriter, LogWriter, Writer

__all__ = [
    "CONFIG",
    "COPIED",
    "EARLY",
    "EARLY_ELSEWHERE",
    "HEADER_BYTES",
    "NOOP",
    "NORMAL",
    "REFILLED",
    "SNAPSHOT_NAME",
    "Base",
    "Deletion",
    "DirectoryLocked",
    "DirectoryMismatch",
    "DirectoryUnusable",
    "Disk",
    "EntryGone",
    "EntryRef",
    "FormatTooNew",
    "FrameCorrupt",
    "InlineWriter",
    "LocalTier",
    "LogDamaged",
    "LogDiverged",
    "LogWriter",
    "Manifest",
    "MetaCorrupt",
    "MetaState",
    "Preallocation",
    "RealDisk",
    "Repair",
    "RetentionPolicy",
    "SegmentError",
    "SegmentInfo",
    "SegmentLog",
    "Situation",
    "SnapshotInstall",
    "StorageCorrupt",
    "StorageFailed",
    "TailEntry",
    "Writer",
    "decode_manifest",
    "droppable",
    "encode_manifest",
    "frame",
    "initial_chain",
    "scan_entries",
]
