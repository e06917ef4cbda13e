"""A load generator that keeps a fixed number of messages in flight on each connection, in one process.

It does as little as possible: raw non-blocking sockets under epoll, frames built before the start and resent unchanged,
responses split and matched in bulk (`benchmarks.wires`, one for each kind of server). Latency is from passing a frame
to `send` to the return of the `recv` with its response. Nothing is computed from the samples before the last window has
ended.

Run as ``python -m benchmarks.load.closed_loop``: a `Job` on standard input, a `Report` on standard output.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from array import array
from collections.abc import Hashable, Sequence

from benchmarks.load.do_job import do_job
from benchmarks.load.job import Job
from benchmarks.load.report import Recorder, Report, StartedLate, monotonic_seconds
from benchmarks.wires.amqp import AmqpWire
from benchmarks.wires.etcd import EtcdWire
from benchmarks.wires.kafka import KafkaWire
from benchmarks.wires.nats import NatsWire
from benchmarks.wires.rocketmq import RocketMQWire
from benchmarks.wires.wire import LoadFailed, Slots, Wire

WIRES: dict[str, type[Wire]] = {
    "rocketmq": RocketMQWire,
    "nats": NatsWire,
    "amqp": AmqpWire,
    "etcd": EtcdWire,
    "kafka": KafkaWire,
}

RECEIVE_BUFFER = memoryview(bytearray(256 * 1024))
"""Shared by all connections: a fresh buffer of this size for each `recv` costs more than handling one response."""


class Connection:
    __slots__ = ("buffer", "fd", "send_times", "sock", "unsent", "wire")

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
        self.send_times: dict[Hashable, float] = {}
        self.buffer = b""
        self.unsent: memoryview | None = None

    def send(self, data: bytes | memoryview) -> bool:
        """Send bytes. Returns False if the kernel did not take all; the rest is then in ``unsent``."""
        try:
            count = self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            count = 0
        if count == len(data):
            self.unsent = None
            return True
        self.unsent = memoryview(data)[count:]
        return False

    def send_later(self, data: bytes) -> None:
        """Append bytes to those that the kernel has not taken yet."""
        assert self.unsent is not None, "the socket has room"
        self.unsent = memoryview(bytes(self.unsent) + data)

    def receive(self, samples: array[float]) -> Sequence[Hashable]:
        """Read responses, and add their latencies to ``samples``. Returns the answered requests. Raises LoadFailed."""
        try:
            size = self.sock.recv_into(RECEIVE_BUFFER)
        except ssl.SSLWantReadError:
            return ()  # an incomplete record
        now = monotonic_seconds()
        if not size:
            raise LoadFailed(f"{self.sock.getpeername()} closed the connection")
        chunk = bytes(RECEIVE_BUFFER[:size])
        data = self.buffer + chunk if self.buffer else chunk
        keys, end = self.wire.read_responses(data)
        self.buffer = data[end:]
        send_times = self.send_times
        samples.extend([now - send_times.pop(key) for key in keys])
        return keys


def generate(job: Job) -> Report:
    """Keep the messages in flight until the last window ends. Raises LoadFailed, StartedLate, OSError."""
    if job.cores:
        os.sched_setaffinity(0, job.cores)
    epoll = select.epoll()
    connections = {c.fd: c for c in (Connection(job, number) for number in range(job.connections))}
    for connection in connections.values():
        epoll.register(connection.fd, select.EPOLLIN)
        keys, data = connection.wire.initial()
        connection.send_times = dict.fromkeys(keys, monotonic_seconds())
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


def _send_again(connection: Connection, keys: Sequence[Hashable], epoll: select.epoll) -> None:
    next_keys, data = connection.wire.repeat(keys)
    # The latency of a request that must wait for room in the socket also begins here.
    connection.send_times.update(dict.fromkeys(next_keys, monotonic_seconds()))
    if not data:
        return
    if connection.unsent is not None:
        connection.send_later(data)
    elif not connection.send(data):
        epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)


if __name__ == "__main__":
    do_job(Job, generate, LoadFailed, OSError)
