"""Runs the inner event loop: one trio task that serves every busy socket of a process.

Theory of operation. A trio task per connection pays a task switch and an epoll re-arm for every wake-up, which costs
more than handling a small request. Here one task waits on a private, level-triggered epoll set nested in trio's own;
when something is ready it handles all of it inline, then lets the rest of the process react once (the *end of the
turn*: batched appends are framed, consensus effects are carried out) and then flushes every socket with output. So one
turn costs one wake-up for any number of active clients, and each socket gets one send.

The price is that nothing in a turn may block or await, and that the owner of a socket must contain errors caused by its
peer. This module is the only one that waits for descriptors.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import trio

from raftlog.net.flush import Flushable, flush_streams
from raftlog.net.lingering import LINGER_SECONDS, Lingering

EPOLLIN = select.EPOLLIN
EPOLLOUT = select.EPOLLOUT

RECEIVE_BYTES = 64 * 1024
"""Size of one receive: larger chunks fall out of the cache, smaller ones cost more system calls."""

EVENTS_MAX = 512
"""The number of descriptors that one turn serves at most."""
_SLICE_SECONDS = 0.005
"""While there is an event at least every three milliseconds (`LINGER_SECONDS`), the reactor waits for the next one
itself, for at most five milliseconds, before other tasks get their turn. So it also waits for most syncs of the log. A
trip through trio's loop costs as much as serving a small request, and a message passing through a group takes three or
four. Where the next event usually comes later, the reactor does not wait: see `Lingering`.
"""

_PAUSE_SECONDS = 0.0001
"""Seconds for which the reactor sleeps before it looks for events again, if it has to make a turn soon in any case."""

TURN_SECONDS = 0.01
"""A turn that has lasted this long leaves the remaining clients to the next one."""
_SHARE_SECONDS_MIN = 0.0005
_UNFINISHED_SHARE = 0.25


Ready = list[tuple[int, int]]
"""Descriptors with their events."""
Begun = Sequence[tuple[int, Callable[[], None]]]
"""Descriptors of clients that have begun to be served, each with a call that does the rest."""


class Reactor:
    """Serves registered file descriptors from one trio task; see the module's theory of operation.

    So that no client blocks the others, a turn has a time limit (`TURN_SECONDS`), and so has the work for each client
    in it (`share_used`). Beyond it, descriptors added as ``patient`` are left to the next turn, where they come first;
    all others are handled in every turn. Work beyond a client's share continues in later turns (`go_on_later`), one
    client after the other, after those that had nothing yet. A client that used more than its share at once, for
    example with one long request, joins that queue as a debtor until it uses less; the smallest debt is handled first.

    ``at_turn_begin`` callbacks run before anything is read, ``at_turn_end`` ones before sockets are flushed.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._patient: set[int] = set()
        self._remaining_events: dict[int, int] = {}
        # Debtors, which used more than a share of CPU time, with their total excess in seconds; and the ready ones,
        # with their events, which are handled in turns with the unfinished work.
        self._debts: dict[int, float] = {}
        self._in_line: dict[int, int] = {}
        self._unfinished_next = False
        self._unfinished_work: deque[Callable[[], None]] = deque()
        self._share = 0.0
        self._share_until = float("inf")
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._together: Callable[[Ready], tuple[Ready, Begun]] | None = None
        self._started_calls: dict[int, Callable[[], None]] = {}
        self._turn_begin: list[Callable[[], None]] = []
        self._turn_end: list[Callable[[], None]] = []
        self._dirty: list[Flushable] = []
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.receive_buffer = memoryview(bytearray(2 * RECEIVE_BYTES))
        self.unsent = Unsent()
        self.turns = 0
        self._due: float | None = None
        self._is_polling = False
        self._giving_way = 0
        self._lingering = Lingering()
        self._in_flight: Callable[[], bool] = lambda: False
        self._before_waiting: list[Callable[[], None]] = []
        self._has_failed = False
        self.add(self._wake_fd, self._drain_wake)

    def add(self, fd: int, handler: Callable[[int], None], events: int = EPOLLIN, *, patient: bool = False) -> None:
        """Call ``handler(events)`` in the turns in which ``fd`` is ready, or soon after if it is ``patient``."""
        assert fd not in self._handlers, f"descriptor {fd} is registered already"
        self._handlers[fd] = handler
        if patient:
            self._patient.add(fd)
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        """Change the events that ``fd`` waits for."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Remove ``fd``; call it before closing it."""
        del self._handlers[fd]
        self._patient.discard(fd)
        self._debts.pop(fd, None)
        self._remaining_events.pop(fd, None)
        self._in_line.pop(fd, None)
        self._started_calls.pop(fd, None)
        self._epoll.unregister(fd)

    def share_used(self) -> bool:
        """Whether the handler that runs has used its share of this turn."""
        return self._clock() > self._share_until

    def go_on_later(self, step: Callable[[], None]) -> None:
        """Call ``step()`` in a later turn, with a new share: for a handler that has used its share."""
        self._unfinished_work.append(step)
        self.wake()

    def at_turn_begin(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` at the beginning of each turn, before anything is read."""
        self._turn_begin.append(callback)

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` at the end of each turn, in order of registration."""
        self._turn_end.append(callback)

    def before_waiting(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` after some turns, before the reactor lets other tasks run and waits for them and for events.
        It also runs after a turn of another task in which something was ready.

        For what has to look at the result of turns, but not of each of them.
        """
        self._before_waiting.append(callback)

    def expect_soon(self, in_flight: Callable[[], bool]) -> None:
        """Set the function that says whether an event will come soon, for which the reactor should wait."""
        self._in_flight = in_flight

    def turn_now(self) -> None:
        """Take a turn at once, with what is ready: for a task on the reactor's thread. `wake` costs system calls.

        An uncaught exception of a handler is raised here, and no turn follows: see `run`.
        """
        ready = self._epoll.poll(0, EVENTS_MAX)
        self._turn(ready)
        if ready:  # `run` does not wake up for events that are served, and no other task would look at the result
            for callback in self._before_waiting:
                callback()

    def serve_together(self, serve: Callable[[Ready], tuple[Ready, Begun]]) -> None:
        """Call ``serve`` with all that is ready in a turn, before any handler of it.

        It does a bounded amount of work for the descriptors that it can serve, in any order, and returns those that are
        left for their handlers. What takes longer, it returns as calls. Each is made with the client's share, before
        the client's handler is called again: in the first half of this turn, or of the next ones.
        """
        self._together = serve

    def wake(self) -> None:
        """Request a turn soon. Thread-safe; several calls before the turn make one turn."""
        os.eventfd_write(self._wake_fd, 1)

    def mark_dirty(self, stream: Flushable) -> None:
        """Flush ``stream`` at the end of this turn (or of the next one, when called between turns)."""
        self._dirty.append(stream)

    def turn_within(self, seconds: float) -> None:
        """Request a turn within ``seconds``, a few milliseconds at most, also if nothing becomes ready until then.

        Until then there is a turn every 0.1 ms if anything is ready, and no other task runs. Each turn ends the
        request: repeat it if it is still needed.
        """
        self._due = self._clock() + seconds
        if not self._is_polling:
            self.wake()

    @contextmanager
    def giving_way(self) -> Iterator[None]:
        """During the block, let other tasks run after each turn of the reactor, which waits for no event itself.

        For a task that works in many small steps: after each of them the reactor would wait for some milliseconds.
        """
        self._giving_way += 1
        try:
            yield
        finally:
            self._giving_way -= 1

    def end_turn(self) -> None:
        """Let the process react to the input, then send. After an exception no turn follows: see `run`."""
        if self._has_failed:
            return
        try:
            for callback in self._turn_end:
                callback()
            while self._dirty:
                dirty, self._dirty = self._dirty, []
                flush_streams(dirty)
        except BaseException:
            self._has_failed = True
            raise

    async def run(self) -> None:
        """Serve until cancelled. An uncaught exception of a handler ends the run.

        If it is raised in a turn that another task took, that task has to end this one. Until then there is no turn:
        what comes after an entry that could not be applied, say, must not be applied.
        """
        poll = self._epoll.poll
        epoll_fd = self._epoll.fileno()
        lingering = self._lingering
        while True:
            for callback in self._before_waiting:
                callback()
            await trio.lowlevel.wait_readable(epoll_fd)
            if self._has_failed:
                await trio.sleep_forever()
            now = trio.current_time()
            give_way_at = now + _SLICE_SECONDS
            self._is_polling = True
            wait = 0.0
            while ready := poll(wait, EVENTS_MAX):
                came_at = now
                self._turn(ready)
                while self._due is not None:
                    self._turn(self._ready_by(self._due))
                now = trio.current_time()
                pays = lingering.is_worthwhile(came_at, now, in_flight=self._in_flight())
                if not pays or self._giving_way or now >= give_way_at:
                    break
                wait = min(give_way_at - now, LINGER_SECONDS)
            self._is_polling = False

    def _ready_by(self, due: float) -> list[tuple[int, int]]:
        """Wait until something is ready, or until ``due``. The timeouts of epoll are whole milliseconds: too long."""
        while (seconds := due - self._clock()) > 0:
            time.sleep(min(seconds, _PAUSE_SECONDS))
            if ready := self._epoll.poll(0, EVENTS_MAX):
                return ready
        return self._epoll.poll(0, EVENTS_MAX)

    def _turn(self, ready: list[tuple[int, int]]) -> None:
        """Serve all ready descriptors, then end the turn. After an exception no turn follows: see `run`."""
        if self._has_failed:
            return
        self._has_failed = True  # until everything is served
        self.turns += 1
        self._due = None
        for callback in self._turn_begin:
            callback()
        if self._remaining_events:
            remaining, self._remaining_events = self._remaining_events, {}
            ready = [*remaining.items(), *[(fd, events) for fd, events in ready if fd not in remaining]]
        self._share = share = max(TURN_SECONDS / (len(ready) + 1), _SHARE_SECONDS_MIN)
        if self._debts:
            ready = self._without_debtors(ready)
        handler_of, clock, patient = self._handlers.get, self._clock, self._patient
        unfinished_count = len(self._unfinished_work)
        now = clock()
        end = now + TURN_SECONDS
        if self._together is not None:
            ready = self._serve_together(self._together, ready, now + TURN_SECONDS / 2)
            now = clock()
        rest = iter(ready)
        for fd, events in rest:
            # An earlier handler of this turn may have closed a later descriptor.
            if (handler := handler_of(fd)) is not None:
                self._share_until = share_until = now + share
                handler(events)
                if (now := clock()) > share_until and fd in patient and fd not in self._debts:
                    self._measure_next(fd)
                if now > end:
                    self._leave(rest)
                    break
        if unfinished_count or self._in_line:
            self._work_off(unfinished_count, share, max(end, now + _UNFINISHED_SHARE * TURN_SECONDS))
        if self._unfinished_work or self._in_line or self._remaining_events or self._started_calls:
            self.wake()
        self._has_failed = False
        self.end_turn()

    def _serve_together(self, serve: Callable[[Ready], tuple[Ready, Begun]], ready: Ready, end: float) -> Ready:
        """Serve clients together, and do the rest for those that have begun, until ``end``; returns the others."""
        started_calls = self._started_calls
        if started_calls:
            # What they sent first is handled first.
            ready = [each for each in ready if each[0] not in started_calls]
        else:
            ready, calls = serve(ready)
            started_calls.update(calls)
        clock = self._clock
        while started_calls:
            fd = next(iter(started_calls))
            self._share_until = share_until = clock() + self._share
            started_calls.pop(fd)()
            now = clock()
            if now > share_until and fd not in self._debts:
                self._measure_next(fd)
            if now > end:
                break
        return ready

    def _leave(self, rest: Iterator[tuple[int, int]]) -> None:
        """Handle only the urgent rest of a turn that lasted too long, and leave clients to the next turn."""
        for fd, events in rest:
            if fd in self._patient:
                self._remaining_events[fd] = events
            elif (handler := self._handlers.get(fd)) is not None:
                handler(events)

    def _without_debtors(self, ready: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Queue debtors that are ready; returns the others."""
        debts = self._debts
        self._in_line.update(each for each in ready if each[0] in debts)
        return [each for each in ready if each[0] not in debts]

    def _work_off(self, count: int, share: float, end: float) -> None:
        """Continue the unfinished work of earlier turns, for at most ``count`` clients, and debtors, until ``end``."""
        while (now := self._clock()) <= end and (count or self._in_line):
            self._share_until = now + share
            self._unfinished_next = not self._unfinished_next
            if count and (self._unfinished_next or not self._in_line):
                count -= 1
                self._unfinished_work.popleft()()
            else:
                self._handle_debtor()

    def _measure_next(self, fd: int) -> None:
        """Measure ``fd``, which took longer than a share: if it uses as much CPU time again, it becomes a debtor.

        This time the process itself may not have run, which is not the client's fault.
        """
        handler = self._handlers.get(fd)
        if handler is None:
            return  # it was closed

        def measure(events: int) -> None:
            self._handlers[fd] = handler
            begin = self._cpu_clock()
            handler(events)
            excess = self._cpu_clock() - begin - self._share
            if excess > 0 and self._handlers.get(fd) is handler:
                self._debts[fd] = excess

        self._handlers[fd] = measure

    def _handle_debtor(self) -> None:
        """Handle the debtor with the smallest debt."""
        debts = self._debts
        fd = min(self._in_line, key=debts.__getitem__)
        begin = self._cpu_clock()
        self._handlers[fd](self._in_line.pop(fd))
        excess = self._cpu_clock() - begin - self._share
        if excess <= 0:
            debts.pop(fd, None)
        elif fd in debts:  # otherwise it was closed
            debts[fd] += excess

    def close(self) -> None:
        """Release the epoll set and the wake descriptor."""
        self._epoll.close()
        os.close(self._wake_fd)

    def _drain_wake(self, events: int) -> None:
        os.eventfd_read(self._wake_fd)


class Mailbox:
    """Passes values from other threads to the reactor's thread, in order."""

    def __init__(self, reactor: Reactor, deliver: Callable[[object], None]) -> None:
        self._reactor = reactor
        self._deliver = deliver
        self._queue: deque[object] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        reactor.add(self._fd, self._on_ready)

    def put(self, value: object) -> None:
        """Deliver ``value`` in the next turn; thread-safe."""
        self._queue.append(value)
        os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        """Stop delivering, and drop all queued items."""
        self._reactor.remove(self._fd)
        os.close(self._fd)

    def _on_ready(self, events: int) -> None:
        os.eventfd_read(self._fd)
        queue = self._queue
        while queue:
            self._deliver(queue.popleft())


class Unsent:
    """Counts bytes that streams cannot send because the other side does not read."""

    __slots__ = ("nbytes",)

    def __init__(self) -> None:
        self.nbytes = 0


_LATER_SECONDS = 0.1


class Deadline:
    """A timer task whose deadline moves without waking it; ``fire()`` does what is due at ``next_deadline()``."""

    def __init__(self, next_deadline: Callable[[], float], fire: Callable[[], None]) -> None:
        self._next_deadline = next_deadline
        self._fire = fire
        self._scope = trio.CancelScope()

    def refresh(self) -> None:
        """Follow the next deadline, which may have changed."""
        # To move it at each turn of a busy replica, a little later each time, would cost more than a few wake-ups.
        deadline, current = self._next_deadline(), self._scope.deadline
        if deadline < current or deadline > current + _LATER_SECONDS:
            self._scope.deadline = deadline

    async def run(self) -> None:
        """Fire at each deadline until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._next_deadline()) as self._scope:
                await trio.sleep_forever()
            if self._next_deadline() <= trio.current_time():
                self._fire()
