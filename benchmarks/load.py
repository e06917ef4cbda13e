"""The load generator: one operating system process with a fixed number of messages in flight on each connection.

It does as little as possible: raw non-blocking sockets under epoll, frames built before the start and resent unchanged,
responses split and matched in bulk (`benchmarks.wires`, one for each kind of server). Latency is from passing a frame
to `send` to the return of the `recv` with its response. Nothing is computed from the samples before the last window has
ended.

Run as ``python -m benchmarks.load``: one JSON object on standard input (`Job`), one on standard output (`Report`).
"""

from __future__ import annotations

import itertools
import json
import math
import os
import resource
import select
import socket
import ssl
import sys
import time
from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

from benchmarks.frames import QUEUES
from benchmarks.wires.amqp import AmqpWire
from benchmarks.wires.etcd import EtcdWire
from benchmarks.wires.nats import NatsWire
from benchmarks.wires.rocketmq import RocketMQWire
from benchmarks.wires.wire import LoadFailed, Slots, Wire

WIRES: dict[str, type[Wire]] = {"rocketmq": RocketMQWire, "nats": NatsWire, "amqp": AmqpWire, "etcd": EtcdWire}

RECEIVE_BUFFER = memoryview(bytearray(256 * 1024))
"""Shared by all connections: a fresh buffer of this size for each `recv` costs more than handling one response."""

BUCKETS_PER_E = 50
"""Latencies are reported in logarithmic buckets: 50 to a factor of e, so a figure is right within 2 %."""


@dataclass(frozen=True, slots=True)
class Job:
    """``begin``: when the first window begins, on CLOCK_MONOTONIC, which all processes share; before it is warm-up.
    ``first_slot``: number of the first message slot, so that workers differ in opaque and unique key. ``topics``: slots
    take turns in the queues of so many topics, ``queues`` in each. ``batch``: messages in each request; 1 for requests
    without batches. ``wire``: what the server speaks, a name of `WIRES`. ``cores``: run on these only; none for all.
    ``keys``: sign requests with this access key and secret key. ``tls_ca``: use TLS; the authority of the server's
    certificate. ``must_be_in_time``: end with `STARTED_LATE` if the first window began before all connections were
    there; else that window counts less. ``lite_topics``: slots take turns in so many lite topics; 0 for none.
    """

    address: tuple[str, int]
    connections: int
    in_flight: int
    body_bytes: int
    begin: float
    window_seconds: float
    windows: int
    first_slot: int
    topics: int = 1
    batch: int = 1
    wire: str = "rocketmq"
    cores: Sequence[int] = ()
    queues: int = QUEUES
    keys: tuple[str, str] | None = None
    tls_ca: str | None = None
    must_be_in_time: bool = False
    lite_topics: int = 0

    def at(self, begin: float) -> Job:
        """The same at another time."""
        return replace(self, begin=begin)


@dataclass(frozen=True, slots=True)
class Report:
    """Per window: messages acknowledged, CPU seconds this process used, and latency buckets (see `bucket_seconds`).

    ``failed``: requests in all windows and before them that were refused, or whose connection was closed; only loads
    that survive such failures count them. ``refusals``: in which words, and on how many connections. ``late``: how long
    after they were due requests were sent, in all windows, in buckets; only loads with a rate have it. ``wake_ups``:
    how often this process waited, by window.
    """

    messages: list[int]
    cpu_seconds: list[float]
    latencies: list[dict[int, int]]
    failed: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)
    wake_ups: list[int] = field(default_factory=list)


STARTED_LATE = 3
"""Exit code: the first window began before all connections were there."""


class StartedLate(Exception):
    """The first window would count what was not sent yet."""


class Connection:
    __slots__ = ("fd", "received", "sock", "started", "unsent", "wire")

    def __init__(self, job: Job, number: int) -> None:
        self.sock = socket.create_connection(job.address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if job.tls_ca is not None:
            context = ssl.create_default_context(cafile=job.tls_ca)
            self.sock = context.wrap_socket(self.sock, server_hostname=job.address[0])
        first = job.first_slot + number * job.in_flight
        self.wire = WIRES[job.wire](
            Slots(first, job.in_flight, job.body_bytes, job.batch, job.topics, job.queues, job.keys, job.lite_topics)
        )
        self.wire.open(self.sock)
        self.sock.setblocking(False)
        self.fd = self.sock.fileno()
        self.started: dict[Hashable, float] = {}
        self.received = b""
        self.unsent: memoryview | None = None

    def send(self, data: bytes | memoryview) -> bool:
        """False if the kernel did not take everything: the rest is in ``unsent``."""
        try:
            taken = self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            taken = 0
        if taken == len(data):
            self.unsent = None
            return True
        self.unsent = memoryview(data)[taken:]
        return False

    def send_later(self, data: bytes) -> None:
        """Append to what the kernel did not take yet."""
        assert self.unsent is not None, "the socket has room"
        self.unsent = memoryview(bytes(self.unsent) + data)

    def receive(self, samples: array[float]) -> Sequence[Hashable]:
        """Read replies and add their latencies to ``samples``; returns the answered requests. Raises LoadFailed."""
        try:
            size = self.sock.recv_into(RECEIVE_BUFFER)
        except ssl.SSLWantReadError:
            return ()  # an incomplete record
        now = monotonic_seconds()
        if not size:
            raise LoadFailed(f"{self.sock.getpeername()} closed the connection")
        chunk = bytes(RECEIVE_BUFFER[:size])
        data = self.received + chunk if self.received else chunk
        keys, end = self.wire.settle(data)
        self.received = data[end:]
        started = self.started
        samples.extend([now - started.pop(key) for key in keys])
        return keys


class Recorder:
    """Collects latencies per window.

    Attributes:
        samples: latencies of the current window, in seconds; before the first window they are discarded.
        boundary: when the next window begins, or the last one ends.
    """

    def __init__(self, begin: float, window_seconds: float, windows: int, batch: int) -> None:
        self._window_seconds = window_seconds
        self._windows = [array("d") for _ in range(windows)]
        self._cpu_marks: list[float] = []
        self._wait_marks: list[int] = []
        self._batch = batch
        self.samples = array("d")
        self.boundary = begin

    def advance(self, now: float) -> Report | None:
        """Begin the window that ``now`` is in; returns the report when the last one has ended."""
        while now >= self.boundary:
            self._cpu_marks.append(process_cpu_seconds())
            self._wait_marks.append(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw)
            number = len(self._cpu_marks) - 1
            if number == len(self._windows):
                return Report(
                    messages=[len(latencies) * self._batch for latencies in self._windows],
                    cpu_seconds=[end - start for start, end in itertools.pairwise(self._cpu_marks)],
                    latencies=[buckets(latencies) for latencies in self._windows],
                    wake_ups=[end - start for start, end in itertools.pairwise(self._wait_marks)],
                )
            self.samples = self._windows[number]
            self.boundary += self._window_seconds
        return None


def generate(job: Job) -> Report:
    """Keep the messages in flight until the last window ends. Raises LoadFailed, StartedLate, OSError."""
    epoll = select.epoll()
    connections = {c.fd: c for c in (Connection(job, number) for number in range(job.connections))}
    for connection in connections.values():
        epoll.register(connection.fd, select.EPOLLIN)
        keys, data = connection.wire.first()
        connection.started = dict.fromkeys(keys, monotonic_seconds())
        if not connection.send(data):
            epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)
    if job.must_be_in_time and monotonic_seconds() > job.begin:
        raise StartedLate

    recorder = Recorder(job.begin, job.window_seconds, job.windows, job.batch)
    while True:
        events = epoll.poll(max(0.0, recorder.boundary - monotonic_seconds()))
        if (report := recorder.advance(monotonic_seconds())) is not None:
            return report
        for fd, event in events:
            connection = connections[fd]
            if event & select.EPOLLOUT and connection.unsent is not None and connection.send(connection.unsent):
                epoll.modify(fd, select.EPOLLIN)
            if event & ~select.EPOLLOUT:
                _send_again(connection, connection.receive(recorder.samples), epoll)


def _send_again(connection: Connection, answered: Sequence[Hashable], epoll: select.epoll) -> None:
    following, data = connection.wire.again(answered)
    # The latency of a request that must wait for room in the socket also counts from here.
    connection.started.update(dict.fromkeys(following, monotonic_seconds()))
    if not data:
        return
    if connection.unsent is not None:
        connection.send_later(data)
    elif not connection.send(data):
        epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)


def monotonic_seconds() -> float:
    """CLOCK_MONOTONIC, which all processes share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def process_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def buckets(latencies: array[float]) -> dict[int, int]:
    """How many of the latencies, in seconds, are in each logarithmic bucket."""
    counts: dict[int, int] = {}
    log = math.log
    for seconds in latencies:
        bucket = int(log(max(seconds, 1e-6) * 1e6) * BUCKETS_PER_E)
        counts[bucket] = counts.get(bucket, 0) + 1
    return counts


def added(counts: Iterable[dict[int, int]]) -> dict[int, int]:
    """All buckets together."""
    total: Counter[int] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def bucket_seconds(bucket: int) -> float:
    """The middle of a bucket."""
    return math.exp((bucket + 0.5) / BUCKETS_PER_E) / 1e6


def quantile(counts: dict[int, int], share: float) -> float:
    """The latency in seconds that ``share`` of the samples do not exceed; 0 if there are none."""
    total = sum(counts.values())
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= share * total:
            return bucket_seconds(bucket)
    return 0.0


def main() -> None:
    """Read a job, run it, write the report."""
    given = json.load(sys.stdin)
    job = Job(**{**given, "address": tuple(given["address"])})
    try:
        if job.cores:
            os.sched_setaffinity(0, job.cores)
        report = generate(job)
    except (LoadFailed, OSError) as error:
        print(f"load generator: {error}", file=sys.stderr)
        sys.exit(1)
    except StartedLate:
        sys.exit(STARTED_LATE)
    json.dump(asdict(report), sys.stdout)


if __name__ == "__main__":
    main()
