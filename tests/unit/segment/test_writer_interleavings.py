"""The loop of a log writer's thread, in both forms, in every order in which it and other threads can run.

The code of the thread runs here on the thread of the test, over calls of the system that decide who runs next: at each
of them, another thread may queue its next operation, and a wake-up that is under way may arrive. Each test tries all
such orders. A wake-up that nobody waits for is lost, as with a condition variable; a thread that would wait for ever is
a failure.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

import pytest

from chaos.disk import Buffer
from raftlog.compiled.loaded import CompiledAppendQueue
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import SegmentLog, StorageFailed, Writer
from raftlog.segment.append_queue import PythonAppendQueue
from raftlog.segment.codec import SYNC_BYTES_MAX
from raftlog.segment.group_commit import Store, WriteOp
from tests.support.append_queues import FORMS
from tests.unit.segment.log_home import LogHome

Put = Callable[[LogHome, SegmentLog], None]
Form = type[CompiledAppendQueue | PythonAppendQueue]

DURATIONS_MAX: Final = 4096
"""Of `raftlog.segment.append_queue`: a run returns after so many writes, to have them observed."""


class Choices:
    """The decisions of one run: those that are given, and from then on always the first one."""

    def __init__(self, given: Sequence[int]) -> None:
        self._given = given
        self.made: list[tuple[int, int]] = []

    def choose(self, among: int) -> int:
        number = self._given[len(self.made)] if len(self.made) < len(self._given) else 0
        self.made.append((number, among))
        return number

    def following(self) -> list[int] | None:
        """The decisions of the next run, in the order of a search by depth; None after the last one."""
        made = list(self.made)
        while made:
            number, among = made.pop()
            if number + 1 < among:
                return [*(chosen for chosen, _ in made), number + 1]
        return None


class Held:
    """A writer that only keeps what a log submits."""

    def __init__(self) -> None:
        self.done_ticket = 0
        self.ops: list[WriteOp] = []

    def start(self, store: Store) -> None:
        self.store = store

    def submit(self, op: WriteOp) -> None:
        self.ops.append(op)

    def signal_from(self, ticket: int) -> int:
        return self.done_ticket

    def send_after(self, ticket: int, fd: int, frame: bytes) -> bool:
        return False

    def take_back(self) -> int:
        return 0

    def close(self, *, clean: bool) -> None:
        """The thread has closed the files already."""


class Threads:
    """One run of the writer's thread and of a thread that queues; see `SystemCalls` for its methods.

    Args:
        put: submits to the log of a home; the other thread queues these operations, and then closes the writer.
        needless: how often a wait may return early.
        failing: how many writes may fail.
    """

    def __init__(self, form: Form, choices: Choices, put: Put, *, needless: int = 0, failing: int = 0) -> None:
        self.home = LogHome()
        held = Held()
        self.log = self.home.open(writer=held)
        put(self.home, self.log)
        self.left: list[WriteOp | None] = [*held.ops, None]
        self.tickets: list[int] = []
        self.observed: list[float] = []
        self.failures: list[Exception] = []
        self.now = 0.0
        self._queued = held.ops
        self._last_ticket = held.ops[-1].ticket
        self._choices = choices
        self._needless = needless
        self._failing = failing
        self._waking = 0
        self._store = held.store
        self.queue = form(-1, SYNC_BYTES_MAX, self)
        writer = Writer(self.queue, self.failures.append, self.observed.append, self.monotonic)
        writer._clean = True
        writer._run(held.store)

    def monotonic(self) -> float:
        return self.now

    def locking(self) -> None:
        self._others_run()

    def wait(self, seconds: float | None) -> bool:
        if seconds is None:
            state, queue = self._store.meta.state, self.queue
            assert state is not None
            assert (state.durable_pos, state.commit_hint) == (queue.end_pos, queue.commit_hint), "no markers are due"
        while True:
            options = self._acts_of_others()
            if seconds is not None:
                options.append("time is over")
            if self._needless:
                options.append("return early")
            assert options, f"it waits for ever; done are {self.tickets} of {self._last_ticket}"
            chosen = options[self._choices.choose(len(options))]
            if chosen == "time is over":
                assert seconds is not None
                self.now += max(seconds, 0.001)
                return False
            if chosen == "return early":
                self._needless -= 1
                return True
            self._act(chosen)
            if chosen == "wake":
                return True

    def wake(self) -> None:
        self._waking += 1

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int) -> int:
        self._others_run()
        if self._failing and self._choices.choose(2):
            self._failing -= 1
            raise OSError(errno.EIO, "a write fails")
        assert flags & os.RWF_DSYNC
        return self.home.disk.write_synced(fd, buffers, offset)

    def report(self, ticket: int) -> None:
        assert ticket > (self.tickets[-1] if self.tickets else 0)
        for op in self._queued:
            if (self.tickets[-1] if self.tickets else 0) < op.ticket <= ticket:
                self._check_durable(op)
        self.tickets.append(ticket)

    def send(self, fd: int, data: bytes) -> int:
        return len(data)

    def _check_durable(self, op: WriteOp) -> None:
        files = self._store.files
        for entry in op.entries:
            start = files.start_of(entry.pos)
            stored = self.home.disk.durable(files.path(start), entry.pos - start, entry.size)
            assert stored == entry.header + entry.body, f"entry {entry.index} is reported and not durable"
        if op.hard_state is not None:
            state = self._store.meta.state
            assert state is not None
            assert (state.term, state.voted_for) == op.hard_state

    def queue_all(self) -> None:
        """The other thread goes on when the writer's thread has ended."""
        while self.left:
            self._act("queue")

    def _acts_of_others(self) -> list[str]:
        return ["wake"] * bool(self._waking) + ["queue"] * bool(self.left)

    def _act(self, what: str) -> None:
        if what == "wake":
            self._waking -= 1
        else:
            self.queue.submit(self.left.pop(0))

    def _others_run(self) -> None:
        """Other threads do anything between nothing and all that is left to them."""
        while True:
            options = ["nothing", *self._acts_of_others()]
            chosen = options[self._choices.choose(len(options))]
            if chosen == "nothing":
                return
            self._act(chosen)


def all_orders(form: Form, put: Put, check: Callable[[Threads], None], **limits: int) -> int:
    """Check every order; returns how many there are."""
    given: list[int] | None = []
    for number in count():
        if given is None:
            return number
        choices = Choices(given)
        check(Threads(form, choices, put, **limits))
        given = choices.following()
    raise AssertionError


def plain_only(home: LogHome, log: SegmentLog) -> None:
    home.put(log, b"one")
    home.put(log, b"two", b"three")


def vote_last(home: LogHome, log: SegmentLog) -> None:
    home.put(log, b"one")
    home.submit(log, term=Term(1), voted_for="n2")


def vote_first(home: LogHome, log: SegmentLog) -> None:
    home.submit(log, term=Term(1), voted_for="n2")
    home.put(log, b"one")


def hint_alone(home: LogHome, log: SegmentLog) -> None:
    home.put(log, b"one")
    home.submit(log, commit_hint=LogIndex(1))


def entry_alone(home: LogHome, log: SegmentLog) -> None:
    home.put(log, b"one")


def check_all_done(threads: Threads) -> None:
    assert not threads.failures
    assert threads.tickets[-1] == threads.home.ticket
    assert threads.queue.take(1) == ([], True)


@pytest.mark.parametrize("put", [plain_only, vote_last, vote_first, hint_alone])
@pytest.mark.parametrize("form", FORMS)
def test_every_queued_operation_is_carried_out(form: Form, put: Put) -> None:
    assert all_orders(form, put, check_all_done) > 500


@pytest.mark.parametrize("form", FORMS)
def test_wait_may_return_early(form: Form) -> None:
    assert all_orders(form, entry_alone, check_all_done, needless=2) > 500


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_failed_writer_executes_no_further_operations(form: Form) -> None:
    failed = 0

    def check(threads: Threads) -> None:
        nonlocal failed
        if not threads.failures:
            check_all_done(threads)
            return
        (error,) = threads.failures
        assert isinstance(error, StorageFailed)
        done = list(threads.tickets)
        threads.queue_all()
        assert (threads.queue.take(1), threads.tickets) == (([], True), done)
        failed += 1

    assert all_orders(form, plain_only, check, failing=1) > failed > 300


class OneAtATime(Choices):
    """Whenever the writer is about to look what is next, one more operation is queued."""

    def choose(self, among: int) -> int:
        super().choose(among)
        return among - 1 if len(self.made) % 2 else 0


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_write_durations_are_all_observed(form: Form) -> None:
    """They are kept while nothing else is due, and there is room for so many."""
    writes = DURATIONS_MAX + 10

    def put(home: LogHome, log: SegmentLog) -> None:
        home.put(log, b"one")
        for _ in range(writes - 1):
            home.submit(log, commit_hint=LogIndex(1))

    threads = Threads(form, OneAtATime([]), put)
    check_all_done(threads)
    assert len(threads.observed) == len(threads.tickets) > DURATIONS_MAX
