"""Reading an archive without brokers: what is wanted, from the blocks that may have it, and nothing unverified."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from chaos.object_store import Bucket, BucketStore
from mq.protocol.hashes import tag_code
from mq.protocol.numbers import QueueOffset
from mq.store.archive.file_index import FileIndexBuilder, decode_file_index
from mq.store.archive.reader import ArchiveReader, MessageQuery
from raftlog.segment.backup import BackupTarget
from raftlog.segment.backup_manifest import decode_backup_manifest, encode_backup_manifest
from raftlog.segment.backup_store import MANIFEST_NAME, BackupDamaged
from raftlog.segment.entry_runs import entry_runs
from raftlog.segment.errors import FormatTooNew
from tests.support.archived_logs import BEGIN_MS, SEGMENT_BYTES, TAGS, MessageLog, new_bucket, steps


def filled(entries: int = 100) -> tuple[MessageLog, Bucket]:
    log, bucket = MessageLog(), new_bucket()
    log.send(entries)
    list(steps(log, bucket))
    return log, bucket


def read(bucket: Bucket, wanted: MessageQuery) -> list[tuple[str, int, int, bytes]]:
    reader = ArchiveReader(BucketStore(bucket))
    return [(each.topic, each.queue_id, each.queue_offset, each.body) for each in reader.messages(wanted)]


def test_only_selected_messages_are_returned() -> None:
    log, bucket = filled()
    sent = log.sent[: log.complete_index]
    numbered = list(enumerate(sent))
    assert read(bucket, MessageQuery(topic="T")) == [each for each in sent if each[0] == "T"]
    assert read(bucket, MessageQuery(topic="T", queue_id=1)) == [each for each in sent if each[:2] == ("T", 1)]
    assert read(bucket, MessageQuery(topic="U", queue_id=0, first_offset=QueueOffset(sent[60][2]))) == [
        each for each in sent if each[0] == "U" and each[2] >= sent[60][2]
    ]
    assert read(bucket, MessageQuery(topic="T", tag_code=tag_code(TAGS[1]))) == [
        each for number, each in numbered if each[0] == "T" and number % 3 == 1
    ]
    since, until = BEGIN_MS + 20_000, BEGIN_MS + 40_000
    assert read(bucket, MessageQuery(topic="T", since_ms=since, until_ms=until)) == [
        each for number, each in numbered if each[0] == "T" and 20 <= number <= 40
    ]
    assert read(bucket, MessageQuery(topic="V")) == []
    assert read(bucket, MessageQuery(topic="T", tag_code=12345)) == []


def test_blocks_without_selected_messages_are_not_read() -> None:
    log, bucket = filled()
    files = [name for name in bucket.objects if name.startswith("log/")]
    touched: set[str] = set()
    bucket.before = lambda what, name: touched.add(name)
    assert read(bucket, MessageQuery(topic="T", since_ms=BEGIN_MS + 1000 * (log.complete_index - 2)))
    assert len(touched & {*files}) == 1
    touched.clear()
    assert read(bucket, MessageQuery(topic="absent")) == []
    assert touched.isdisjoint(files)


def test_newest_file_of_a_backup_is_read_without_an_index() -> None:
    log, bucket = filled()
    target, source = BackupTarget(BucketStore(bucket)), log.source()
    target.extend(source, conf=b"", snapshot=None, now_ms=BEGIN_MS + 1)
    target.close()
    assert read(bucket, MessageQuery(topic="T")) == [each for each in log.sent if each[0] == "T"]
    assert ArchiveReader(BucketStore(bucket)).verify() == len([name for name in bucket.objects if "index/" in name])


def test_altered_object_is_never_reported_intact() -> None:
    _, bucket = filled(60)
    intact = dict(bucket.objects)
    for name, content in intact.items():
        for at in range(0, len(content), 97):
            altered = content[:at] + bytes((content[at] ^ 4,)) + content[at + 1 :]
            for damaged in (altered, content[:at]):
                bucket.objects[name] = damaged
                with pytest.raises(BackupDamaged):
                    ArchiveReader(BucketStore(bucket)).verify()
        bucket.objects[name] = content
    del bucket.objects[max(name for name in bucket.objects if name.startswith("index/"))]
    with pytest.raises(BackupDamaged, match="it is missing"):
        ArchiveReader(BucketStore(bucket)).verify()


def test_archive_reader_stops_at_a_damaged_block() -> None:
    log, bucket = filled()
    name = sorted(each for each in bucket.objects if each.startswith("log/"))[2]
    content = bucket.objects[name]
    bucket.objects[name] = content[:100] + b"\xff" + content[101:]
    shown: list[bytes] = []
    with pytest.raises(BackupDamaged, match=name):
        shown.extend(message.body for message in ArchiveReader(BucketStore(bucket)).messages(MessageQuery(topic="T")))
    whole = [body for topic, _, _, body in log.sent if topic == "T"]
    assert shown == whole[: len(shown)]
    assert 0 < len(shown) < len(whole)


def test_reader_detects_the_index_of_another_file() -> None:
    _, bucket = filled()
    manifest = decode_backup_manifest(bucket.objects[MANIFEST_NAME])
    assert manifest.objects
    first, second, *rest = manifest.objects.files
    assert first.index is not None
    assert second.index is not None
    stolen = replace(second, index=replace(first.index, name=second.index.name))
    bucket.objects[second.index.name] = bucket.objects[first.index.name]
    objects = replace(manifest.objects, files=(first, stolen, *rest))
    bucket.objects[MANIFEST_NAME] = encode_backup_manifest(replace(manifest, objects=objects))
    with pytest.raises(BackupDamaged, match="does not follow"):
        list(ArchiveReader(BucketStore(bucket)).files())
    with pytest.raises(BackupDamaged, match="does not match the content"):
        ArchiveReader(BucketStore(bucket)).verify()


def test_index_of_a_newer_version_is_refused() -> None:
    _, bucket = filled()
    name = min(each for each in bucket.objects if each.startswith("index/"))
    content = bucket.objects[name]
    assert decode_file_index(content, name).blocks
    with pytest.raises(FormatTooNew, match="version 2"):
        decode_file_index(content[:7] + b"2" + content[8:], name)
    with pytest.raises(BackupDamaged):
        decode_file_index(b"", name)


def test_index_lists_tags_only_if_few() -> None:
    log = MessageLog()
    log.send(9)
    source = log.source()
    for tags, expected in ((3, 3), (1, None)):
        builder = FileIndexBuilder(source.state.starts_at, SEGMENT_BYTES, tags_max=tags)
        for run in entry_runs(source.read, source.state.starts_at.ref, source.state.commit_hint, SEGMENT_BYTES):
            builder.add(run)
            break
        index = decode_file_index(builder.content(), "x")
        queues = [each for each in index.blocks[0].queues if each.topic == "T"]
        assert [None if each.tags is None else len(each.tags) for each in queues] == [expected and 2] * 2
