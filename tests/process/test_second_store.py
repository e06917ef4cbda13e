"""Backups and archives in a second S3 server, of another language and other people than the one of most tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from mq.store.archive.archiver import archive
from mq.store.archive.reader import ArchiveReader, MessageQuery
from mq.store.archive.topic_blocks import ArchivePlace, TopicBlocks
from mq.store.archive.worker_protocol import ArchiveStep
from raftlog.segment.backup_store import ManifestChanged, NotStored, StoreFailed
from raftlog.segment.s3_storage import S3Store, open_s3
from tests.support.archived_logs import BEGIN_MS, SEGMENT_BYTES, MessageLog, job
from tests.support.object_storage import BUCKET, ENVIRONMENT

pytestmark = [pytest.mark.process, pytest.mark.nightly]

SOURCES = Path(__file__).parents[1] / "interop" / "object_storage"
GO = shutil.which("go")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the server listens. It is built from modules of Go's proxy."""
    if GO is None:
        pytest.skip("Go is not installed")
    program = tmp_path_factory.mktemp("server") / "s3server"
    subprocess.run([GO, "build", "-o", program, "."], cwd=SOURCES, check=True)
    with subprocess.Popen([program, "-bucket", BUCKET], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://{server.stdout.readline().strip()}"
        finally:
            server.kill()


@pytest.fixture
def place(url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A prefix of its own, and the server."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{request.node.name}", url


def steps(log: MessageLog, store: S3Store, known_index: int = 0) -> Iterator[ArchiveStep]:
    clock = count(BEGIN_MS)
    source = log.source()
    try:
        yield from archive(store, source, job(known_index), now_ms=lambda: next(clock))
    finally:
        source.close()


def archived(place: tuple[str, str], sent: int = 120) -> MessageLog:
    log = MessageLog()
    log.send(sent)
    assert [step.trouble for step in steps(log, open_s3(*place)) if step.is_last] == [None]
    return log


def test_conditional_writes_accept_one_writer_only(place: tuple[str, str]) -> None:
    one, other = open_s3(*place), open_s3(*place)
    one.check_conditions()
    assert one.load_manifest() is other.load_manifest() is None
    one.replace_manifest(b"one")
    with pytest.raises(ManifestChanged):
        other.replace_manifest(b"other")
    other.replace_manifest(b"other")  # now it has seen the present one
    with pytest.raises(ManifestChanged):
        one.replace_manifest(b"late")
    assert open_s3(*place).load_manifest() == b"other"


def test_objects_of_several_parts_are_read_back_by_ranges(place: tuple[str, str]) -> None:
    store, content = open_s3(*place), os.urandom(20_000_000)
    store.write("log/1", (content[at : at + 1_000_000] for at in range(0, len(content), 1_000_000)))
    store.write("log/2", (b"small",))
    assert store.read_range("log/1", 1000, 9_000_000) == content[9_000_000:9_001_000]
    assert store.read_range("log/1", 1000, len(content) - 10) == content[-10:]
    assert store.read_range("log/1", 1000, len(content)) == b""
    assert sorted(store.names("log")) == ["1", "2"]
    store.remove("log/2")
    store.remove("log/2")
    assert list(store.names("log")) == ["1"]
    with pytest.raises(NotStored):
        store.read_range("log/2", 10, 0)
    with pytest.raises(StoreFailed, match="NoSuchBucket"):
        list(open_s3("s3://nowhere/p", place[1]).names())


def test_archive_is_complete_and_verified(place: tuple[str, str]) -> None:
    log = archived(place)
    reader = ArchiveReader(open_s3(*place))
    assert reader.verify() > 5
    found = [(each.queue_id, each.queue_offset, each.body) for each in reader.messages(MessageQuery(topic="T"))]
    sent = [row[1:] for number, row in enumerate(log.sent) if row[0] == "T" and number < reader.manifest.last.index]
    assert found == sent
    end = reader.manifest.archived
    known = ArchivePlace(*place, "c", SEGMENT_BYTES, (end.index, end.term, end.pos, end.chain))
    blocks = TopicBlocks(known, answer_seconds=10.0, clock=lambda: 0.0)
    ranges = {queue: (0, max(offset for its, offset, _ in sent if its == queue) + 1) for queue in (0, 1)}
    assert sum(len(each.sizes) for each in blocks.read("T", ranges, 0, end.pos)) == len(sent)
    blocks.close()


@pytest.mark.parametrize("ended_after", range(4))
def test_interrupted_archiver_continues(place: tuple[str, str], ended_after: int) -> None:
    log = MessageLog()
    log.send(120)
    running = steps(log, open_s3(*place))
    for _ in range(ended_after):
        next(running)
    del running
    last = [step for step in steps(log, open_s3(*place)) if step.index][-1]
    reader = ArchiveReader(open_s3(*place))
    assert reader.manifest.archived.index == last.index == log.complete_index
    reader.verify()


def test_two_archivers_at_once_keep_the_archive_intact(place: tuple[str, str]) -> None:
    log = MessageLog()
    log.send(120)
    one, other = steps(log, open_s3(*place)), steps(log, open_s3(*place))
    for _ in zip(one, other, strict=False):
        pass
    list(steps(log, open_s3(*place)))
    reader = ArchiveReader(open_s3(*place))
    assert reader.manifest.archived.index == log.complete_index
    reader.verify()
