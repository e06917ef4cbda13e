"""Files of a log from its archive: byte by byte those of the replicas, proven by the entry that the leader has told."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.broker_sim.former_group import former_archive
from chaos.object_store import BucketStore
from mq.store.archive.whole_files import JoiningReader, open_joining
from raftlog.segment.backup_manifest import decode_backup_manifest
from raftlog.segment.backup_store import MANIFEST_NAME, BackupDamaged, BackupRefused
from raftlog.segment.meta import Base
from tests.support.archived_logs import SEGMENT_BYTES, ReadArchive


def opened(archive: ReadArchive, archived: Base | None = None, identity: str = "c") -> JoiningReader:
    return open_joining(
        archive.end if archived is None else archived,
        open_store=lambda: BucketStore(archive.bucket),
        identity=identity,
        segment_bytes=SEGMENT_BYTES,
        name="s3://bucket",
        blocks_max=4,
        clock=lambda: archive.now,
    )


@pytest.mark.parametrize("nbytes", [SEGMENT_BYTES, 1024, 512, 7])
def test_archived_files_equal_those_of_the_log(tmp_path: Path, nbytes: int) -> None:
    archive = ReadArchive(tmp_path)
    reader = opened(archive)
    for pos in range(0, archive.end.pos, SEGMENT_BYTES):
        found = b""
        while len(found) < SEGMENT_BYTES:
            found += reader.read(pos + len(found), min(nbytes, SEGMENT_BYTES - len(found)))
        assert found == archive.source.read(pos, SEGMENT_BYTES), f"the file at {pos}"


def test_any_joined_piece_equals_the_log(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path)
    for pos in range(0, SEGMENT_BYTES, 61):
        nbytes = min(97, SEGMENT_BYTES - pos)
        assert opened(archive).read(pos, nbytes) == archive.source.read(pos, nbytes)


def test_each_block_is_read_once(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path)
    reads: list[int] = []

    def fetch(begin: int, stop: int) -> list[tuple[int, bytes]]:
        found = archive.blocks.fetch(begin, stop)
        reads.extend(at for at, _ in found)
        return found

    reader = JoiningReader(fetch, SEGMENT_BYTES, "s3://bucket")
    for pos in range(0, 2 * SEGMENT_BYTES, 256):
        reader.read(pos, 256)
    assert len(reads) == len(set(reads)) or max(map(reads.count, reads)) <= 2, reads
    assert reads == sorted(reads)


def test_archive_of_an_earlier_group_is_refused(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path)
    manifest = decode_backup_manifest(archive.bucket.objects[MANIFEST_NAME])
    assert manifest.objects
    archive.bucket.objects |= former_archive(manifest, archive.bucket.objects, len(manifest.objects.files))
    with pytest.raises(
        (BackupRefused, BackupDamaged), match=r"a chain that differs|the one of this group|the one of this log"
    ):
        opened(archive).read(0, 100)


def test_archive_of_another_group_is_refused(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path)
    with pytest.raises(BackupRefused, match="it belongs to log c"):
        opened(archive, identity="other").read(0, 100)


def test_read_beyond_the_archive_is_refused(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path)
    with pytest.raises(BackupDamaged, match="does not have the log file"):
        opened(archive).read(archive.end.pos + 10 * SEGMENT_BYTES, 100)


def test_rotten_object_is_refused(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path)
    name = archive.object_of(0)
    content = bytearray(archive.bucket.objects[name])
    content[200] ^= 1
    archive.bucket.objects[name] = bytes(content)
    with pytest.raises(BackupDamaged):
        opened(archive).read(0, 300)
