"""Archiving complete files: each once, read back before the manifest, whatever ends a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator

import pytest

from chaos.object_store import Bucket, BucketStore, ProcessKilled
from mq.store.archive.archiver import archive
from mq.store.archive.file_index import FileIndexBuilder
from mq.store.archive.reader import ArchiveReader, MessageQuery
from mq.store.archive.worker_protocol import ArchiveStep, Trouble
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL
from raftlog.segment.backup import BackupTarget
from raftlog.segment.backup_layouts import Snapshot
from raftlog.segment.backup_manifest import BackupManifest, decode_backup_manifest
from raftlog.segment.backup_store import MANIFEST_NAME, BackupDamaged, BackupRefused
from tests.support.archived_logs import BEGIN_MS, SEGMENT_BYTES, MessageLog, job, new_bucket, steps

DAY_MS = 24 * 3_600_000


def sent(messages: int) -> tuple[MessageLog, Bucket]:
    """A log with so many messages, of which nothing is archived yet."""
    log, bucket = MessageLog(), new_bucket()
    log.send(messages)
    return log, bucket


def manifest_of(bucket: Bucket) -> BackupManifest:
    return decode_backup_manifest(bucket.objects[MANIFEST_NAME])


def archived(bucket: Bucket) -> list[tuple[str, int, int, bytes]]:
    """All messages of the topics T and U that the archive has, by physical offset."""
    found = []
    for topic in ("T", "U"):
        reader = ArchiveReader(BucketStore(bucket))
        reader.verify()
        found += [(each.physical_offset, each) for each in reader.messages(MessageQuery(topic=topic))]
        reader.close()
    return [(m.topic, m.queue_id, m.queue_offset, m.body) for _, m in sorted(found, key=lambda row: row[0])]


def backup_run(log: MessageLog, bucket: Bucket, now_ms: int) -> None:
    """A run of `raftmq backup` to the same place."""
    target, source = BackupTarget(BucketStore(bucket)), log.source()
    target.extend(source, conf=b"", snapshot=None, now_ms=now_ms)
    source.close()
    target.close()


def test_complete_file_is_reported_after_its_manifest() -> None:
    log, bucket = sent(100)
    found: list[ArchiveStep] = []
    for step in steps(log, bucket):
        found.append(step)
        assert manifest_of(bucket).archived.index >= step.index
    assert found[-1] == ArchiveStep(is_last=True)
    assert found[-2].index == log.complete_index
    assert archived(bucket) == log.sent[: log.complete_index]
    files = [each for each in log.log.segments() if each.closed]
    assert len(found) - 1 == len(files) > 5
    assert sum(each.nbytes for each in found) == files[-1].end
    before = set(bucket.objects)
    assert len([name for name in before if name.startswith("log/")]) == len(files)
    assert len([name for name in before if name.startswith("index/")]) == len(files)
    log.send(1)
    again = list(steps(log, bucket))
    assert [each.nbytes for each in again] == [0, 0]
    assert again[0].index == log.complete_index
    log.send(50)
    assert list(steps(log, bucket))[-2].index == log.complete_index
    assert before < set(bucket.objects)
    assert archived(bucket) == log.sent[: log.complete_index]


def test_only_complete_files_are_archived() -> None:
    log, bucket = sent(3)
    assert list(steps(log, bucket)) == [ArchiveStep(is_last=True)]
    assert bucket.objects == {}


@pytest.mark.parametrize("files", [0, 3])
def test_run_killed_at_any_operation_leaves_a_valid_archive(files: int) -> None:
    log, whole = MessageLog(), new_bucket()
    log.send(100)
    runs = steps(log, whole)
    for _ in range(files):
        next(runs)
    runs.close()
    before, end = dict(whole.objects), 0
    bucket = new_bucket()

    def kill_at(operation: int) -> Callable[[str, str], None]:
        def before_it(what: str, name: str) -> None:
            if bucket.operations == operation:
                raise ProcessKilled

        return before_it

    for operation in range(1, 1000):
        bucket = new_bucket()
        bucket.objects, bucket.before = dict(before), kill_at(operation)
        reported = 0
        try:
            for step in steps(log, bucket):
                reported = max(reported, step.index)
        except ProcessKilled:
            end = operation
        bucket.before = lambda what, name: None
        if MANIFEST_NAME in bucket.objects:
            assert manifest_of(bucket).archived.index >= reported
        else:
            assert reported == 0
        if operation % 7 == 0 or end != operation:
            list(steps(log, bucket, now_ms=BEGIN_MS + 1000))
            assert archived(bucket) == log.sent[: log.complete_index]
        if end != operation:
            break
    assert end > 50


@pytest.mark.parametrize("compares", [False, True])
def test_torn_objects_never_enter_the_manifest(compares: bool) -> None:
    log = MessageLog()
    log.send(100)
    for seed in range(20):
        bucket = new_bucket(seed)
        bucket.compares, bucket.tears = compares, 0.2
        last = list(steps(log, bucket))[-1]
        if last.trouble is not None:
            assert last.trouble is (Trouble.STORE if compares else Trouble.DAMAGED)
        bucket.tears = 0.0
        if MANIFEST_NAME in bucket.objects:
            assert archived(bucket) == log.sent[: manifest_of(bucket).archived.index]
        list(steps(log, bucket, now_ms=BEGIN_MS + 1000))
        assert archived(bucket) == log.sent[: log.complete_index]


def test_archiver_adopts_a_backup_after_reading_its_objects() -> None:
    log, bucket = sent(50)
    backup_run(log, bucket, BEGIN_MS)
    assert manifest_of(bucket).archived.index == 0
    taken_over = len([name for name in bucket.objects if name.startswith("log/")]) - 1
    found = list(steps(log, bucket, now_ms=BEGIN_MS + 1))
    assert found[0].index == log.complete_index
    assert manifest_of(bucket).last.index == 50, "the newest file is still the one of the backup"
    log.send(50)
    found = list(steps(log, bucket, now_ms=BEGIN_MS + 2))
    assert found[-2].index == log.complete_index
    files = manifest_of(bucket).objects
    assert files
    assert taken_over
    assert all(each.index is not None for each in files.files), "brokers read by the index"
    assert archived(bucket) == log.sent[: log.complete_index]
    backup_run(log, bucket, BEGIN_MS + 3)
    assert archived(bucket) == log.sent


def test_archiver_does_not_adopt_a_damaged_backup_object() -> None:
    log, bucket = sent(50)
    backup_run(log, bucket, BEGIN_MS)
    name = min(each for each in bucket.objects if each.startswith("log/"))
    bucket.objects[name] = bucket.objects[name][:-1] + b"\xff"
    target = BackupTarget(BucketStore(bucket))
    with pytest.raises(BackupDamaged, match=name):  # also of files that have an index already, which is not made again
        target.verify_objects()
    target.close()
    (step,) = steps(log, bucket, now_ms=BEGIN_MS + 1)
    assert step.trouble is Trouble.DAMAGED
    assert name in step.reason


def test_archive_and_backup_in_one_place_leave_no_unnamed_objects() -> None:
    log, bucket = MessageLog(), new_bucket()
    for number in range(6):
        log.send(30)
        backup_run(log, bucket, BEGIN_MS + 2 * number * DAY_MS)
        list(steps(log, bucket, now_ms=BEGIN_MS + (2 * number + 1) * DAY_MS))
        assert archived(bucket) == log.sent[: manifest_of(bucket).last.index]
    objects = manifest_of(bucket).objects
    assert objects
    assert set(bucket.objects) - {MANIFEST_NAME, *objects.names} <= {*objects.superseded}


def test_second_archiver_ends_without_changes() -> None:
    log, bucket = sent(100)
    first, second = steps(log, bucket), steps(log, bucket, now_ms=BEGIN_MS + 500)
    for _ in range(2):
        next(first)
    next(second)
    next(first)
    last = list(second)[-1]
    assert last.trouble is Trouble.OTHER_WRITER
    assert list(first)[-2].index == log.complete_index
    assert archived(bucket) == log.sent[: log.complete_index]


def test_missing_manifest_of_a_known_archive_is_refused() -> None:
    log, bucket = sent(100)
    list(steps(log, bucket))
    del bucket.objects[MANIFEST_NAME]
    (step,) = steps(log, bucket, known_index=log.complete_index)
    assert step.trouble is Trouble.REFUSED
    assert "the manifest is missing" in step.reason
    assert MANIFEST_NAME not in bucket.objects


def test_manifest_replaced_by_an_older_one_is_reported_and_continued() -> None:
    log, bucket = sent(60)
    list(steps(log, bucket))
    older = bucket.objects[MANIFEST_NAME]
    log.send(60)
    list(steps(log, bucket, now_ms=BEGIN_MS + 1000))
    bucket.objects[MANIFEST_NAME] = older
    found = list(steps(log, bucket, known_index=log.complete_index, now_ms=BEGIN_MS + 2000))
    assert found[0].is_older
    assert not any(each.is_older for each in found[1:])
    assert archived(bucket) == log.sent[: log.complete_index]


def test_archive_of_another_log_is_refused() -> None:
    log, bucket = sent(100)
    list(steps(log, bucket))
    other = MessageLog()
    other.sent.append(("T", 0, 0, b"another first message"))
    other.send(100)
    (step,) = steps(other, bucket)
    assert step.trouble is Trouble.REFUSED
    assert "the group was created again" in step.reason


def test_missing_object_ends_the_run_and_is_reported() -> None:
    log, bucket = sent(100)
    list(steps(log, bucket))
    name = min(each for each in bucket.objects if each.startswith("log/"))
    del bucket.objects[name]
    log.send(50)
    last = list(steps(log, bucket, now_ms=BEGIN_MS + 1000))[-1]
    assert last.trouble is Trouble.DAMAGED
    assert name in last.reason


def test_archiver_continues_after_local_deletion() -> None:
    log, bucket = sent(100)
    list(steps(log, bucket))
    last_complete = [each for each in log.log.segments() if each.closed][-1]
    log.log.drop_prefix(last_complete.end, b"conf")
    log.send(60)
    assert list(steps(log, bucket, now_ms=BEGIN_MS + 1000))[-2].index == log.complete_index
    assert archived(bucket) == log.sent[: log.complete_index]


def test_files_deleted_before_archiving_are_reported() -> None:
    log, bucket = sent(40)
    list(steps(log, bucket))
    log.send(100)
    log.log.drop_prefix([each for each in log.log.segments() if each.closed][-1].end, b"conf")
    log.send(1)
    (step,) = steps(log, bucket, now_ms=BEGIN_MS + 1000)
    assert step.trouble is Trouble.REFUSED
    assert "begins with entry" in step.reason


@pytest.mark.parametrize("seed", range(6))
def test_two_archivers_with_a_failing_store_lose_no_reported_file(seed: int) -> None:
    """The store refuses, and loses answers of what it did; runs are killed; the log grows meanwhile."""
    rng, log, bucket = random.Random(seed), MessageLog(), new_bucket(seed)
    bucket.fails = 0.08
    runs: dict[str, Generator[ArchiveStep, None, None]] = {}
    reported = now_ms = 0
    for _ in range(150):
        node, chance = rng.choice(("n1", "n2")), rng.random()
        if chance < 0.1:
            log.send(5)
        elif chance < 0.15:
            runs.pop(node, None)
        else:
            now_ms += 1000
            run = runs.setdefault(node, steps(log, bucket, known_index=reported, now_ms=BEGIN_MS + now_ms))
            step = next(run, None)
            if step is None or step.is_last:
                runs.pop(node, None)
                assert step is None or step.trouble in (None, Trouble.STORE, Trouble.OTHER_WRITER), step
            if step is not None:
                assert not step.is_older
                reported = max(reported, step.index)
        if reported:
            assert manifest_of(bucket).archived.index >= reported
    bucket.fails = 0.0
    for _ in range(2):
        list(steps(log, bucket, known_index=reported, now_ms=BEGIN_MS + now_ms + 10_000))
        now_ms += 10_000
    assert archived(bucket) == log.sent[: log.complete_index]
    assert manifest_of(bucket).archived.index == log.complete_index >= reported > 0


@pytest.mark.parametrize("compares", [False, True])
def test_reading_back_is_throttled_and_reported_like_writing(compares: bool) -> None:
    log, bucket = MessageLog(), new_bucket()
    bucket.compares = compares
    log.send(100)
    copied: list[int] = []
    source = log.source()
    run = archive(BucketStore(bucket), source, job(), now_ms=lambda: BEGIN_MS, on_copy=copied.append)
    stored = sum(step.nbytes for step in run)
    source.close()
    files = sum(len(content) for name, content in bucket.objects.items() if name.startswith("log/"))
    assert sum(copied) == (1 if compares else 2) * files, "what the store has compared is not read back"
    assert files > stored * 0.9


def test_torn_snapshot_never_gets_into_the_manifest() -> None:
    log, bucket = sent(100)
    target, source = BackupTarget(BucketStore(bucket)), log.source()

    def tear(operation: str, name: str) -> None:
        bucket.tears = float(name.startswith("snapshot/"))

    bucket.before = tear
    with pytest.raises(BackupDamaged, match="snapshot/"):
        target.archive_file(
            source,
            conf=b"",
            snapshot=Snapshot(LogIndex(5), b"state" * 100),
            now_ms=BEGIN_MS,
            new_index=lambda begin: FileIndexBuilder(begin, SEGMENT_BYTES),
        )
    source.close()
    target.close()
    assert MANIFEST_NAME not in bucket.objects


@pytest.mark.parametrize("more", [1, 100])
def test_group_restored_from_an_archive_does_not_continue_that_archive(more: int) -> None:
    log, bucket = sent(100)
    list(steps(log, bucket))
    before = dict(bucket.objects)
    restored = MessageLog()
    restored.send(log.complete_index)
    restored.log.append(NORMAL, LogIndex(log.complete_index + 1), Term(1), b"members")
    restored.send(more)
    (refused,) = steps(restored, bucket)
    assert refused.trouble is Trouble.REFUSED
    assert "restored from it" in refused.reason
    with pytest.raises(BackupRefused, match="restored from it"):
        backup_run(restored, bucket, BEGIN_MS)
    assert dict(bucket.objects) == before


def test_killed_run_still_indexes_files_of_a_backup() -> None:
    log, bucket = sent(60)
    backup_run(log, bucket, BEGIN_MS)
    complete = len([each for each in log.log.segments() if each.closed])
    assert complete > 2
    left = 0

    def dies(operation: str, name: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ProcessKilled

    for number in range(40):
        left, bucket.before = number, dies
        try:
            list(steps(log, bucket, now_ms=BEGIN_MS + 1 + 10 * number))
        except ProcessKilled:
            continue
        finally:
            bucket.before = lambda operation, name: None
    list(steps(log, bucket, now_ms=BEGIN_MS + 999))
    files = manifest_of(bucket).objects
    assert files
    assert all(each.index is not None for each in files.files[:complete])
    assert ArchiveReader(BucketStore(bucket)).verify() >= complete
    assert archived(bucket)[: log.complete_index] == log.sent[: log.complete_index]
