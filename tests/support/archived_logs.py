"""Logs of real messages on disks in memory, and archives of them."""

from __future__ import annotations

import random
from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Any

from chaos.disk import MemoryDisk
from chaos.object_store import Bucket, BucketStore
from mq.protocol.messages.records import encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.archive.archiver import archive
from mq.store.archive.cold_blocks import ColdBlocks, KnownLog
from mq.store.archive.disk_cache import DiskCache
from mq.store.archive.worker_protocol import ArchiveJob, ArchiveStep
from raftlog.log_numbers import Term
from raftlog.segment import HEADER_BYTES, NORMAL, InlineWriter, SegmentLog
from raftlog.segment.meta import Base
from raftlog.segment.running_log import RunningLog

DIRECTORY = "/data/commitlog"
SEGMENT_BYTES = 4096
BEGIN_MS = 1_800_000_000_000
HOST = encode_host("127.0.0.1", 10911)
TAGS = ("red", "green", "blue")


class MessageLog:
    """A log of one replica with messages of two topics, all committed."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        clock = count()
        self.log = SegmentLog.open(
            DIRECTORY,
            cluster_id="c",
            node_id="n1",
            segment_bytes=SEGMENT_BYTES,
            disk=self.disk,
            writer=InlineWriter(clock=lambda: next(clock)),
        )
        self.offsets: dict[tuple[str, int], int] = {}
        self.sent: list[tuple[str, int, int, bytes]] = []
        """Topic, queue id, offset and body of every message."""
        self._ticket = 0

    def send(self, messages: int) -> None:
        """Append so many entries of one message each, and commit them."""
        for _ in range(messages):
            number = len(self.sent)
            topic, queue_id = ("T", number % 2) if number % 3 else ("U", 0)
            offset = self.offsets.get((topic, queue_id), 0)
            body = b"%06d" % number * 30
            record = self._record(topic, queue_id, offset, body, f"TAGS\x01{TAGS[number % 3]}\x02", 0)
            record = self._record(
                topic,
                queue_id,
                offset,
                body,
                f"TAGS\x01{TAGS[number % 3]}\x02",
                self.log.position_for(HEADER_BYTES + len(record)) + HEADER_BYTES,
            )
            self.log.append(NORMAL, self.log.last_index + 1, Term(1), record)
            self.offsets[topic, queue_id] = offset + 1
            self.sent.append((topic, queue_id, offset, body))
        self._submit()
        self._submit()

    def _submit(self) -> None:
        self._ticket += 1
        self.log.submit(self._ticket, commit_hint=self.log.last_index)

    def _record(self, topic: str, queue_id: int, offset: int, body: bytes, text: str, pos: int) -> bytes:
        return encode_record(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=text,
            queue_offset=QueueOffset(offset),
            physical_offset=PhysicalOffset(pos),
            born_timestamp_ms=BEGIN_MS,
            born_host=HOST,
            store_timestamp_ms=BEGIN_MS + len(self.sent) * 1000,
            store_host=HOST,
        )

    def source(self) -> RunningLog:
        return RunningLog(self.disk, DIRECTORY)

    @property
    def complete_index(self) -> int:
        """The last entry of the complete files."""
        return max((each.last_index for each in self.log.segments() if each.closed), default=0)


def new_bucket(seed: int = 0) -> Bucket:
    return Bucket(random.Random(seed))


def job(known_index: int = 0, data_dir: str = "/data", **given: Any) -> ArchiveJob:
    """A job for a log on a disk in memory."""
    return ArchiveJob(data_dir, DIRECTORY, "s3://bucket", known_index=known_index, **given)


def steps(
    log: MessageLog, bucket: Bucket, *, known_index: int = 0, now_ms: int = BEGIN_MS, **given: Any
) -> Generator[ArchiveStep, None, None]:
    """Archive what the log has."""
    clock = count(now_ms)
    source = log.source()
    try:
        yield from archive(BucketStore(bucket), source, job(known_index, **given), now_ms=lambda: next(clock))
    finally:
        source.close()


class ReadArchive:
    """An archive of a log of messages, and a reader of it."""

    def __init__(self, directory: Path, *, cache_bytes: int = 1 << 20, identity: str = "c") -> None:
        self.messages = MessageLog()
        self.messages.send(120)
        self.source = self.messages.source()
        self.bucket: Bucket = new_bucket()
        found = [step for step in steps(self.messages, self.bucket) if step.index]
        self.end = Base(found[-1].index, found[-1].term, found[-1].pos, found[-1].chain)  # type: ignore[arg-type]
        assert self.end.pos >= 5 * SEGMENT_BYTES
        self.begin = Base(0, 0, 0, 0)  # type: ignore[arg-type]
        self.now = 0.0
        self.cache = DiskCache(str(directory), cache_bytes, lambda: True)
        self.blocks = self.reader(identity)

    def reader(self, identity: str = "c") -> ColdBlocks:
        known = KnownLog(identity, SEGMENT_BYTES, lambda: self.end, lambda: self.begin)
        return ColdBlocks(lambda: BucketStore(self.bucket), known, self.cache, blocks_max=4, clock=lambda: self.now)

    def check(self, begin: int, stop: int) -> None:
        """What is read is what the log has."""
        found = self.blocks.fetch(begin, stop)
        assert found
        for at, data in found:
            assert data == self.source.read(at, len(data))
        first, (last, data) = found[0][0], found[-1]
        assert first <= begin
        assert last + len(data) >= min(stop, self.end.pos) - SEGMENT_BYTES // 4, "apart from the blank of a file"

    def object_of(self, pos: int) -> str:
        prefix = f"log/{pos - pos % SEGMENT_BYTES:020d}"
        return next(name for name in self.bucket.objects if name.startswith(prefix))
