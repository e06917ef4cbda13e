"""Old files are deleted in the archive: first the group agrees, then the manifest changes, then objects go."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos.object_store import Bucket, BucketStore, ProcessKilled
from mq.store.archive.reader import ArchiveReader, MessageQuery
from mq.store.archive.worker_protocol import Trouble
from mq.store.backup_checkpoint import PENDING_NAME, forget_pending
from raftlog.segment.backup_layouts import objects_for, stored_at_ms
from raftlog.segment.backup_store import MANIFEST_NAME, BackupDamaged, BackupRefused
from tests.support.archived_logs import BEGIN_MS, SEGMENT_BYTES, steps
from tests.support.shortened_archives import DAY_MS, KEPT, Home


def test_manifest_changes_only_when_the_group_has_agreed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    before, files = home.bucket.objects[MANIFEST_NAME], home.files()
    found = home.run(bytes_max=KEPT)
    expired = [step.expired_pos for step in found if step.expired_pos >= 0]
    assert len(expired) == 1
    assert 0 < expired[0] < home.manifest.archived.pos
    assert home.bucket.objects[MANIFEST_NAME] == before
    found = home.run(bytes_max=KEPT, begin_pos=expired[0])
    assert found[-2].begin_pos == expired[0] == home.manifest.base.pos
    assert home.files() == files, "readers of the manifest of before still find the objects"
    home.check()
    home.log.send(30)
    home.run(bytes_max=1 << 30)
    assert not set(home.files()) & {name for name in files if int(name[4:24]) < expired[0]}
    home.check()
    stated = home.manifest.objects
    assert stated.states, stated  # type: ignore[union-attr]


def test_part_is_deleted_when_the_group_needs_the_rest(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.run(bytes_max=KEPT, begin_pos=SEGMENT_BYTES + 1)
    assert home.manifest.base.pos == SEGMENT_BYTES
    home.check()


def test_file_is_deleted_when_its_newest_message_expires(tmp_path: Path) -> None:
    home = Home(tmp_path)
    reader = ArchiveReader(BucketStore(home.bucket))
    newest = [max(block.newest_ms for block in file.index.blocks) for file in reader.files() if file.index]
    assert not [step for step in home.run(oldest_ms=newest[0]) if step.expired_pos >= 0]
    found = home.run(oldest_ms=newest[1] + 1, begin_pos=2**62)
    assert [step.expired_pos for step in found if step.expired_pos >= 0] == [2 * SEGMENT_BYTES]
    assert home.manifest.base.pos == 2 * SEGMENT_BYTES
    home.run(oldest_ms=2**62, begin_pos=2**62)
    assert len(home.manifest.objects.files) == 1, "the newest file stays"  # type: ignore[union-attr]
    home.check()


def test_messages_with_a_future_time_do_not_keep_files(tmp_path: Path) -> None:
    home = Home(tmp_path, now_ms=BEGIN_MS - 1000 * DAY_MS)
    files = home.manifest.objects.files  # type: ignore[union-attr]
    archived = [stored_at_ms(each) or 0 for each in files]
    assert 0 < archived[0] < archived[1] < archived[2] < home.now_ms < BEGIN_MS
    assert not [step for step in home.run(oldest_ms=archived[0]) if step.expired_pos >= 0]
    home.run(oldest_ms=archived[1] + 1, begin_pos=2**62)
    assert home.manifest.base.pos == 2 * SEGMENT_BYTES
    home.check()


def test_archive_deletes_nothing_without_a_snapshot(tmp_path: Path) -> None:
    home = Home(tmp_path, files=0)
    home.log.send(100)
    home.run(has_retention=False)  # the limit was set later
    before = home.manifest
    home.run(bytes_max=KEPT, begin_pos=2**62)
    assert home.manifest.base == before.base
    home.log.send(60)
    home.checkpoint()
    home.log.send(60)
    home.run(bytes_max=KEPT, begin_pos=2**62)
    home.run(bytes_max=KEPT, begin_pos=2**62)
    assert 0 < home.manifest.base.index <= 160 == home.manifest.snapshot_index
    home.check()


def test_small_files_between_checkpoints_are_deleted(tmp_path: Path) -> None:
    """Each checkpoint is of an entry in the file that is still written, and replaced when that is archived."""
    home = Home(tmp_path, files=0)
    for _ in range(12):
        home.log.send(7)
        home.checkpoint()
        home.checkpoint()
        home.run(bytes_max=KEPT, begin_pos=2**62)
        home.log.send(60)
        home.checkpoint()
        home.checkpoint()
        home.run(bytes_max=KEPT, begin_pos=2**62)
    assert home.manifest.base.index > 0
    home.check()


def test_kept_checkpoint_is_deleted_when_a_broker_starts(tmp_path: Path) -> None:
    home = Home(tmp_path, files=0)
    home.log.send(40)
    home.checkpoint()
    home.run()
    assert (tmp_path / PENDING_NAME).exists()
    forget_pending(str(tmp_path))
    assert not (tmp_path / PENDING_NAME).exists()
    forget_pending(str(tmp_path))


def test_older_manifest_is_not_shortened(tmp_path: Path) -> None:
    home = Home(tmp_path)
    known = home.manifest.archived.index + 1
    found = list(steps(home.log, home.bucket, known_index=known, has_retention=True, bytes_max=KEPT, begin_pos=2**62))
    assert found[0].is_older
    assert home.manifest.base.pos == 0


@pytest.mark.parametrize("seed", range(6))
def test_archive_is_whole_wherever_a_run_is_killed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    home = Home(tmp_path)
    for _ in range(30):
        left = rng.randrange(12)
        bucket: Bucket = home.bucket

        def kill(operation: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise ProcessKilled

        bucket.before = kill
        bucket.fails = rng.choice((0.0, 0.3))
        try:
            found = home.run(
                bytes_max=rng.choice((KEPT, 2 * KEPT)), begin_pos=rng.choice((0, SEGMENT_BYTES * 3, 2**62))
            )
            assert found[-1].trouble in (None, Trouble.STORE)
        except ProcessKilled:
            pass
        bucket.before, bucket.fails = lambda operation, name: None, 0.0
        home.check()
        if rng.random() < 0.3:
            home.log.send(5)
            home.checkpoint()


def test_reader_of_the_previous_manifest_finds_all_its_objects(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.run(bytes_max=KEPT, begin_pos=SEGMENT_BYTES)
    reader, names = ArchiveReader(BucketStore(home.bucket)), home.manifest.objects.names  # type: ignore[union-attr]
    home.run(bytes_max=KEPT, begin_pos=2**62)
    assert home.manifest.base.pos > SEGMENT_BYTES
    assert names <= set(home.bucket.objects)
    reader.verify()
    assert reader.backup.snapshot() is not None


def test_reader_that_retention_overtakes_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    readers = [ArchiveReader(BucketStore(home.bucket)) for _ in range(2)]
    for _ in range(3):
        home.log.send(30)
        home.checkpoint()
        home.run(bytes_max=KEPT, begin_pos=2**62)
    for read in (readers[0].verify, lambda: list(readers[1].messages(MessageQuery(topic="T")))):
        with pytest.raises(BackupRefused, match=r"deleted during the reading.* begin again"):
            read()
    name = home.files()[-1]
    reader = ArchiveReader(BucketStore(home.bucket))
    del home.bucket.objects[name]
    with pytest.raises(BackupDamaged, match="it is missing"):
        reader.verify()


def test_archive_can_be_verified_while_a_snapshot_is_deleted(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.run(bytes_max=1 << 30)
    reader = ArchiveReader(BucketStore(home.bucket))
    newest = home.files()[-1].replace("log/", "index/")

    def shorten(operation: str, name: str) -> None:
        if (operation, name) == ("get", newest):
            home.bucket.before = lambda operation, name: None
            home.run(bytes_max=1, begin_pos=2**62)
            home.log.send(30)
            home.run(bytes_max=1 << 30)

    home.bucket.before = shorten
    reader.verify()
    states = {each.name for each in reader.manifest.objects.states}  # type: ignore[union-attr]
    assert states - set(home.bucket.objects), "a snapshot that the reader knew was deleted"


def test_clock_ahead_removes_nothing_that_another_archiver_writes(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.log.send(30)
    home.checkpoint()
    manifest, before = home.manifest, set(home.bucket.objects)
    under_way: set[str] = set()

    def tidy(operation: str, name: str) -> None:
        if (operation, name) == ("put", MANIFEST_NAME):
            home.bucket.before = lambda operation, name: None
            under_way.update(set(home.bucket.objects) - before)
            ahead = home.now_ms + 100 * DAY_MS  # of a replica that has written this manifest, and removes leftovers
            objects_for(BucketStore(home.bucket), manifest, first=False, now_ms=ahead, node_id="n2").tidy(manifest)

    home.bucket.before = tidy
    home.run(bytes_max=1 << 30)
    assert {name.partition("/")[0] for name in under_way} == {"log", "index", "snapshot"}
    assert under_way <= set(home.bucket.objects)
    home.check()
