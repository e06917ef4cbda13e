"""Parts of an archive for brokers: verified wherever they come from, and cached on the disk up to a limit."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from chaos.broker_sim.former_group import former_archive
from mq.store.archive.disk_cache import DiskCache
from mq.store.archive.file_index import decode_file_index, encode_file_index
from raftlog.segment.backup_manifest import StoredIndex, decode_backup_manifest, encode_backup_manifest
from raftlog.segment.backup_store import MANIFEST_NAME, BackupDamaged, BackupRefused, StoreFailed
from raftlog.segment.meta import Base
from tests.support.archived_logs import SEGMENT_BYTES, MessageLog, ReadArchive, new_bucket, steps


def test_any_archived_range_equals_the_log(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache")
    for begin in range(0, archive.end.pos - 1000, 997):
        archive.check(begin, begin + 1)
        archive.check(begin, begin + SEGMENT_BYTES)


def test_cache_answers_without_the_store(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache")
    archive.check(0, archive.end.pos)
    requests = archive.blocks.requests
    archive.check(0, archive.end.pos)
    assert archive.blocks.requests == requests
    # A new process finds the files again.
    archive.cache = DiskCache(str(tmp_path / "cache"), 1 << 20, lambda: True)
    archive.blocks = archive.reader()
    archive.check(0, archive.end.pos)
    assert archive.blocks.requests == 0
    assert archive.blocks.hits > 0


def test_damaged_cache_is_read_again_from_the_store(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache")
    archive.check(0, SEGMENT_BYTES)
    for path in (tmp_path / "cache").iterdir():
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    archive.blocks = archive.reader()
    archive.check(0, SEGMENT_BYTES)
    assert archive.blocks.hits == 0


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_damaged_object_is_not_returned(tmp_path: Path, at: float) -> None:
    archive = ReadArchive(tmp_path / "cache")
    name = archive.object_of(SEGMENT_BYTES)
    intact = archive.bucket.objects[name]
    content = bytearray(intact)
    content[round(len(content) * at)] ^= 1
    archive.bucket.objects[name] = bytes(content)
    with pytest.raises(BackupDamaged, match=name):
        archive.blocks.fetch(SEGMENT_BYTES, 2 * SEGMENT_BYTES)
    archive.bucket.objects[name] = intact[: len(intact) // 2]
    with pytest.raises(BackupDamaged, match=r"bytes were read at .*, .* were written"):
        archive.blocks.fetch(SEGMENT_BYTES, 2 * SEGMENT_BYTES)
    archive.check(0, 1)
    archive.bucket.objects[name] = intact
    archive.check(SEGMENT_BYTES, 2 * SEGMENT_BYTES)


def test_missing_objects_are_reported(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache")
    for name in [name for name in archive.bucket.objects if name.startswith("log/")]:
        del archive.bucket.objects[name]
    with pytest.raises(BackupDamaged, match="it is missing"):
        archive.blocks.fetch(0, 1)
    for name in [name for name in archive.bucket.objects if name.startswith("index/")]:
        del archive.bucket.objects[name]
    archive.cache.clear()
    archive.blocks = archive.reader()
    with pytest.raises(BackupDamaged, match=r"index/.*: damaged: it is missing"):
        archive.blocks.fetch(SEGMENT_BYTES, SEGMENT_BYTES + 1)


def test_manifest_replaced_by_an_older_one_is_reported(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache")
    newest = archive.bucket.objects[MANIFEST_NAME]
    small = MessageLog()
    small.send(30)
    older = new_bucket()
    assert list(steps(small, older))
    archive.bucket.objects[MANIFEST_NAME] = older.objects[MANIFEST_NAME]
    with pytest.raises(BackupDamaged, match="somebody has replaced it by an older one"):
        archive.blocks.fetch(archive.end.pos - SEGMENT_BYTES, archive.end.pos)
    archive.bucket.objects[MANIFEST_NAME] = newest
    archive.now += 5.0
    archive.check(archive.end.pos - SEGMENT_BYTES, archive.end.pos)


def test_reader_finds_newly_archived_files(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache")
    archive.check(0, 1)  # reads the manifest
    before = archive.end
    archive.messages.send(60)
    archive.source = archive.messages.source()
    found = [step for step in steps(archive.messages, archive.bucket) if step.index]
    archive.end = Base(found[-1].index, found[-1].term, found[-1].pos, found[-1].chain)  # type: ignore[arg-type]
    assert archive.end.pos > before.pos
    archive.check(before.pos, archive.end.pos)


def test_archived_files_ahead_of_the_group_are_left_out(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache")
    archive.messages.send(60)
    assert list(steps(archive.messages, archive.bucket)), "the manifest names files behind the end that the group knows"
    found = archive.blocks.fetch(archive.end.pos - SEGMENT_BYTES, archive.end.pos + SEGMENT_BYTES)
    assert found
    assert all(at + len(data) <= archive.end.pos for at, data in found)


def test_archive_of_another_log_is_refused(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache", identity="another")
    with pytest.raises(BackupRefused, match=r"it belongs to log c .* expected log another"):
        archive.blocks.fetch(0, 1)
    archive.blocks = archive.reader()
    archive.end = Base(archive.end.index, archive.end.term, archive.end.pos, archive.end.chain ^ 1)
    with pytest.raises(BackupRefused, match="its entry"):
        archive.blocks.fetch(0, 1)


def test_failing_store_never_returns_wrong_bytes(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache")
    archive.bucket.fails = 0.3
    failed = 0
    for begin in range(0, archive.end.pos - 1000, 1009):
        try:
            archive.check(begin, begin + 2 * SEGMENT_BYTES)
        except StoreFailed:
            failed += 1
    assert failed


def test_cache_is_limited_and_frees_space_for_others(tmp_path: Path) -> None:
    has_room = True
    cache = DiskCache(str(tmp_path / "cache"), 1000, lambda: has_room)
    names = [f"{number:016x}.{number:020d}" for number in range(20)]
    for name in names[:10]:
        cache.put(name, bytes(100))
    assert cache.get(names[0]) is not None
    cache.put(names[10], bytes(100))
    assert cache.nbytes == 1000
    assert cache.get(names[0]) is not None, "it was used last"
    assert cache.get(names[1]) is None
    cache.put(names[11], bytes(1001))
    assert cache.get(names[11]) is None
    os.unlink(tmp_path / "cache" / names[0])
    assert cache.get(names[0]) is None, "somebody has removed it"
    (tmp_path / "cache" / f"{names[12]}.7.new").write_bytes(b"torn")
    assert DiskCache(str(tmp_path / "cache"), 1000, lambda: True).nbytes == cache.nbytes == 900
    assert not (tmp_path / "cache" / f"{names[12]}.7.new").exists()
    has_room = False
    cache.put(names[13], bytes(10))
    assert cache.nbytes == 0
    assert not list((tmp_path / "cache").iterdir())


def test_unwritable_cache_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no directory")
    cache = DiskCache(str(tmp_path / "cache"), 1000, lambda: True)
    cache.put(f"{0:016x}.{0:020d}", bytes(100))
    assert cache.get(f"{0:016x}.{0:020d}") is None
    assert cache.nbytes == 0


def test_intact_archive_of_an_earlier_group_is_not_read(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache", cache_bytes=0)
    intact = dict(archive.bucket.objects)
    manifest = decode_backup_manifest(intact[MANIFEST_NAME])
    archive.bucket.objects |= former_archive(manifest, intact, 3)
    for begin in (0, SEGMENT_BYTES):
        with pytest.raises(
            BackupDamaged, match=r"differs from the one of this log|somebody has replaced it by an older one"
        ):
            archive.blocks.fetch(begin, begin + 1)
    archive.bucket.objects[MANIFEST_NAME] = intact[MANIFEST_NAME]
    archive.now += 5.0
    archive.check(0, archive.end.pos)


@pytest.mark.parametrize("what", ["damaged", "of another file", "of another log"])
def test_index_that_is_not_of_its_file_is_reported(tmp_path: Path, what: str) -> None:
    archive = ReadArchive(tmp_path / "cache", cache_bytes=0)
    manifest = decode_backup_manifest(archive.bucket.objects[MANIFEST_NAME])
    assert manifest.objects
    first, second, *rest = manifest.objects.files
    assert first.index is not None
    assert second.index is not None
    name = second.index.name
    content = archive.bucket.objects[name]
    if what == "of another file":
        content = archive.bucket.objects[first.index.name]
    elif what == "of another log":
        index = decode_file_index(content, name)
        block = replace(index.blocks[0], before=replace(index.begin, chain=index.begin.chain ^ 1))
        content = encode_file_index(replace(index, blocks=(block, *index.blocks[1:])))
    else:
        content = content[:-1] + bytes((content[-1] ^ 1,))
    archive.bucket.objects[name] = content
    if what != "damaged":  # whoever has written the manifest was wrong, too
        said = StoredIndex(name, len(content), hashlib.sha256(content).hexdigest())
        objects = replace(manifest.objects, files=(first, replace(second, index=said), *rest))
        archive.bucket.objects[MANIFEST_NAME] = encode_backup_manifest(replace(manifest, objects=objects))
    named = first if what == "of another log" else second  # there the file before ends otherwise
    wrong = named.name if what == "of another log" else name
    with pytest.raises(BackupDamaged, match=wrong):
        archive.blocks.fetch(0, 2 * SEGMENT_BYTES)
    archive.check(2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES)


def test_archived_files_are_verified_back_from_the_local_beginning(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache", cache_bytes=0)
    first = archive.source.state
    assert first.starts_at.pos == 0
    archive.check(2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES + 1)
    begin = archive.blocks._proven_at(2 * SEGMENT_BYTES)
    assert begin is not None
    archive.begin, archive.blocks = begin, archive.reader()
    asked: list[str] = []
    archive.bucket.before = lambda operation, name: asked.append(name)
    archive.check(SEGMENT_BYTES, SEGMENT_BYTES + 1)
    assert len([name for name in asked if name.startswith("index/")]) == 1, asked


def test_directory_in_the_cache_does_not_hide_its_files(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path / "cache"), 1000, lambda: True)
    names = [f"{number:016x}.{number:020d}" for number in range(20)]
    for name in names[:10]:
        cache.put(name, bytes(100))
    (tmp_path / "cache" / "000").mkdir()
    (tmp_path / "cache" / f"{99:016x}.{99:020d}").mkdir()
    (tmp_path / "cache" / "notes.txt").write_text("somebody's")
    (tmp_path / "cache" / f"{names[12]}.7.new").write_bytes(bytes(10))
    again = DiskCache(str(tmp_path / "cache"), 500, lambda: True)
    assert again.nbytes == 500
    assert sorted(each.name for each in (tmp_path / "cache").iterdir() if each.is_dir()) == [
        "000",
        f"{99:016x}.{99:020d}",
    ]
    assert (tmp_path / "cache" / "notes.txt").exists()
    assert not (tmp_path / "cache" / f"{names[12]}.7.new").exists()
