"""Sends messages at a steady rate to one queue per consumer, and keeps one long poll open on each queue.

Raw sockets in one process: a connection for all sends, and one for each consumer, which has sent a heartbeat as a
member of a group. Latency is from the time at which a message was due to the return of the receive call that brought it
to its consumer. ``python -m benchmarks.curves.polling`` reads one JSON object from standard input (`PollingJob`) and
writes one to standard output (`benchmarks.load.report.Report`).
"""

from __future__ import annotations

import itertools
import resource
import select
import socket
import struct
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.load.do_job import do_job
from benchmarks.load.frames import heartbeat_frame, pull_frame, responses, send_frame
from benchmarks.load.report import Report, buckets
from benchmarks.wires.wire import LoadFailed
from mq.protocol.codes import ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.pull import PullReply
from mq.protocol.wire.reply import read_reply

PULLED_MAX = 32
TICK_SECONDS = 0.005
_PULL_OPAQUE, _HEARTBEAT_OPAQUE = 1, 2
_NOTHING_NEW = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
_DUE = struct.Struct(">d")
_BODY_AT = 88
"""The position of a stored record's body, behind IPv4 hosts."""


@dataclass(frozen=True, slots=True)
class PollingJob:
    """A load of ``rate`` messages a second in total, round robin over a new topic's queues: one for each consumer."""

    address: tuple[str, int]
    topic: str
    consumers: int
    rate: float
    body_bytes: int
    begin: float
    window_seconds: float
    windows: int

    def at(self, begin: float) -> PollingJob:
        """Return the job with another begin."""
        return replace(self, begin=begin)


class _PollingConsumer:
    """One consumer with one pull in flight."""

    def __init__(self, job: PollingJob, queue_id: int) -> None:
        self.sock = socket.create_connection(job.address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._topic, self._queue_id, self._buffer = job.topic, queue_id, b""
        self.sock.sendall(heartbeat_frame(_HEARTBEAT_OPAQUE, f"consumer@{queue_id}", consumes=job.topic))
        self._pull(0)

    def _pull(self, offset: int) -> None:
        self.sock.sendall(pull_frame(_PULL_OPAQUE, self._queue_id, offset, PULLED_MAX, topic=self._topic, waits=True))

    def receive(self) -> Iterator[float]:
        """Take an answer and pull again; yields the time at which each arrived message was due. Raises LoadFailed."""
        chunk = self.sock.recv(256 * 1024)
        if not chunk:
            raise LoadFailed(f"the connection of the consumer of queue {self._queue_id} was closed")
        self._buffer += chunk
        response_list, end = responses(self._buffer)
        self._buffer = self._buffer[end:]
        for header, records in response_list:
            if header.opaque == _PULL_OPAQUE:  # else it answers the heartbeat
                yield from self._on_pull(header, records)

    def _on_pull(self, header: Response, records: memoryview) -> Iterator[float]:
        if header.code not in (ResponseCode.SUCCESS, *_NOTHING_NEW):
            raise LoadFailed(f"a pull was answered with code {header.code}: {header.remark}")
        self._pull(read_reply(PullReply, header.ext).next_begin_offset)
        if header.code == ResponseCode.SUCCESS:
            yield from due_times(records)


def due_times(records: bytes | memoryview) -> Iterator[float]:
    at = 0
    while at < len(records):
        yield _DUE.unpack_from(records, at + _BODY_AT)[0]
        at += struct.unpack_from(">i", records, at)[0]


class _DueSender:
    """Sends due messages, and discards the answers."""

    def __init__(self, job: PollingJob) -> None:
        self.sock = socket.create_connection(job.address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frames = [send_frame(1, job.body_bytes, queue, topic=job.topic) for queue in range(job.consumers)]
        self._heads = [frame[: -job.body_bytes] for frame in frames]
        self._rest = bytes(job.body_bytes - _DUE.size)
        self._interval = 1 / job.rate
        self._next_at, self._number = time.monotonic(), 0

    def send_due(self) -> None:
        """Send all messages that are due by now."""
        now, parts = time.monotonic(), list[bytes]()
        while self._next_at <= now:
            parts += (self._heads[self._number % len(self._heads)], _DUE.pack(self._next_at), self._rest)
            self._next_at += self._interval
            self._number += 1
        if parts:
            self.sock.sendall(b"".join(parts))


def generate(job: PollingJob) -> Report:
    """Send and receive until the last window ends. Raises LoadFailed, OSError."""
    consumers = {each.sock.fileno(): each for each in (_PollingConsumer(job, n) for n in range(job.consumers))}
    epoll = select.epoll()
    for fd in consumers:
        epoll.register(fd, select.EPOLLIN)
    sender = _DueSender(job)
    epoll.register(sender.sock.fileno(), select.EPOLLIN)
    windows = [array("d") for _ in range(job.windows)]
    unused_samples = array("d")
    marks, window, boundary = list[float](), -1, job.begin
    samples = unused_samples
    while True:
        for fd, _ in epoll.poll(TICK_SECONDS):
            if fd in consumers:
                due_times = list(consumers[fd].receive())
                now = time.monotonic()
                samples.extend([now - due for due in due_times])
            else:
                sender.sock.recv(256 * 1024)
        sender.send_due()
        while time.monotonic() >= boundary:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            marks.append(usage.ru_utime + usage.ru_stime)
            window += 1
            if window == job.windows:
                return Report(
                    messages=[len(each) for each in windows],
                    cpu_seconds=[end - start for start, end in itertools.pairwise(marks)],
                    latencies=[buckets(each) for each in windows],
                )
            samples = windows[window]
            boundary += job.window_seconds


if __name__ == "__main__":
    do_job(PollingJob, generate, LoadFailed, OSError)
