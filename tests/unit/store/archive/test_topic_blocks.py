"""Readers of one topic get its archived messages in the order of the log, and nothing that is not verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.object_store import BucketStore
from mq.protocol.hashes import tag_code
from mq.protocol.messages.records import decode_records
from mq.store.archive.topic_blocks import ArchivePlace, ArchiveUnreadable, TopicBlocks
from raftlog.segment.backup_store import StoreFailed
from tests.support.archived_logs import SEGMENT_BYTES, TAGS, ReadArchive
from tests.support.shortened_archives import KEPT, Home


@pytest.fixture
def archive(tmp_path: Path) -> ReadArchive:
    return ReadArchive(tmp_path)


def place(archive: ReadArchive, identity: str = "c") -> ArchivePlace:
    end = archive.end
    return ArchivePlace("s3://bucket", None, identity, SEGMENT_BYTES, (end.index, end.term, end.pos, end.chain))


def opened(archive: ReadArchive, at: ArchivePlace | None = None) -> TopicBlocks:
    return TopicBlocks(
        at or place(archive),
        answer_seconds=1.0,
        clock=lambda: archive.now,
        open_store=lambda: BucketStore(archive.bucket),
    )


def sent(archive: ReadArchive, topic: str, tag: str | None = None) -> list[tuple[int, int, bytes]]:
    """Queue id, offset and body of the archived messages of a topic, in the order of the log."""
    rows = []
    for number, (its_topic, queue_id, offset, body) in enumerate(archive.messages.sent):
        if number < archive.end.index and its_topic == topic and tag in (None, TAGS[number % 3]):
            rows.append((queue_id, offset, body))
    return rows


def read(
    blocks: TopicBlocks, topic: str, ranges: dict[int, tuple[int, int]], begin: int, end: int, tag: str | None = None
) -> tuple[list[tuple[int, int, bytes]], dict[int, int]]:
    rows: list[tuple[int, int, bytes]] = []
    following: dict[int, int] = {}
    codes = None if tag is None else frozenset({tag_code(tag)})
    for found in blocks.read(topic, ranges, begin, end, codes):
        assert sum(found.sizes) == len(found.data)
        rows += [(each.queue_id, each.queue_offset, each.body) for each in decode_records(found.data)]
        following = found.next_offsets
    return rows, following


def everything(archive: ReadArchive, topic: str = "T") -> dict[int, tuple[int, int]]:
    rows = sent(archive, topic)
    return {
        queue: (0, max(offset for its, offset, _ in rows if its == queue) + 1) for queue in {row[0] for row in rows}
    }


def test_messages_of_a_topic_come_in_log_order(archive: ReadArchive) -> None:
    blocks = opened(archive)
    wanted = everything(archive)
    rows, following = read(blocks, "T", wanted, 0, archive.end.pos)
    assert rows == sent(archive, "T")
    assert following == {queue: end for queue, (_, end) in wanted.items()}


def test_task_reads_its_offsets_from_its_files_only(archive: ReadArchive) -> None:
    blocks = opened(archive)
    places = blocks.places_from(0, place(archive).end)
    assert sorted(places) == list(range(0, archive.end.pos + 1, SEGMENT_BYTES))
    begin, end = 2 * SEGMENT_BYTES, 4 * SEGMENT_BYTES
    whole, _ = read(blocks, "T", everything(archive), 0, archive.end.pos)
    numbers = [number for number, each in enumerate(archive.messages.sent) if each[0] == "T"]
    in_files = [row for row, number in zip(whole, numbers, strict=False) if places[begin][0] <= number < places[end][0]]
    ranges = {
        queue: (
            min(offset for its, offset, _ in in_files if its == queue),
            max(offset for its, offset, _ in in_files if its == queue) + 1,
        )
        for queue in (0, 1)
    }
    known = ArchivePlace("s3://bucket", None, "c", SEGMENT_BYTES, places[end])
    asked: list[str] = []
    archive.bucket.before = lambda operation, name: asked.append(name)
    rows, _ = read(opened(archive, known), "T", ranges, begin, end)
    assert rows == in_files
    starts = {name.partition("/")[2][:20] for name in asked if name.startswith(("log/", "index/"))}
    assert starts == {f"{start:020d}" for start in (begin, begin + SEGMENT_BYTES)}, (
        "nothing behind is read to verify it"
    )


@pytest.mark.parametrize("tag", TAGS)
def test_messages_without_the_tag_are_skipped(archive: ReadArchive, tag: str) -> None:
    wanted = everything(archive)
    rows, following = read(opened(archive), "T", wanted, 0, archive.end.pos, tag)
    assert rows == sent(archive, "T", tag)
    assert following == {queue: end for queue, (_, end) in wanted.items()}, "also behind the last one with the tag"


def test_damaged_object_is_reported_and_not_read(archive: ReadArchive) -> None:
    name = archive.object_of(3 * SEGMENT_BYTES)
    content = bytearray(archive.bucket.objects[name])
    content[1000] ^= 1
    archive.bucket.objects[name] = bytes(content)
    reading = opened(archive).read("T", everything(archive), 0, archive.end.pos)
    rows: list[int] = []
    with pytest.raises(ArchiveUnreadable, match=name) as error:
        rows.extend(size for found in reading for size in found.sizes)
    assert not error.value.may_pass
    assert len(rows) < len(sent(archive, "T"))


def test_archive_of_another_log_is_refused(archive: ReadArchive) -> None:
    with pytest.raises(ArchiveUnreadable, match="it belongs to log c"):
        read(opened(archive, place(archive, identity="other")), "T", {0: (0, 5)}, 0, SEGMENT_BYTES)
    end = place(archive).end
    forged = ArchivePlace("s3://bucket", None, "c", SEGMENT_BYTES, (*end[:3], end[3] ^ 1))
    with pytest.raises(ArchiveUnreadable, match=r"its last entry|its entry"):
        read(opened(archive, forged), "T", {0: (0, 5)}, 0, SEGMENT_BYTES)


def test_read_fails_if_the_files_lack_offsets(archive: ReadArchive) -> None:
    with pytest.raises(ArchiveUnreadable, match=r"continues with offset \d+, not with 0"):
        read(opened(archive), "T", {0: (0, 50)}, 2 * SEGMENT_BYTES, archive.end.pos)


def test_silent_store_is_reported_as_retryable(archive: ReadArchive) -> None:
    archive.bucket.fails = 1.0
    with pytest.raises(ArchiveUnreadable) as error:
        read(opened(archive), "T", {0: (0, 5)}, 0, SEGMENT_BYTES)
    assert error.value.may_pass


def test_refused_credentials_are_reported_as_final(archive: ReadArchive) -> None:
    def refuse(operation: str, name: str) -> None:
        raise StoreFailed(name, operation, "AccessDenied: no")

    archive.bucket.before = refuse
    with pytest.raises(ArchiveUnreadable, match="AccessDenied") as error:
        read(opened(archive), "T", {0: (0, 5)}, 0, SEGMENT_BYTES)
    assert not error.value.may_pass


def test_files_deleted_from_the_archive_are_reported_as_deleted(tmp_path: Path) -> None:
    home = Home(tmp_path, files=8)
    end = home.manifest.archived
    known = ArchivePlace("s3://bucket", None, "c", SEGMENT_BYTES, (end.index, end.term, end.pos, end.chain))
    blocks = TopicBlocks(known, answer_seconds=1.0, clock=lambda: 0.0, open_store=lambda: BucketStore(home.bucket))
    wanted = {0: (0, home.log.offsets["T", 0])}
    assert next(iter(blocks.read("T", wanted, 0, end.pos))).sizes
    [expired] = [step.expired_pos for step in home.run(bytes_max=KEPT) if step.expired_pos >= 0]
    home.run(bytes_max=KEPT, begin_pos=expired)
    for name in list(home.bucket.objects):
        if name.startswith(("log/", "index/")) and name.partition("/")[2] < f"{expired:020d}":
            home.bucket.remove(name)  # as the archiver does a day later
    with pytest.raises(ArchiveUnreadable, match="begins at") as error:
        list(blocks.read("T", wanted, 0, end.pos))
    assert error.value.is_deleted
