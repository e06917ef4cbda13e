"""A load generator with a rate: requests are sent when they are due, whether those before them were answered or not.

As `benchmarks.load`, with the same connections and frames; only the sending differs. A latency counts from when the
message was due. Where no slot is free, messages wait for one, and their wait is part of their latency.

Run as ``python -m benchmarks.paced_load``: one JSON object on standard input (`PacedJob`), one on standard output
(`benchmarks.load.Report`).
"""

from __future__ import annotations

import itertools
import json
import select
import sys
from collections import deque
from collections.abc import Hashable
from dataclasses import asdict, dataclass

from benchmarks.load import Connection, Job, Recorder, Report, monotonic_seconds
from benchmarks.wires.wire import LoadFailed

TICK_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class PacedJob:
    """``rate`` messages a second from now until the last window of ``job`` ends."""

    job: Job
    rate: float

    @property
    def begin(self) -> float:
        """See `Job`."""
        return self.job.begin

    @property
    def window_seconds(self) -> float:
        """See `Job`."""
        return self.job.window_seconds

    @property
    def windows(self) -> int:
        """See `Job`."""
        return self.job.windows


class Sender:
    """Hands due requests to the connections in turn; each connection keeps at most ``job.in_flight`` of them."""

    def __init__(self, connections: list[Connection], rate: float, begin: float) -> None:
        self._turns = itertools.cycle(connections)
        self._rate = rate
        self._begin = begin
        self._sent = 0
        self.free: dict[Connection, deque[Hashable]] = {each: deque(each.wire.first()[0]) for each in connections}

    def send_due(self, now: float) -> list[Connection]:
        """Send what is due. Returns the connections whose sockets are full."""
        blocked = list[Connection]()
        for _ in self.free:
            due = int((now - self._begin) * self._rate) - self._sent
            if due <= 0:
                break
            connection = next(self._turns)
            free = self.free[connection]
            keys = [free.popleft() for _ in range(min(due, len(free)))]
            for key in keys:
                connection.started[key] = self._begin + self._sent / self._rate
                self._sent += 1
            data = connection.wire.again(keys)[1]
            if connection.unsent is not None:
                connection.send_later(data)
            elif data and not connection.send(data):
                blocked.append(connection)
        return blocked


def generate(paced: PacedJob) -> Report:
    """Send until the last window ends. Raises LoadFailed, OSError."""
    job = paced.job
    epoll = select.epoll()
    connections = {each.fd: each for each in (Connection(job, number) for number in range(job.connections))}
    for fd in connections:
        epoll.register(fd, select.EPOLLIN)
    sender = Sender(list(connections.values()), paced.rate, monotonic_seconds())
    recorder = Recorder(job.begin, job.window_seconds, job.windows, job.batch)
    while True:
        events = epoll.poll(TICK_SECONDS)
        if (report := recorder.advance(monotonic_seconds())) is not None:
            return report
        for fd, event in events:
            connection = connections[fd]
            if event & select.EPOLLOUT and connection.unsent is not None and connection.send(connection.unsent):
                epoll.modify(fd, select.EPOLLIN)
            if event & ~select.EPOLLOUT:
                sender.free[connection].extend(connection.receive(recorder.samples))
        for connection in sender.send_due(monotonic_seconds()):
            epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)


def main() -> None:
    """Read a job, do it, write the report."""
    given = json.load(sys.stdin)
    job = Job(**{**given["job"], "address": tuple(given["job"]["address"])})
    try:
        report = generate(PacedJob(job, given["rate"]))
    except (LoadFailed, OSError) as error:
        print(f"load generator: {error}", file=sys.stderr)
        sys.exit(1)
    json.dump(asdict(report), sys.stdout)


if __name__ == "__main__":
    main()
