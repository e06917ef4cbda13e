"""The queue of a log writer by itself, in both forms: one thread queues, runs and looks."""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.compiled.loaded import CompiledAppendQueue
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL
from raftlog.segment.append_queue import PythonAppendQueue
from raftlog.segment.codec import TailEntry
from raftlog.segment.group_commit import WriteOp
from tests.support.append_queues import FORMS
from tests.support.file_size_limit import file_size_limit

SYNC_BYTES_MAX = 1000
FILE_POS = 10_000
HEADER = b"h" * 48


class Home:
    """A queue, its file, and the operations that a log would submit."""

    def __init__(self, directory: Path, form: type[CompiledAppendQueue | PythonAppendQueue]) -> None:
        self.form = form
        self.path = directory / "segment"
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT)
        self.done_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.writes = form(self.done_fd, SYNC_BYTES_MAX)
        self.ticket = 0
        self.pos = FILE_POS

    def op(self, *bodies: bytes, commit_hint: LogIndex | None = None, term: Term | None = None) -> WriteOp:
        """The next operation; one with a ``term`` is not plain."""
        entries = []
        for body in bodies:
            size = len(HEADER) + len(body)
            number = self.ticket + 1
            entries.append(TailEntry(LogIndex(number), Term(1), NORMAL, self.pos, size, 7 * number, HEADER, body))
            self.pos += size
        self.ticket += 1
        hard_state = None if term is None else (term, None)
        nbytes = sum(entry.size for entry in entries)
        return WriteOp(self.ticket, entries, nbytes, hard_state=hard_state, commit_hint=commit_hint)

    def run(self, limit_pos: int = 1 << 40, fd: int | None = None) -> bool:
        """Write all that is plain; returns whether an operation is next."""
        writes = self.writes
        found, before = False, -1
        while before != writes.done_ticket and not writes.failure:
            before = writes.done_ticket
            end_pos, hint = writes.end_pos or FILE_POS, writes.commit_hint
            found = writes.run(self.fd if fd is None else fd, FILE_POS, limit_pos, end_pos, hint, True, 0.0)
        return found

    def content(self) -> bytes:
        return self.path.read_bytes()

    def reports(self) -> int:
        try:
            return os.eventfd_read(self.done_fd)
        except BlockingIOError:
            return 0


@pytest.fixture(params=FORMS)
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Home]:
    home = Home(tmp_path, request.param)
    yield home
    os.close(home.fd)
    os.close(home.done_fd)


def test_queued_writes_share_one_write_and_report(home: Home) -> None:
    home.writes.submit(home.op(b"one", b"two", commit_hint=LogIndex(4)))
    home.writes.submit(home.op(b"three", commit_hint=LogIndex(3)))
    assert not home.run(), "nothing is next"
    assert home.content() == HEADER + b"one" + HEADER + b"two" + HEADER + b"three"
    writes = home.writes
    assert (writes.done_ticket, home.reports(), len(writes.durations()), writes.durations()) == (2, 1, 1, [])
    assert (writes.end_pos, writes.last_index, writes.chain, writes.commit_hint) == (home.pos, 2, 14, 4)


def test_append_queue_keeps_the_order_of_other_operations(home: Home) -> None:
    first, vote, last = home.op(b"first"), home.op(term=Term(2)), home.op(b"last")
    for op in (first, vote, last, None):
        home.writes.submit(op)
    assert home.run()
    assert (home.content(), home.writes.done_ticket) == (HEADER + b"first", 1)
    assert home.run(), "it is still the next one"
    assert home.writes.take(SYNC_BYTES_MAX) == ([vote, last], False)
    assert home.writes.take(SYNC_BYTES_MAX) == ([], True)
    home.writes.report(3)
    assert (home.writes.done_ticket, home.reports()) == (3, 2)


def test_operations_are_taken_up_to_the_size_of_a_sync(home: Home) -> None:
    ops = [home.op(bytes(500)) for _ in range(4)]
    for op in ops:
        home.writes.submit(op)
    assert home.writes.take(SYNC_BYTES_MAX) == (ops[:2], True)
    assert home.writes.take(SYNC_BYTES_MAX) == (ops[2:], True)


@pytest.mark.parametrize(
    "field", [{"cut": object()}, {"hard_state": (2, "n1")}, {"notes": {}}, {"base": object()}, {"closed": ((0, b""),)}]
)
def test_compiled_queue_runs_only_writes_of_entries(home: Home, field: dict[str, object]) -> None:
    plain = home.op(b"body")
    home.writes.submit(WriteOp(plain.ticket, plain.entries, plain.nbytes, **field))  # type: ignore[arg-type]
    assert home.run()
    assert (home.content(), home.writes.done_ticket) == (b"", 0)


def test_compiled_queue_leaves_operations_beyond_gaps_and_limits(home: Home) -> None:
    home.writes.submit(home.op(b"first"))
    limit = home.pos
    home.writes.submit(home.op(b"past the limit"))
    assert home.run(limit_pos=limit)
    assert home.content() == HEADER + b"first"
    assert len(home.writes.take(1)[0]) == 1
    home.writes.submit(home.op(b"behind a gap"))
    assert home.run()
    assert (home.content(), home.writes.done_ticket) == (HEADER + b"first", 1)


def test_writes_without_an_open_file_finish_without_writing(home: Home) -> None:
    home.writes.submit(home.op(commit_hint=LogIndex(5)))
    home.writes.submit(home.op(b"body"))
    assert home.run(limit_pos=FILE_POS, fd=-1)
    assert (home.writes.done_ticket, home.writes.commit_hint, home.writes.failure) == (1, 5, 0)


def test_single_write_is_limited_to_the_bytes_of_a_sync(home: Home) -> None:
    for _ in range(5):
        home.writes.submit(home.op(bytes(352)))  # 400 with the header
    assert not home.run()
    assert (home.writes.done_ticket, home.reports()) == (5, 3)
    home.writes.submit(home.op(bytes(SYNC_BYTES_MAX)))
    assert home.run(), "one that is larger is not plain"


def test_single_write_is_limited_to_the_buffers_of_the_system(home: Home) -> None:
    home.writes = home.form(home.done_fd, 1 << 20)
    for number in range(600):
        home.writes.submit(home.op(b"%d" % number))
    home.writes.submit(home.op(*[b"many"] * 513))
    assert home.run()
    assert (home.writes.done_ticket, home.reports()) == (600, 2)
    assert home.content() == b"".join(HEADER + b"%d" % number for number in range(600))


def test_partial_write_is_continued_and_fails_with_the_next_error(home: Home) -> None:
    home.writes.submit(home.op(bytes([1]) * 100, bytes([2]) * 100))
    with file_size_limit(48 + 100 + 48 + 30):
        found = home.run()
    assert not found
    assert home.writes.failure == errno.EFBIG
    assert home.content() == HEADER + bytes([1]) * 100 + HEADER + bytes([2]) * 30
    assert (home.writes.done_ticket, home.writes.end_pos, home.reports()) == (0, FILE_POS, 0)
    assert home.writes.durations() == []


@pytest.mark.parametrize(
    ("kind", "number"), [("read-only", errno.EBADF), ("pipe", errno.ESPIPE), ("none", errno.EBADF)]
)
def test_failed_write_is_not_reported_as_done(home: Home, kind: str, number: int) -> None:
    home.writes.submit(home.op(b"good"))
    assert not home.run()
    home.writes.submit(home.op(b"bad"))
    fds: list[int] = []
    if kind != "none":
        fds += [os.open(home.path, os.O_RDONLY)] if kind == "read-only" else os.pipe()
    assert not home.run(fd=fds[-1] if fds else -1)
    assert (home.writes.failure, home.writes.done_ticket, home.reports()) == (number, 1, 1)
    assert home.content() == HEADER + b"good"
    for fd in fds:
        os.close(fd)


def test_references_are_released(home: Home) -> None:
    body = bytes(100)
    before = sys.getrefcount(body)
    home.writes.submit(home.op(body))
    assert sys.getrefcount(body) > before
    assert not home.run()
    assert sys.getrefcount(body) == before, "after the write"
    home.writes.submit(home.op(body))
    home.writes.stop()
    assert sys.getrefcount(body) == before, "when the queue stops"
    home.writes.submit(home.op(body))
    assert sys.getrefcount(body) == before, "and at once from then on"
    assert home.writes.take(1) == ([], True)
    other = home.form(home.done_fd, SYNC_BYTES_MAX)
    other.submit(home.op(body))
    del other
    assert sys.getrefcount(body) == before, "with the queue"


def test_invalid_operation_is_refused_and_changes_nothing(home: Home) -> None:
    with pytest.raises(AttributeError):
        home.writes.submit("no operation")  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        home.writes.submit(WriteOp(1, [object()], 1))  # type: ignore[list-item]
    assert home.writes.take(1) == ([], True)


def test_waiting_thread_returns_when_its_time_is_up(home: Home) -> None:
    """Nothing is due before the first write, and a tenth of a second later something is."""
    found: list[bool] = []
    writes = home.writes
    thread = threading.Thread(
        target=lambda: found.append(writes.run(home.fd, FILE_POS, 1 << 40, FILE_POS, 0, False, 0.1))
    )
    thread.start()
    writes.submit(home.op(b"body"))
    waiting = select.poll()
    waiting.register(home.done_fd, select.POLLIN)
    assert waiting.poll(30_000)
    thread.join(30)
    assert (found, writes.done_ticket, home.content()) == ([False], 1, HEADER + b"body")


def test_writer_sends_a_frame_after_its_write(home: Home) -> None:
    near, far = socket.socketpair()
    far.setblocking(False)
    with near, far:
        op = home.op(b"body")
        assert home.writes.send_after(1, near.fileno(), b"acknowledged")
        with pytest.raises(BlockingIOError):
            far.recv(100)
        home.writes.submit(op)
        home.run()
        assert (far.recv(100), home.writes.done_ticket, home.reports()) == (b"acknowledged", 1, 0)
        assert home.writes.take_back() == len(b"acknowledged")
        assert not home.writes.send_after(1, near.fileno(), b"too late"), "the caller knows how to send it"
        assert home.writes.take_back() == 0


def test_frame_that_was_taken_back_is_not_sent(home: Home) -> None:
    near, far = socket.socketpair()
    far.setblocking(False)
    with near, far:
        assert home.writes.send_after(1, near.fileno(), b"taken back")
        assert home.writes.take_back() == 0
        home.writes.submit(home.op(b"body"))
        home.run()
        assert (home.writes.done_ticket, home.reports()) == (1, 1), "whoever took it back is woken instead"
        with pytest.raises(BlockingIOError):
            far.recv(100)


def test_later_write_is_signalled_although_it_sends_an_earlier_frame(home: Home) -> None:
    near, far = socket.socketpair()
    with near, far:
        assert home.writes.send_after(1, near.fileno(), b"of the first")
        home.writes.submit(home.op(b"one"))
        home.writes.submit(home.op(b"two"))
        home.run()
        assert (far.recv(100), home.writes.done_ticket, home.reports()) == (b"of the first", 2, 1)


def test_frame_that_the_system_does_not_take_whole_is_signalled(home: Home) -> None:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        frame = bytes(16 << 20)
        assert home.writes.send_after(1, near.fileno(), frame)
        home.writes.submit(home.op(b"one"))
        home.run()
        assert home.reports() == 1
        assert 0 < home.writes.take_back() < len(frame), "the rest is left to the caller"
        assert home.writes.send_after(2, near.fileno(), b"full")
        home.writes.submit(home.op(b"two"))
        home.run()
        assert (home.reports(), home.writes.take_back()) == (1, 0)
        far.close()
        assert home.writes.send_after(3, near.fileno(), b"gone")
        home.writes.submit(home.op(b"three"))
        home.run()
        assert (home.reports(), home.writes.take_back()) == (1, 0)


def test_writer_signals_only_requested_reports(home: Home) -> None:
    assert home.writes.signal_from(2) == 0
    home.writes.submit(home.op(b"one"))
    home.run()
    assert (home.writes.done_ticket, home.reports()) == (1, 0)
    home.writes.submit(home.op(b"two"))
    home.run()
    assert (home.writes.signal_from(9), home.reports()) == (2, 1)
    home.writes.report(3)
    assert (home.writes.done_ticket, home.reports()) == (3, 0)
