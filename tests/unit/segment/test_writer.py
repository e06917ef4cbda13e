"""Group commit, on a thread and inline; and what happens when the disk refuses."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence

import pytest

from chaos.disk import Buffer, MemoryDisk
from chaos.writer_calls import DiskCalls
from raftlog.compiled.loaded import CompiledAppendQueue
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL, InlineWriter, SegmentLog, StorageFailed, Writer
from raftlog.segment.append_queue import PythonAppendQueue
from raftlog.segment.codec import SYNC_BYTES_MAX
from raftlog.segment.limits import LogLimits
from tests.support.append_queues import FORMS
from tests.unit.segment.log_home import LogHome, all_bodies


class GatedDisk(MemoryDisk):
    """Counts syncs of segments, and holds them back while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)
        self.segment_syncs = 0
        self.unsynced_bytes_max = 0
        self._unsynced_bytes = 0

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        written = super().pwritev(fd, buffers, offset)
        self._unsynced_bytes += written
        self.unsynced_bytes_max = max(self.unsynced_bytes_max, self._unsynced_bytes)
        return written

    def write_synced(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        written = self.pwritev(fd, buffers, offset)
        self.fdatasync(fd)
        return written

    def fdatasync(self, fd: int) -> None:
        if not self.gate.is_set():
            self.waiting.release()
            self.gate.wait()
        super().fdatasync(fd)
        self._unsynced_bytes = 0
        self.segment_syncs += self.size(fd) > 8192


class Reports:
    """What a writer tells its owner, from its own thread."""

    form: type[CompiledAppendQueue | PythonAppendQueue]

    def __init__(self) -> None:
        self.tickets: list[int] = []
        self.failures: list[Exception] = []
        self.changed = threading.Condition()

    def done(self, ticket: int) -> None:
        with self.changed:
            self.tickets.append(ticket)
            self.changed.notify_all()

    def failed(self, error: Exception) -> None:
        with self.changed:
            self.failures.append(error)
            self.changed.notify_all()

    def wait_done(self, ticket: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: bool(self.tickets) and self.tickets[-1] >= ticket, 30)

    def wait_failed(self) -> Exception:
        with self.changed:
            assert self.changed.wait_for(lambda: bool(self.failures), 30)
        return self.failures[0]

    def writer(self, home: LogHome) -> Writer:
        return Writer(self.form(-1, home.limits.sync_bytes_max, DiskCalls(home.disk, self.done)), self.failed)


@pytest.fixture(autouse=True, params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests run with both forms of the queue."""
    monkeypatch.setattr(Reports, "form", request.param, raising=False)


def reported(home: LogHome) -> tuple[Reports, SegmentLog]:
    """A log with a thread that writes, and what that tells."""
    reports = Reports()
    return reports, home.open(writer=reports.writer(home))


@pytest.fixture
def gated(home: LogHome) -> Iterator[GatedDisk]:
    disk = GatedDisk()
    home.disk = disk
    home.segment_bytes = 1 << 16
    yield disk
    disk.gate.set()  # a test that failed must not leave its writer waiting for ever


def test_writes_queued_during_a_sync_share_the_next_sync(home: LogHome, gated: GatedDisk) -> None:
    reports, log = reported(home)
    before = gated.segment_syncs
    gated.gate.clear()
    home.put(log, b"first")
    assert gated.waiting.acquire(timeout=30)
    for number in range(100):
        home.put(log, b"%d" % number)
    gated.gate.set()
    log.close(clean=True)
    assert gated.segment_syncs - before == 2
    assert reports.tickets == [1, 101]
    assert len(all_bodies(home.open())) == 101


def test_entry_is_not_durable_before_its_sync(home: LogHome, gated: GatedDisk) -> None:
    reports, log = reported(home)
    gated.gate.clear()
    home.put(log, b"one", b"two")
    assert gated.waiting.acquire(timeout=30)
    assert (log.durable_pos, log.durable_index, reports.tickets) == (0, 0, [])
    assert all_bodies(log) == [b"one", b"two"], "it can be read all the same"
    gated.gate.set()
    reports.wait_done(1)
    assert (log.durable_pos, log.durable_index) == (log.end_pos, 2)


def test_age_of_the_oldest_unsynced_write(home: LogHome, gated: GatedDisk) -> None:
    reports, log = reported(home)
    assert log.oldest_unsynced_age(50.0) == 0.0
    gated.gate.clear()
    home.put(log, b"one")
    assert log.oldest_unsynced_age(100.0) == 0.0, "it counts from when it is first seen"
    home.put(log, b"two")
    assert log.oldest_unsynced_age(103.5) == 3.5
    gated.gate.set()
    reports.wait_done(2)
    assert log.oldest_unsynced_age(110.0) == 0.0


def test_truncation_voids_entries_of_a_running_sync(home: LogHome, gated: GatedDisk) -> None:
    """The ticket of the old write completes after the cut; the entry at its index is another one by then."""
    reports, log = reported(home)
    home.put(log, b"kept")
    reports.wait_done(1)
    kept_end = log.end_pos
    gated.gate.clear()
    home.put(log, b"old")
    assert gated.waiting.acquire(timeout=30)
    log.truncate(LogIndex(2))
    log.append(NORMAL, LogIndex(2), Term(2), b"new")
    gated.gate.set()
    reports.wait_done(2)
    assert (log.durable_pos, log.durable_index) == (kept_end, 1)
    home.submit(log)
    reports.wait_done(3)
    assert (log.durable_pos, log.durable_index) == (log.end_pos, 2)
    log.close()
    assert all_bodies(home.open()) == [b"kept", b"new"]


def test_unsynced_entries_stay_in_memory(home: LogHome, gated: GatedDisk) -> None:
    reports = Reports()
    log = home.open(writer=reports.writer(home), tail_bytes_max=1000)
    gated.gate.clear()
    for _ in range(50):
        home.put(log, bytes(100))
    assert all(log.entry(LogIndex(index)) is not None for index in range(1, 51))
    gated.gate.set()
    reports.wait_done(50)
    home.put(log, b"last")
    assert log.entry(LogIndex(1)) is None
    assert log.entry(LogIndex(40)) is None
    assert log.entry(LogIndex(51)) is not None
    reports.wait_done(51)
    log.check_invariants()
    assert all_bodies(log) == [*[bytes(100)] * 50, b"last"]
    begin = log.locate(LogIndex(30)).pos + 10
    assert log.pread(begin, log.end_pos - begin) == gated.content(home.segment())[begin : log.end_pos]


@pytest.mark.parametrize("sync_bytes_max", [210_000, SYNC_BYTES_MAX])
def test_one_large_operation_is_synced_in_steps(home: LogHome, gated: GatedDisk, sync_bytes_max: int) -> None:
    """A crash must never leave more than that in doubt; see the recovery rules."""
    home.limits = LogLimits(sync_bytes_max=sync_bytes_max)
    home.segment_bytes = 8 * SYNC_BYTES_MAX
    log = home.open()
    gated.unsynced_bytes_max = 0
    home.put(log, *[bytes(100_000)] * 40)
    assert sync_bytes_max * 0.9 < gated.unsynced_bytes_max <= sync_bytes_max
    gated.unsynced_bytes_max = 0
    log.truncate(LogIndex(2))
    home.submit(log)
    assert gated.unsynced_bytes_max <= sync_bytes_max
    assert not any(gated.content(home.segment())[log.end_pos :])


@pytest.mark.parametrize(
    ("operation", "number", "name"),
    [("pwritev", errno.ENOSPC, "write"), ("pwritev", errno.EIO, "write"), ("fdatasync", errno.EIO, "write")],
)
def test_failed_write_is_reported_once_and_never_retried(home: LogHome, operation: str, number: int, name: str) -> None:
    reports, log = reported(home)
    home.put(log, b"good")
    reports.wait_done(1)
    home.disk.fail(operation, number)
    home.put(log, b"bad")
    error = reports.wait_failed()
    assert isinstance(error, StorageFailed)
    assert (error.path, error.errno, error.operation) == (home.segment(), number, name)
    operations = home.disk.operations
    home.put(log, b"after")
    log.close(clean=True)
    assert (reports.tickets, len(reports.failures)) == ([1], 1)
    assert home.disk.operations == operations, "something was written after the failure"
    assert log.durable_index == 1
    assert all_bodies(home.open())[:1] == [b"good"]


def test_failed_vote_is_not_reported_as_done(home: LogHome) -> None:
    reports, log = reported(home)
    home.disk.fail("fdatasync", errno.EIO)
    home.submit(log, term=3, voted_for="n2")
    error = reports.wait_failed()
    assert isinstance(error, StorageFailed)
    assert error.path == "/data/log/meta"
    assert reports.tickets == []


def test_inline_failure_is_raised_or_reported(home: LogHome) -> None:
    log = home.open()
    home.disk.fail("fdatasync", errno.EIO)
    with pytest.raises(StorageFailed):
        home.put(log, b"bad")
    log.close()
    reports = Reports()
    log = home.open(writer=InlineWriter(reports.done, reports.failed))
    home.put(log, b"good")
    home.disk.fail("fdatasync", errno.EIO)
    home.put(log, b"bad")
    home.put(log, b"after")
    assert (reports.tickets, len(reports.failures)) == ([1], 1)


def test_full_disk_fails_when_the_next_file_is_due(home: LogHome) -> None:
    reports = Reports()
    log = home.open(writer=InlineWriter(reports.done, reports.failed))
    home.disk.capacity_bytes = 4096 + 8192 + 1000
    home.put(log, bytes(3000))
    home.put(log, bytes(3000))
    (error,) = reports.failures
    assert isinstance(error, StorageFailed)
    assert (error.errno, error.path, reports.tickets) == (errno.ENOSPC, home.segment(4096), [1])
    home.close_all()
    home.disk.capacity_bytes = None
    assert all_bodies(home.open()) == [bytes(3000)]


def test_bug_in_the_writer_is_reported_too(home: LogHome) -> None:
    class BuggyDisk(MemoryDisk):
        def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
            assert not any(b"poison" in bytes(data) for data in buffers), "a bug"
            return super().pwritev(fd, buffers, offset)

    home.disk = BuggyDisk()
    reports, log = reported(home)
    home.put(log, b"poison")
    assert isinstance(reports.wait_failed(), AssertionError)
    assert reports.tickets == []


def test_markers_are_written_at_intervals_and_not_per_batch(home: LogHome) -> None:
    now = 0.0
    log = home.open(writer=InlineWriter(clock=lambda: now))
    operations = home.disk.operations
    home.put(log, b"one")
    assert home.disk.operations - operations == 2, "a write and a sync"
    now = 0.2
    home.put(log, b"two")
    assert home.disk.operations - operations == 6, "and the vote file's"
    home.put(log, b"three")
    assert home.disk.operations - operations == 8
    home.disk.kill()
    assert home.open(writer=InlineWriter()).last_index == 3


def test_markers_follow_when_the_writer_is_idle(home: LogHome) -> None:
    """The second slot gets the vote without any further submit."""
    reports = Reports()
    writes = threading.Semaphore(0)

    class Watched(MemoryDisk):
        def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
            writes.release()
            return super().pwritev(fd, buffers, offset)

    home.disk = Watched()
    log = home.open(writer=reports.writer(home))
    while writes.acquire(blocking=False):
        pass
    home.submit(log, term=4, voted_for="n3")
    for _ in range(2):
        assert writes.acquire(timeout=30)
    log.close(clean=False)
    content = home.disk.content("/data/log/meta")
    assert content[:4096].count(b"n3") == content[4096:].count(b"n3") == 1


def test_next_file_is_made_ahead(home: LogHome) -> None:
    reports, log = reported(home)
    home.put(log, bytes(3000))
    reports.wait_done(1)
    home.put(log, bytes(3000))
    reports.wait_done(2)
    assert home.disk.content(home.segment(4096))[:48] == log.pread(4096, 48)
    log.close()
    assert all_bodies(home.open()) == [bytes(3000)] * 2


def test_writer_closes_twice_and_refuses_late_writes(home: LogHome) -> None:
    log = home.open(writer=Reports().writer(home))
    home.put(log, b"body")
    log.close()
    log.close()
    with pytest.raises(AssertionError, match="closed log"):
        home.submit(log)
