"""Archived messages in memory: what is requested from the store, who waits, and what is refused."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from mq.broker.base.archive_tier import QUEUES_FROM, Tier
from mq.broker.base.archived_reads import (
    CHUNK_BYTES,
    REQUEST_CHUNKS,
    ArchivedNotLoaded,
    ArchivedReads,
    ArchivedUnreadable,
    TieredLog,
)
from mq.broker.limits import DEFAULT
from mq.broker.state.archived_log import ArchivedLog
from raftlog import Job, SegmentError
from raftlog.segment.backup_store import BackupDamaged, StoreFailed
from raftlog.segment.verified_reads import VerifiedRun

END = 64 * CHUNK_BYTES
BLOCK = CHUNK_BYTES // 2


class Logged:
    def __init__(self) -> None:
        self.events: list[str] = []

    def error(self, event: str, **fields: Any) -> None:
        self.events.append(event)


class Archive:
    """Blocks of half a chunk whose bytes are their numbers; jobs run when the test says so."""

    def __init__(self, **limits: Any) -> None:
        self.now = 100.0
        self.jobs: list[Job] = []
        self.asked: list[tuple[int, int]] = []
        self.error: SegmentError | None = None
        self.log = Logged()
        self.reads = ArchivedReads(
            fetch=self.fetch,
            end_pos=lambda: END,
            in_background=self.jobs.append,
            clock=lambda: self.now,
            log=self.log,  # type: ignore[arg-type]
            limits=replace(DEFAULT.archive, **limits),
        )
        self.called: list[str] = []

    def fetch(self, begin: int, stop: int) -> Sequence[tuple[int, bytes]]:
        self.asked.append((begin // CHUNK_BYTES, stop // CHUNK_BYTES))
        if self.error is not None:
            raise self.error
        return [(at, bytes([at // BLOCK]) * BLOCK) for at in range(begin, min(stop, END), BLOCK)]

    def load(self, *places: tuple[int, int], name: str = "") -> bool:
        return self.reads.load(places, lambda: self.called.append(name))

    def work(self) -> None:
        jobs, self.jobs[:] = [*self.jobs], []
        for job in jobs:
            job()()
        self.reads.check_invariants()


def test_reader_is_called_back_once_all_its_chunks_are_loaded() -> None:
    archive = Archive()
    assert archive.load((10, 20), (5 * CHUNK_BYTES, 7), name="one")
    assert archive.load((12, 20), name="another")
    assert archive.asked == []
    archive.work()
    assert archive.asked == [(0, 1), (5, 6)], "each chunk is requested once"
    assert sorted(archive.called) == ["another", "one"]
    assert archive.reads.read(5 * CHUNK_BYTES, 7) == bytes([10]) * 7
    assert not archive.load((10, 20)), "nothing to wait for"


def test_sequential_readers_get_large_requests_and_read_ahead() -> None:
    archive = Archive()
    archive.load((0, 1))
    archive.work()
    archive.load((CHUNK_BYTES, 1))
    archive.work()
    assert archive.asked[1:] == [(1, 1 + REQUEST_CHUNKS), (1 + REQUEST_CHUNKS, 1 + 2 * REQUEST_CHUNKS)]
    assert not archive.load((CHUNK_BYTES * 2 * REQUEST_CHUNKS, 1)), "it is there already"


def test_archive_reads_stop_at_the_archived_end() -> None:
    archive = Archive()
    archive.load((END - 2 * CHUNK_BYTES, 1))
    archive.work()
    archive.load((END - CHUNK_BYTES, 1))
    archive.work()
    assert archive.asked == [(62, 63), (63, 64)]


def test_missing_archive_block_is_refused_then_loaded() -> None:
    archive = Archive()
    with pytest.raises(ArchivedNotLoaded, match="at 10 is read from the archive: it is being loaded") as got:
        archive.reads.read(10, 5)
    assert got.value.wait(lambda: archive.called.append("there"))
    archive.work()
    assert archive.called == ["there"]
    assert archive.reads.read(10, 5) == bytes(5)
    assert archive.reads.block_at(BLOCK + 3) == (BLOCK, bytes([1]) * BLOCK)


def test_failing_store_is_not_asked_again_for_a_moment() -> None:
    archive = Archive(read_retry_seconds=1.0)
    archive.error = StoreFailed("s3://b/log/0", "reading it", "SlowDown")
    assert archive.load((10, 5), name="failed")
    archive.work()
    assert archive.called == ["failed"]
    with pytest.raises(ArchivedUnreadable, match="cannot be read now: s3://b/log/0: reading it failed: SlowDown"):
        archive.reads.read(10, 5)
    assert not archive.load((10, 5))
    assert len(archive.asked) == 1
    archive.now += 1.1
    archive.error = None
    assert archive.load((10, 5), name="again")
    archive.work()
    assert archive.reads.read(10, 5) == bytes(5)
    assert archive.log.events == ["archive_read_failed"]
    assert archive.reads.counters()["archive_read_failures"] == 1


def test_reader_does_not_wait_for_a_stuck_store_for_ever() -> None:
    archive = Archive(read_wait_seconds=5.0)
    archive.load((10, 5), name="late")
    assert archive.reads.next_deadline() == 105.0
    archive.now += 4.9
    archive.reads.expire()
    assert not archive.called
    archive.now += 0.2
    archive.reads.expire()
    assert archive.called == ["late"]
    with pytest.raises(ArchivedNotLoaded):
        archive.reads.read(10, 5)
    archive.work()  # the answer comes after all, and is kept
    assert archive.called == ["late"]
    assert archive.reads.read(10, 5) == bytes(5)


def test_departed_readers_are_removed_while_the_store_is_stuck() -> None:
    archive = Archive(read_wait_seconds=5.0)

    class Request:
        """What a reader holds on to."""

        def __call__(self) -> None:
            archive.called.append("late")

    places, alive = [(10, 5), (CHUNK_BYTES, 5)], []
    for _ in range(3):
        request = Request()
        alive.append(weakref.ref(request))
        assert archive.reads.load(places, request)
        del request
        archive.now += 5.0
        archive.reads.expire()
    assert archive.called == ["late"] * 3
    assert [each() for each in alive] == [None] * 3
    archive.reads.check_invariants()
    archive.load((10, 5), name="again")
    archive.work()
    assert archive.called == [*["late"] * 3, "again"]


class Noted:
    """The notes of a log whose queues begin at 0."""

    base_pos = 8 * CHUNK_BYTES
    notes: ClassVar[dict[str, bytes]] = {QUEUES_FROM: b"0"}

    def set_note(self, key: str, value: bytes | None, /) -> None:
        raise AssertionError(f"{key} is noted")


class Local:
    """The log behind the archive."""

    base_pos = 8 * CHUNK_BYTES
    end_pos = 12 * CHUNK_BYTES

    def pread(self, pos: int, length: int, /, *, trusts_page_cache: bool = False) -> bytes:
        return bytes(length)

    def pread_each(self, pieces: Sequence[tuple[int, int]], /) -> Sequence[bytes]:
        return [bytes(length) for _, length in pieces]

    def read_runs(self, pos: int, length: int, /) -> Iterator[VerifiedRun]:
        yield VerifiedRun(pos, pos + length, pos + length, bytes(length))


def test_long_read_fails_if_the_archive_lacks_a_file() -> None:
    segment_bytes, local = 4 * CHUNK_BYTES, Local()
    archive, archived_pos = Archive(), 2 * segment_bytes

    def fetch(begin: int, stop: int) -> Sequence[tuple[int, bytes]]:
        if begin >= archived_pos:
            raise BackupDamaged("s3://archives/manifest.json", f"it does not have the log file that begins at {begin}")
        return archive.fetch(begin, min(stop, archived_pos))

    tier = Tier(url="s3://archives", log=Noted(), state=ArchivedLog())
    log = TieredLog(local, tier, archive.reads, fetch, segment_bytes)
    runs = list(log.read_runs(0, local.end_pos))
    assert [each.begin for each in runs] == [*range(0, local.base_pos, BLOCK), local.base_pos]
    assert runs[-1].next == local.end_pos
    archived_pos = segment_bytes  # somebody has replaced the manifest by an older one
    read: list[VerifiedRun] = []
    with pytest.raises(ArchivedUnreadable, match=f"does not have the log file that begins at {segment_bytes}"):
        read.extend(log.read_runs(segment_bytes - BLOCK, local.end_pos))
    assert not any(each.begin >= segment_bytes for each in read)


def test_waiting_requests_are_limited() -> None:
    archive = Archive(read_requests_max=2)
    assert archive.load((0, 1))
    assert archive.load((10 * CHUNK_BYTES, 1))
    assert not archive.load((20 * CHUNK_BYTES, 1))
    with pytest.raises(ArchivedNotLoaded, match="too many others are, too; try again"):
        archive.reads.read(20 * CHUNK_BYTES, 1)
    assert len(archive.jobs) == 2
    archive.work()
    assert archive.load((20 * CHUNK_BYTES, 1))


def test_memory_is_limited() -> None:
    archive = Archive(read_memory_bytes=3 * BLOCK)
    for chunk in (0, 10, 20):
        archive.load((chunk * CHUNK_BYTES, 1))
        archive.work()
    assert not archive.reads.has((0, 1))
    assert archive.reads.has((20 * CHUNK_BYTES, 1))
    archive.reads.check_invariants()


def test_callback_may_ask_for_more() -> None:
    archive = Archive()

    def next_one(chunk: int) -> Callable[[], None]:
        def then() -> None:
            archive.called.append(str(chunk))
            if chunk < 3:
                archive.reads.load([((chunk + 1) * 20 * CHUNK_BYTES, 1)], next_one(chunk + 1))

        return then

    archive.reads.load([(0, 1)], next_one(0))
    while archive.jobs:
        archive.work()
    assert archive.called == ["0", "1", "2", "3"]
