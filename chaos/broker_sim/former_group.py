"""Builds the archive of a former group of the same name: as intact as the present one, but with other messages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from mq.store.archive.file_index import FileIndexBuilder
from raftlog.segment.backup_manifest import BackupManifest, StoredIndex, StoredObject, encode_backup_manifest
from raftlog.segment.backup_store import MANIFEST_NAME
from raftlog.segment.codec import HEADER, HEADER_BYTES, NORMAL, EntryRef, frame
from raftlog.segment.entry_runs import entry_runs
from raftlog.segment.meta import Base

_BORN_AT = 47
"""The last byte of the time at which the first message of an entry was born; no checksum of the message covers it."""


def former_archive(manifest: BackupManifest, objects: Mapping[str, bytes], files: int) -> dict[str, bytes]:
    """Return the first ``files`` files of an archive as objects in which each message has another birth time."""
    assert manifest.objects is not msgspec.UNSET, "an archive without objects"
    files_by_name: dict[str, bytes] = {}
    size = manifest.segment_bytes
    last, begin = manifest.base.ref, manifest.base
    entries: list[StoredObject] = []
    for each in manifest.objects.files[:files]:
        begin = Base(last.index, last.term, each.start, last.chain)
        content, last = _alter_file(objects[each.name], each.start, last)
        builder = FileIndexBuilder(begin, size)
        data, start = content, each.start

        def read(pos: int, length: int, data: bytes = data, start: int = start) -> bytes:
            return data[pos - start : pos - start + length].ljust(length, b"\0")

        for run in entry_runs(read, begin.ref, last.index, size):
            builder.add(run)
        name, index = f"log/{each.start:020d}.1.former", f"index/{each.start:020d}.1.former"
        files_by_name[name], files_by_name[index] = content, builder.content()
        its_index = StoredIndex(index, len(files_by_name[index]), hashlib.sha256(files_by_name[index]).hexdigest())
        sha256 = hashlib.sha256(content).hexdigest()
        entries.append(StoredObject(each.start, name, len(content), sha256, verified=True, index=its_index))
    object_list = msgspec.structs.replace(
        manifest.objects, last_file=begin, files=tuple(entries), superseded=(), states=(), complete=True
    )
    files_by_name[MANIFEST_NAME] = encode_backup_manifest(
        msgspec.structs.replace(manifest, last=last, objects=object_list)
    )
    return files_by_name


def _alter_file(content: bytes, start: int, last: EntryRef) -> tuple[bytes, EntryRef]:
    """Return a log file with other entries of the same sizes, and its last entry. ``last`` is the entry before it."""
    pieces: list[bytes] = []
    at = 0
    while at + HEADER_BYTES <= len(content):
        kind, size, index, term, pos, _, _, _, _ = HEADER.unpack_from(content, at)
        if not size:
            break
        body = bytearray(content[at + HEADER_BYTES : at + size])
        if kind == NORMAL:
            body[_BORN_AT] ^= 1
        header, chain = frame(kind, index, term, pos, bytes(body), last.chain)
        pieces += [header, bytes(body)]
        last = EntryRef(index, term, kind, pos, size, chain)
        at += size
    assert pieces, f"no entry is in the file at {start}"
    return b"".join(pieces) + content[at:], last
