"""The manifest of a backup: its content, and so which bytes of its store are valid. Pure.

There are two formats. In format 1, for directories, the files of the log grow, and are found by name. In format 2 they
are immutable objects: the manifest names each of them, with its length and checksum.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

import msgspec

from raftlog.log_numbers import NO_INDEX, LogIndex
from raftlog.segment.backup_store import MANIFEST_NAME
from raftlog.segment.codec import EntryRef
from raftlog.segment.errors import FormatTooNew
from raftlog.segment.meta import Base
from raftlog.segment.snapshot_install import Manifest, why_impossible

FORMAT: Final = 1
OBJECTS_FORMAT: Final = 2

_LOG_OBJECT = re.compile(r"log/(\d{20})\.\d+\.[\w-]+")
_SNAPSHOT_OBJECT = re.compile(r"snapshot/\d{20}\.\d+\.[\w-]+")
_INDEX_OBJECT = re.compile(r"index/(\d{20})\.\d+\.[\w-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class StoredIndex(msgspec.Struct, frozen=True):
    """The object with the index of a log file; its content is opaque here."""

    name: str
    nbytes: int
    sha256: str


class StoredObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """The object of the log file that begins at the physical offset ``start``.

    ``verified`` says that it was read back from the store after it was written, or that the store has compared it with
    checksums of what was written.
    """

    start: int
    name: str
    nbytes: int
    sha256: str
    verified: bool = False
    index: StoredIndex | None = None


class StoredState(msgspec.Struct, frozen=True):
    """The object with a snapshot that was taken after the entry ``index``, for a log that begins at it or before."""

    index: LogIndex
    name: str
    nbytes: int
    crc: int


class ObjectList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The objects of a backup of format 2.

    ``files`` are the log's, in order. The last one is replaced by a longer one when there are new entries;
    ``last_file`` describes the log before it. ``snapshot`` is empty if there is none. ``superseded`` are names from the
    previous manifest that this one does not have: they stay until the next run, for readers of that manifest.

    ``complete`` says that the log continues in the next file: then the newest object is never replaced. An older
    version of this software ignores that and replaces it by an equal one.

    ``states`` are snapshots on the way, in ascending order: the backup can begin later only where there is one.
    """

    last_file: Base
    files: tuple[StoredObject, ...]
    snapshot: str = ""
    superseded: tuple[str, ...] = ()
    complete: bool = False
    states: tuple[StoredState, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Names of all objects of the backup."""
        others = {each.index.name for each in self.files if each.index is not None}
        others |= {each.name for each in self.states} | ({self.snapshot} if self.snapshot else set())
        return frozenset(each.name for each in self.files) | others


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the content of a backup.

    ``base`` is where it begins, ``last`` its last entry. ``conf`` is the configuration in force at the base, empty if
    the source did not know it. ``taken_at_ms`` (since 1970) is the start of the last run, ``node_id`` its source.
    ``snapshot_index`` is the entry after which the snapshot was taken, 0 without one.
    """

    format: int = FORMAT
    cluster_id: str
    node_id: str
    segment_bytes: int
    base: Base
    conf: bytes
    last: EntryRef
    taken_at_ms: int
    snapshot_index: LogIndex = NO_INDEX
    snapshot_bytes: int = 0
    snapshot_crc: int = 0
    objects: ObjectList | msgspec.UnsetType = msgspec.UNSET

    @property
    def end_pos(self) -> int:
        """Physical offset of the end of the last entry."""
        return self.last.pos + self.last.size

    @property
    def next_file(self) -> Base:
        """The start of the next run's first object: the end of the last file, or the start of an incomplete one."""
        if self.objects is msgspec.UNSET:
            return self.base
        if not self.objects.complete:
            return self.objects.last_file
        last = self.last
        return Base(last.index, last.term, self.objects.files[-1].start + self.segment_bytes, last.chain)

    @property
    def archived(self) -> Base:
        """The end of the part of the log whose objects are complete, and were read back after they were written."""
        end = self.next_file
        files = () if self.objects is msgspec.UNSET else self.objects.files
        return end if all(each.verified for each in files if each.start < end.pos) else self.base

    def as_offer(self, last: EntryRef | None = None, conf: bytes | None = None) -> Manifest:
        """The manifest for a replica that takes over the log, up to the entry ``last``."""
        return Manifest(
            self.base,
            self.last if last is None else last,
            self.conf if conf is None else conf,
            self.segment_bytes,
            self.snapshot_bytes,
            self.snapshot_crc,
        )


class _Format(msgspec.Struct):
    format: int


class _Envelope(msgspec.Struct):
    """The content of the manifest's file; the CRC-32 covers ``backup`` in JSON."""

    crc32: int
    backup: msgspec.Raw


def encode_backup_manifest(manifest: BackupManifest) -> bytes:
    """The content of the manifest's file: JSON."""
    inner = msgspec.json.encode(manifest)
    return b'{"crc32":%d,\n"backup":%s}\n' % (zlib.crc32(inner), inner)


def decode_backup_manifest(data: bytes, path: str = MANIFEST_NAME) -> BackupManifest:
    """Raises ValueError for anything but a result of `encode_backup_manifest`, FormatTooNew for a newer version."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        inner = bytes(envelope.backup)
        if (crc := zlib.crc32(inner)) != envelope.crc32:
            raise ValueError(f"its checksum is {crc:#010x} instead of {envelope.crc32:#010x}")
        if (version := msgspec.json.decode(inner, type=_Format).format) > OBJECTS_FORMAT:
            raise FormatTooNew(path, "the backup", version, OBJECTS_FORMAT)
        manifest = msgspec.json.decode(inner, type=BackupManifest)
        reason = why_impossible(manifest.as_offer()) or _why_objects_impossible(manifest)
        if reason is not None:
            raise ValueError(f"invalid backup: {reason}")
        return manifest
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _why_objects_impossible(manifest: BackupManifest) -> str | None:
    objects = manifest.objects
    if objects is msgspec.UNSET:
        return None if manifest.format < OBJECTS_FORMAT else "it names no objects"
    starts = range(manifest.base.pos, manifest.end_pos, manifest.segment_bytes)
    if len(objects.files) != len(starts):
        return f"it names {len(objects.files)} objects for {len(starts)} log files"
    for start, each in zip(starts, objects.files, strict=True):
        name = _LOG_OBJECT.fullmatch(each.name)
        if each.start != start or name is None or int(name[1]) != start:
            return f"{each.name!r} is not an object of the file at {start}"
        if not 0 < each.nbytes <= manifest.segment_bytes or not _SHA256.fullmatch(each.sha256):
            return f"length or checksum of {each.name} is invalid"
        if (index := each.index) is not None:
            name = _INDEX_OBJECT.fullmatch(index.name)
            if name is None or int(name[1]) != start or index.nbytes <= 0 or not _SHA256.fullmatch(index.sha256):
                return f"{index.name!r} is not an index of the file at {start}"
    before = objects.last_file
    if before.pos != starts[-1] or not manifest.base.index <= before.index < manifest.last.index:
        return f"its newest object cannot begin at {before.pos} after entry {before.index}"
    if bool(objects.snapshot) != bool(manifest.snapshot_index) or (
        objects.snapshot and not _SNAPSHOT_OBJECT.fullmatch(objects.snapshot)
    ):
        return f"{objects.snapshot!r} is not an object of a snapshot"
    last = manifest.base.index
    for state in objects.states:
        if not _SNAPSHOT_OBJECT.fullmatch(state.name) or state.nbytes <= 0 or not 0 <= state.crc < 2**32:
            return f"{state.name!r} is not an object of a snapshot"
        if not last < state.index <= manifest.last.index:
            return f"its snapshot after entry {state.index} is not behind {last}, or not in it"
        last = state.index
    if wrong := [name for name in objects.superseded if not _LOG_OBJECT.fullmatch(name)]:
        return f"{wrong[0]!r} is not an object of the log"
    return None
