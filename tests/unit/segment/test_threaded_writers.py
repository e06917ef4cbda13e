"""Both writers with a thread, on real files: the same files for the same operations, and the same failures."""

from __future__ import annotations

import errno
import os
import random
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raftlog.compiled.loaded import IS_COMPILED, CompiledAppendQueue
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL, InlineWriter, LogWriter, RealDisk, SegmentLog, StorageFailed, Writer
from raftlog.segment.append_queue import PythonAppendQueue
from raftlog.segment.codec import SYNC_BYTES_MAX
from raftlog.segment.meta import decode_slot
from tests.support.file_size_limit import file_size_limit
from tests.unit.segment.log_home import CLUSTER_ID, all_bodies

WAIT_MS = 30_000


class Home:
    """A log in a real directory, with one of the writers."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory = directory
        self.kind = kind
        self.segment_bytes = 1 << 16
        self.done_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.failed = threading.Event()
        self.failures: list[Exception] = []
        self.seconds: list[float] = []
        self.ticket = 0
        self.log: SegmentLog

    def writer(self) -> LogWriter:
        if self.kind == "inline":
            return InlineWriter()
        queue = CompiledAppendQueue if self.kind == "compiled" else PythonAppendQueue
        return Writer(queue(self.done_fd, SYNC_BYTES_MAX), self._fail, self.seconds.append)

    def open(self) -> SegmentLog:
        self.ticket = 0
        self.log = SegmentLog.open(
            str(self.directory),
            cluster_id=CLUSTER_ID,
            node_id="n1",
            segment_bytes=self.segment_bytes,
            disk=RealDisk(),
            writer=self.writer(),
        )
        return self.log

    def put(self, *bodies: bytes, commit_hint: LogIndex | None = None) -> None:
        for body in bodies:
            self.log.append(NORMAL, self.log.last_index + 1, Term(max(1, self.log.last_term)), body)
        self.submit(commit_hint=commit_hint)

    def submit(self, *, term: Term | None = None, vote: str | None = None, commit_hint: LogIndex | None = None) -> None:
        self.ticket += 1
        self.log.submit(self.ticket, term=term, voted_for=vote, commit_hint=commit_hint)

    def wait(self) -> None:
        """Until everything submitted is durable."""
        waiting = select.poll()
        waiting.register(self.done_fd, select.POLLIN)
        while self.log._writer.done_ticket < self.ticket:
            assert waiting.poll(WAIT_MS), f"ticket {self.log._writer.done_ticket} of {self.ticket}"
            os.eventfd_read(self.done_fd)

    def segment(self, start: int = 0) -> Path:
        return self.directory / f"{start:020d}"

    def segment_fd(self, start: int = 0) -> int:
        """The descriptor that the writer writes to."""
        return self.log.files._open._open[start].fd

    def contents(self) -> dict[str, bytes]:
        """All segments and sidecars without trailing zeros; a file made in advance has nothing else."""
        found = {path.name: path.read_bytes().rstrip(b"\0") for path in self.directory.iterdir() if path.name[0] == "0"}
        return {name: content for name, content in found.items() if content}

    def _fail(self, error: Exception) -> None:
        self.failures.append(error)
        self.failed.set()


needs_compiled = pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")


@pytest.fixture(params=["python", pytest.param("compiled", marks=needs_compiled)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def home(tmp_path: Path, kind: str) -> Iterator[Home]:
    home = Home(tmp_path, kind)
    home.open()
    yield home
    home.log.close(clean=False)
    os.close(home.done_fd)


def act(home: Home, rng: random.Random) -> None:
    """One random operation, in the proportions of a log that has a rough time."""
    log = home.log
    chance = rng.random()
    if chance < 0.7:
        hint = LogIndex(rng.randint(0, log.last_index)) if rng.random() < 0.3 else None
        home.put(*[rng.randbytes(rng.choice((0, 10, 700, 3000))) for _ in range(rng.randint(0, 5))], commit_hint=hint)
    elif chance < 0.8:
        lowest = max(log.first_index, log.commit_hint + 1)
        if lowest <= log.last_index:
            log.truncate(LogIndex(rng.randint(lowest, log.last_index)))
        if rng.random() < 0.5:
            home.submit()
    elif chance < 0.9:
        home.submit(term=Term(log.meta.term + 1), vote="n2")
    elif chance < 0.95:
        log.set_note("a note", rng.randbytes(4))
        home.submit()
    elif home.kind != "inline":
        home.wait()


@pytest.mark.parametrize("seed", range(12))
def test_threaded_and_inline_writers_produce_the_same_files(tmp_path: Path, kind: str, seed: int) -> None:
    found = []
    for each in ("inline", kind):
        home = Home(tmp_path / each, each)
        home.segment_bytes = 1 << 14
        home.open()
        rng = random.Random(seed)
        for _ in range(80):
            act(home, rng)
        if each != "inline":
            home.wait()
        home.log.check_invariants()
        assert home.log.durable_pos == home.log._submitted_end
        bodies = all_bodies(home.log)
        home.log.close(clean=seed % 2 == 0)
        assert not home.failures
        contents = home.contents()
        log = home.open()
        assert log.meta.term == home.log.meta.term
        found.append((bodies, contents, log.meta.term, log.meta.voted_for, dict(log.notes), log.last_index, log.chain))
        log.close()
        os.close(home.done_fd)
    assert found[0] == found[1]


def test_closing_the_writer_makes_all_queued_writes_durable(home: Home) -> None:
    bodies = [b"%d" % number for number in range(2000)]
    for body in bodies:
        home.put(body)
    home.log.close(clean=True)
    assert home.log._writer.done_ticket == 2000
    assert all_bodies(home.open()) == bodies
    assert not home.log.stopped_unclean


def test_operations_may_span_several_syncs_and_files(home: Home) -> None:
    home.log.close()
    home.directory = home.directory / "large"
    home.segment_bytes = 4 * SYNC_BYTES_MAX
    home.open()
    bodies = [bytes([number]) * 700_000 for number in range(1, 9)]
    home.put(*bodies[:3])
    home.put(bytes([9]) * (SYNC_BYTES_MAX + 1))
    home.put(*bodies[3:])
    home.put(b"last")
    home.wait()
    home.log.close()
    assert all_bodies(home.open()) == [*bodies[:3], bytes([9]) * (SYNC_BYTES_MAX + 1), *bodies[3:], b"last"]


def test_each_write_is_observed(home: Home) -> None:
    for number in range(3):
        home.put(b"body")
        home.wait()
        if number == 1:
            home.submit(term=Term(2))
            home.wait()
    home.log.close()
    assert len(home.seconds) == 4
    assert all(0 < seconds < WAIT_MS for seconds in home.seconds)


def test_markers_follow_when_the_writer_is_idle(home: Home) -> None:
    home.put(b"body", commit_hint=LogIndex(1))
    home.wait()
    meta = home.directory / "meta"
    deadline = threading.Event()
    while True:
        slots = [decode_slot(meta.read_bytes()[at : at + 4096]) for at in (0, 4096)]
        found = [(slot[1].durable_pos, slot[1].commit_hint) for slot in slots if slot is not None]
        if (home.log.end_pos, 1) in found:
            break
        assert not deadline.wait(0.01), "the marker is written after a tenth of a second"


def pause_until_marked(home: Home) -> None:
    """Wait until the writer, which has nothing to do, has written the markers that are due."""
    meta, deadline = home.directory / "meta", threading.Event()
    before = meta.read_bytes()
    for _ in range(WAIT_MS // 10):
        if deadline.wait(0.01) or meta.read_bytes() != before:
            return
    raise AssertionError("no marker was written")


def reopened(home: Home) -> None:
    home.put(b"1", b"2")
    home.wait()
    home.log.close()
    home.open()
    home.submit(term=Term(2), vote="n1", commit_hint=LogIndex(1))


def voted_with_an_entry(home: Home) -> None:
    home.put(b"1")
    home.wait()
    home.log.append(NORMAL, LogIndex(2), Term(2), b"2")
    home.submit(term=Term(2), vote="n1", commit_hint=LogIndex(1))


def cut(home: Home) -> None:
    home.put(b"1", b"2" * 6000)
    home.wait()
    home.log.truncate(LogIndex(2))
    home.submit(commit_hint=LogIndex(1))


@pytest.mark.parametrize("act", [reopened, voted_with_an_entry, cut])
def test_idle_writer_knows_the_end_of_the_log(home: Home, act: Callable[[Home], None]) -> None:
    """Nothing plain was written since the end of the log moved, and nothing comes until markers are due."""
    act(home)
    home.wait()
    pause_until_marked(home)
    slots = [decode_slot((home.directory / "meta").read_bytes()[at : at + 4096]) for at in (0, 4096)]
    durable = max((slot[0], slot[1].durable_pos) for slot in slots if slot is not None)[1]
    assert durable == home.log.end_pos
    home.put(b"3")
    home.wait()
    assert not home.failures


def test_next_file_is_made_ahead(home: Home) -> None:
    home.put(bytes(20_000))
    home.put(bytes(20_000))
    home.wait()
    home.log._files._finish_preparation()
    assert home.segment(home.segment_bytes).exists()
    home.put(bytes(20_000))
    home.put(bytes(20_000))
    home.wait()
    assert home.log.files.pread(home.segment_bytes, 48) == home.log.entry(LogIndex(4)).header  # type: ignore[union-attr]


def assert_failed(home: Home, number: int) -> None:
    """The write failed, was reported once, and nothing is written any more."""
    assert home.failed.wait(WAIT_MS / 1000)
    before = home.contents()
    durable = home.log.durable_pos
    home.put(b"after the failure")
    home.submit(term=Term(9))
    home.log.close(clean=True)
    (error,) = home.failures
    assert isinstance(error, StorageFailed)
    assert (error.path, error.errno, error.operation) == (str(home.segment()), number, "write")
    assert home.contents() == before, "something was written after the failure"
    assert home.log.durable_pos == durable


def test_failed_write_is_reported_once_and_never_retried(home: Home) -> None:
    home.put(b"good")
    home.wait()
    good_end = home.log.durable_pos
    # From now on the descriptor is one that cannot be written.
    fd = os.open(home.segment(), os.O_RDONLY)
    os.dup2(fd, home.segment_fd())
    os.close(fd)
    home.put(b"bad")
    assert_failed(home, errno.EBADF)
    assert home.log.durable_pos == good_end
    assert all_bodies(home.open()) == [b"good"]


def test_partial_write_fails_with_the_next_error(home: Home) -> None:
    home.put(b"good")
    home.wait()
    good_end = home.log.durable_pos
    with file_size_limit(good_end + 100):
        home.put(bytes([7]) * 1000)
        home.failed.wait(WAIT_MS / 1000)
    assert_failed(home, errno.EFBIG)
    assert home.contents()[home.segment().name].endswith(bytes([7]) * (100 - 48)), "a part of the entry is in the file"
    assert all_bodies(home.open()) == [b"good"], "an entry that was cut off is no entry"


def test_failed_vote_is_not_reported_as_done(home: Home) -> None:
    home.put(b"good")
    home.wait()
    fd = os.open(home.directory / "meta", os.O_RDONLY)
    os.dup2(fd, home.log._directory.meta._fd)
    os.close(fd)
    home.submit(term=Term(3), vote="n2")
    assert home.failed.wait(WAIT_MS / 1000)
    (error,) = home.failures
    assert isinstance(error, StorageFailed)
    assert (error.path, error.errno) == (str(home.directory / "meta"), errno.EBADF)
    assert home.log._writer.done_ticket == 1


def test_failed_thread_start_leaves_the_directory_usable(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path, kind)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            home.open()


@needs_compiled
def test_entry_writes_do_not_need_the_interpreters_lock(tmp_path: Path) -> None:
    home = Home(tmp_path, "compiled")
    log = home.open()
    home.put(b"first")
    home.wait()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    try:
        home.put(b"second")
        writer = log._writer
        give_up_at = time.monotonic() + WAIT_MS / 1000
        # This loop never gives the lock away.
        while writer.done_ticket < 2:
            assert time.monotonic() < give_up_at
    finally:
        sys.setswitchinterval(interval)
    log.close()
    os.close(home.done_fd)


CHILD = """
import sys
from pathlib import Path
from tests.unit.segment.test_threaded_writers import Home
home = Home(Path(sys.argv[1]), sys.argv[2])
home.open()
print("opened", flush=True)
while True:
    for number in range(20):
        home.put(b"%d" % (home.log.last_index + 1) * 50)
    print(home.log.durable_index, flush=True)
    if home.ticket % 1000 == 0:
        home.submit(term=home.log.meta.term + 1, vote="n1")
"""


@pytest.mark.parametrize("lines", [3, 40, 160])
def test_killed_process_loses_no_write_reported_durable(tmp_path: Path, kind: str, lines: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), kind], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "opened\n"
        for _ in range(lines):
            durable = int(child.stdout.readline())
        child.kill()
        said = [int(line) for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        durable = max([durable, *said])
    home = Home(tmp_path, kind)
    log = home.open()
    assert log.last_index >= durable
    assert all_bodies(log) == [b"%d" % index * 50 for index in range(1, log.last_index + 1)]
    log.close()
    os.close(home.done_fd)


def test_frames_of_both_threads_lie_one_behind_the_other(home: Home) -> None:
    """Whatever the writer's thread does meanwhile, a frame that is taken back was not sent, or is finished here."""
    rng = random.Random(7)
    writer = home.log.writer
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the system makes it a few KiB: parts are sent, too
        expected, received, by_writer = bytearray(), bytearray(), 0
        for number in range(100):
            frame = number.to_bytes(4, "big") * rng.choice((16, 1000))
            ticket = home.ticket + 1
            assert writer.send_after(ticket, near.fileno(), frame)
            act(home, rng)
            writer.signal_from(rng.choice((0, 1 << 62)))
            if home.ticket == ticket and rng.random() < 0.7:
                end = time.monotonic() + WAIT_MS / 1000
                while writer.done_ticket < ticket:
                    assert time.monotonic() < end, f"ticket {writer.done_ticket} of {ticket}"
                    time.sleep(0.0001)
            sent = writer.take_back()
            writer.signal_from(0)
            by_writer += sent > 0
            assert not sent or writer.done_ticket >= ticket
            expected += frame
            while sent < len(frame):
                try:
                    sent += near.send(frame[sent:])
                except BlockingIOError:
                    received += far.recv(1 << 16)
            if rng.random() < 0.3:
                received += far.recv(1 << 16)
        near.close()
        while data := far.recv(1 << 16):
            received += data
    assert by_writer > 10
    assert received == expected


REPORTING_WHILE_A_FRAME_IS_SENT = """
import sys, threading
from raftlog.compiled.loaded import CompiledAppendQueue

sending, may_end, reporting = threading.Event(), threading.Event(), threading.Event()


class Calls:
    def send(self, fd, data):
        sending.set()
        may_end.wait()
        return len(data)

    def report(self, ticket):
        pass


def report_another():
    reporting.set()
    writes.report(2)


writes = CompiledAppendQueue(-1, 1000, Calls())
writes.send_after(1, -1, b"frame")
threads = [threading.Thread(target=writes.report, args=[1]), threading.Thread(target=report_another)]
threads[0].start()
sending.wait()
sys.setswitchinterval(60)  # the second thread keeps the interpreter's lock until it gives it away
threads[1].start()
reporting.wait()
may_end.set()
for thread in threads:
    thread.join()
print(writes.done_ticket, writes.take_back())
"""


@needs_compiled
def test_report_does_not_wait_with_the_interpreter_s_lock() -> None:
    """Whoever has the mutex of reports may need that lock next: so does the event loop after it waited for the mutex.
    Then neither thread would ever run again.
    """
    command = [sys.executable, "-c", REPORTING_WHILE_A_FRAME_IS_SENT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "2 5\n"
