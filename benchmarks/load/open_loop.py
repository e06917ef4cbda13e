"""A load generator that sends each request when it is due, whether earlier ones were answered or not.

As `benchmarks.load.closed_loop`, with the same connections and frames; only the sending differs. A latency begins when
the message was due. Where no slot is free, messages wait for one, and their wait is part of their latency.

A load may survive failures, as when another replica becomes the leader: then it opens a connection again on which a
request was refused, or which the server closed, and counts the requests in flight on it as failed.

Run as ``python -m benchmarks.load.open_loop``: a `PacedJob` on standard input, a `Report` on standard output.
"""

from __future__ import annotations

import itertools
import math
import select
from array import array
from collections import Counter, deque
from collections.abc import Hashable
from contextlib import closing
from dataclasses import dataclass, replace

from benchmarks.load.closed_loop import Connection
from benchmarks.load.do_job import do_job
from benchmarks.load.job import Job
from benchmarks.load.report import Recorder, Report, buckets, monotonic_seconds
from benchmarks.wires.wire import LoadFailed

TICK_SECONDS = 0.001
RETRY_SECONDS = 0.1
"""Between attempts to open a connection again."""


@dataclass(frozen=True, slots=True)
class PacedJob:
    """A load of ``rate`` messages a second, from now until the last window of ``job`` ends."""

    job: Job
    rate: float
    survives: bool = False
    """Whether the load continues after a failed request."""

    @property
    def begin(self) -> float:
        return self.job.begin

    @property
    def window_seconds(self) -> float:
        return self.job.window_seconds

    @property
    def windows(self) -> int:
        return self.job.windows

    def at(self, begin: float) -> PacedJob:
        """Return the job with another begin."""
        return replace(self, job=self.job.at(begin))


class Sender:
    """Sends due requests on the connections in turn. Each connection has at most ``job.in_flight`` open requests.

    ``late``: the seconds by which requests were sent late, for requests due at ``counts_from`` or later.
    """

    def __init__(self, connections: list[Connection], rate: float, begin: float, counts_from: float = math.inf) -> None:
        self._turns = itertools.cycle(connections)
        self._rate = rate
        self._begin = begin
        self._send_count = 0
        self._counts_from = counts_from
        self.late = array("d")
        self.free: dict[Connection, deque[Hashable]] = {each: deque(each.wire.initial()[0]) for each in connections}

    def replace(self, old: Connection, new: Connection | None) -> None:
        """Replace a failed connection by ``new``. None: use only the others, until there is a new one."""
        self.free.pop(old, None)
        if new is not None:
            self.free[new] = deque(new.wire.initial()[0])
        self._turns = itertools.cycle(self.free)

    def send_due(self, now: float) -> tuple[list[Connection], list[tuple[Connection, OSError]]]:
        """Send the due requests. Returns the connections with full sockets, and the failed ones with their errors."""
        connections, failures = list[Connection](), list[tuple[Connection, OSError]]()
        for _ in self.free:
            due = int((now - self._begin) * self._rate) - self._send_count
            if due <= 0:
                break
            connection = next(self._turns)
            free = self.free[connection]
            keys = [free.popleft() for _ in range(min(due, len(free)))]
            for key in keys:
                connection.send_times[key] = due_at = self._begin + self._send_count / self._rate
                self._send_count += 1
                if due_at >= self._counts_from:
                    self.late.append(now - due_at)
            data = connection.wire.repeat(keys)[1]
            try:
                if connection.unsent is not None:
                    connection.send_later(data)
                elif data and not connection.send(data):
                    connections.append(connection)
            except OSError as error:
                failures.append((connection, error))
        return connections, failures


class Connections:
    """The connections of a load, by the file descriptors of their sockets."""

    def __init__(self, paced_job: PacedJob, epoll: select.epoll) -> None:
        self._job = paced_job.job
        self._survives = paced_job.survives
        self._epoll = epoll
        self._reconnects: deque[tuple[Connection, int]] = deque()
        self._retry_at = 0.0
        self.failed = 0
        self.refusals: Counter[str] = Counter()
        self.numbers: dict[Connection, int] = {}
        self.by_fd: dict[int, Connection] = {}
        for number in range(paced_job.job.connections):
            self._open(number)

    def _open(self, number: int) -> Connection:
        connection = Connection(self._job, number)
        self.numbers[connection] = number
        self.by_fd[connection.fd] = connection
        self._epoll.register(connection.fd, select.EPOLLIN)
        return connection

    def close(self) -> None:
        """Close the sockets of all connections."""
        for connection in self.numbers:
            connection.sock.close()

    def lose(self, connection: Connection, sender: Sender, error: Exception) -> None:
        """Close a failed connection. Raises ``error`` again if the load may not survive it."""
        if not self._survives:
            raise error
        self.failed += len(connection.send_times)
        self.refusals[str(error)] += 1
        sender.replace(connection, None)
        self._epoll.unregister(connection.fd)
        del self.by_fd[connection.fd]
        connection.sock.close()
        self._reconnects.append((connection, self.numbers.pop(connection)))

    def reopen(self, sender: Sender, now: float) -> None:
        """Try to reopen a lost connection, at most now and then."""
        if not self._reconnects or now < self._retry_at:
            return
        self._retry_at = now + RETRY_SECONDS
        try:
            connection = self._open(self._reconnects[0][1])
        except (LoadFailed, OSError):
            return
        sender.replace(self._reconnects.popleft()[0], connection)


def generate(paced_job: PacedJob) -> Report:
    """Send until the last window ends. Raises LoadFailed or OSError, unless the load may survive them."""
    with closing(select.epoll()) as epoll, closing(Connections(paced_job, epoll)) as connections:
        return _generate(paced_job, epoll, connections)


def _generate(paced_job: PacedJob, epoll: select.epoll, connections: Connections) -> Report:
    job = paced_job.job
    sender = Sender(list(connections.numbers), paced_job.rate, monotonic_seconds(), job.begin)
    recorder = Recorder(job.begin, job.window_seconds, job.windows, job.batch)
    while True:
        events = epoll.poll(TICK_SECONDS)
        if (report := recorder.advance(monotonic_seconds())) is not None:
            return replace(
                report, failed=connections.failed, refusals=dict(connections.refusals), late=buckets(sender.late)
            )
        for fd, event in events:
            connection = connections.by_fd[fd]
            try:
                if event & select.EPOLLOUT and connection.unsent is not None and connection.send(connection.unsent):
                    epoll.modify(fd, select.EPOLLIN)
                if event & ~select.EPOLLOUT:
                    sender.free[connection].extend(connection.receive(recorder.samples))
            except (LoadFailed, OSError) as error:
                connections.lose(connection, sender, error)
        connections.reopen(sender, monotonic_seconds())
        connections_due, failures = sender.send_due(monotonic_seconds())
        for connection in connections_due:
            epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)
        for connection, failure in failures:
            connections.lose(connection, sender, failure)


if __name__ == "__main__":
    do_job(PacedJob, generate, LoadFailed, OSError)
