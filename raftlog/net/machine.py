"""The machine that a node runs on: its disk, threads, connections and clocks.

`this_machine` returns the real one, unless the caller is inside `standing_in`: then a test kit has put another one in
its place. What such a block starts inherits it, tasks of trio and turns of reactors included; nothing else in the
process notices.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final, Generic, Protocol, TypeVar

import trio

from raftlog.lease_clock import boot_time
from raftlog.net.listener import Dialing, Listener
from raftlog.net.reactor import Reactor
from raftlog.segment.disk import Disk, RealDisk
from raftlog.segment.writer import LogWriter, OnFailure, threaded_writer

T = TypeVar("T")
Address = tuple[str, int]
OnSocket = Callable[[socket.socket], None]


class Listening(Protocol):
    """Accepts connections until it is closed; see `Listener`."""

    port: int
    closed: bool

    def close(self) -> None: ...


class Attempt(Protocol):
    """An attempt to connect to an address, as `Dialing` makes it."""

    def close(self) -> None: ...


class _SharedJob(Generic[T]):
    """One of the jobs that run in a thread together."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self._results: list[T] = []
        self.error: BaseException | None = None
        self.completion = trio.Event()

    def run(self) -> None:
        """Run the job in the thread."""
        try:
            self._results.append(self._job())
        except BaseException as error:  # noqa: ASYNC103 - its caller raises it
            self.error = error

    def result(self) -> T:
        """The value that the job returned. Raises the error that the job raised."""
        if self.error is not None:
            raise self.error
        return self._results[0]


_together = trio.lowlevel.RunVar[list[_SharedJob[Any]] | None]("together")
"""The jobs of this event loop that wait for the end of the turn."""


def _run_all(jobs: Sequence[_SharedJob[Any]]) -> None:
    for job in jobs:
        job.run()


class Machine:
    """Gives a node the clocks, sockets, disk and threads of the machine that it runs on.

    Attributes:
        owns_process: whether the process belongs to the node, which may then tune it.
        has_threads: whether work that waits for the disk has threads of its own. Without them it is done at once.
    """

    owns_process: bool = True
    has_threads: bool = True

    def open_disk(self) -> Disk:
        """Return the disk that holds the log."""
        return RealDisk()

    def open_reactor(self) -> Reactor:
        """Return the event loop of a node."""
        return Reactor()

    def open_writer(
        self, done_fd: int, on_failed: OnFailure, observe: Callable[[float], None], sync_bytes_max: int
    ) -> LogWriter:
        """Start a thread that writes a log (`threaded_writer`)."""
        return threaded_writer(done_fd, on_failed, observe, sync_bytes_max=sync_bytes_max)

    async def in_thread(self, job: Callable[[], T]) -> T:
        """Run a job that waits for the disk."""
        return await trio.to_thread.run_sync(job)

    async def in_thread_together(self, job: Callable[[], T]) -> T:
        """Run a short job in a thread, together with all others that are requested in this turn of the event loop.

        Two threads at once would wait for each other, and for the event loop. Raises what the job raises; the others
        run in any case. A caller that is cancelled stays until all have run.
        """
        joint_job = _SharedJob(job)
        other_jobs = _together.get(None)
        if other_jobs is not None:
            other_jobs.append(joint_job)
            with trio.CancelScope(shield=True):
                await joint_job.completion.wait()
            return joint_job.result()
        _together.set(jobs := [joint_job])
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()  # the others of this turn come
            _together.set(None)
            try:
                await trio.to_thread.run_sync(_run_all, jobs)
            except (RuntimeError, MemoryError) as error:  # there is no room for a thread
                for each in jobs:
                    each.error = error
            for each in jobs:
                each.completion.set()
        return joint_job.result()

    def check_free(self, address: Address) -> None:
        """Raise OSError or UnicodeError if nothing can listen at this address now."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        with contextlib.closing(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)  # does not listen: no client gets a connection that is closed at once

    def listen(self, reactor: Reactor, address: Address, on_accept: OnSocket) -> Listening:
        """Accept connections at an address. Raises OSError, UnicodeError."""
        return Listener(reactor, *address, on_accept)

    def dial(
        self, reactor: Reactor, address: Address, on_connected: OnSocket, on_failed: Callable[[str], None]
    ) -> Attempt:
        """Begin to connect to an IP address; see `Dialing`."""
        return Dialing(reactor, address, on_connected, on_failed)

    async def connect(self, address: Address) -> socket.socket:
        """Return a connection that does not block. Raises OSError, UnicodeError."""
        infos = await trio.socket.getaddrinfo(*address, type=trio.socket.SOCK_STREAM)
        family, kind, protocol, _, sockaddr = infos[0]
        sock = trio.socket.socket(family, kind, protocol)
        try:
            await sock.connect(sockaddr)
        except BaseException:
            sock.close()
            raise
        return socket.socket(fileno=sock.detach())

    async def open_stream(self, address: Address) -> trio.SocketStream:
        """Open a connection for a task. Raises OSError."""
        return await trio.open_tcp_stream(*address)

    def ageing_clock(self) -> float:
        """Return monotonic seconds for ages that a test may advance at once, unlike silence and time-outs."""
        return trio.current_time()

    @property
    def thread_clock(self) -> Callable[[], float]:
        """Returns monotonic seconds in any thread, with another origin."""
        return time.monotonic

    @property
    def boot_time(self) -> Callable[[], float]:
        """Returns the seconds since the machine was started, including those in which it was suspended."""
        return boot_time

    def wall_clock_ms(self) -> int:
        """Return milliseconds since the epoch, by the clock of this machine."""
        return time.time_ns() // 1_000_000


REAL: Final = Machine()
_standing_in: ContextVar[Machine] = ContextVar("machine", default=REAL)


def this_machine() -> Machine:
    """Return the machine that the caller runs on."""
    return _standing_in.get()


@contextlib.contextmanager
def standing_in(machine: Machine) -> Iterator[None]:
    """Make `this_machine` return ``machine`` during the block."""
    before = _standing_in.set(machine)
    try:
        yield
    finally:
        _standing_in.reset(before)
