"""A load generator of consumers and their messages, in the protocol of any server, with raw sockets.

Messages carry the time at which they were due. The same process sends and receives, so that both use one clock and no
other process has to wake up. Run as ``python -m benchmarks.peers.consuming.load``: a `ConsumerJob` on standard input, a
`ConsumerResult` on standard output, both as JSON.
"""

from __future__ import annotations

import select
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

from benchmarks.load.closed_loop import RECEIVE_BUFFER, WIRES
from benchmarks.load.do_job import do_job
from benchmarks.load.report import buckets, monotonic_seconds, process_cpu_seconds
from benchmarks.peers.consuming.job import DRAIN, FILL, PACE, ConsumerJob, ConsumerResult
from benchmarks.wires.amqp_consumer import FAN_OUT, AmqpConsumer
from benchmarks.wires.consumer import DUE, ConsumerWire, DueSlots, Share, stamp
from benchmarks.wires.kafka import KafkaWire
from benchmarks.wires.kafka_consumer import KafkaConsumer
from benchmarks.wires.nats_consumer import NatsConsumer
from benchmarks.wires.rocketmq_consumers import RocketMQPop, RocketMQPull
from benchmarks.wires.wire import LoadFailed
from mq.monitoring.cpu_time import cpu_seconds

BY_POSITION: dict[str, Callable[[Share], ConsumerWire]] = {
    "rocketmq": RocketMQPull,
    "nats": NatsConsumer,
    "amqp": AmqpConsumer,
    "kafka": KafkaConsumer,
}
BY_MESSAGE: dict[str, Callable[[Share], ConsumerWire]] = {
    "rocketmq": RocketMQPop,
    "nats": NatsConsumer,
    "amqp": AmqpConsumer,
}
"""Kafka's groups have positions; its share groups are not measured."""

FILL_CONNECTIONS, FILL_IN_FLIGHT = 4, 128
IN_FLIGHT_MAX = 1024
"""Messages of a pace that are not acknowledged; the next one waits for an answer."""
CONFIRM_SECONDS = 0.3
"""Seconds from a drain's last confirmations to the end of its connections: servers skip bytes before an end."""
LAST_SECONDS = 5.0
"""Seconds that messages of a pace may take to arrive after the last one was due."""


class _Socket:
    """A connection that does not block; bytes that the kernel does not take are kept."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.unsent = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, data: bytes) -> None:
        """Send as many bytes as the kernel takes now; `flush` sends the others."""
        self.unsent += data
        self.flush()

    def flush(self) -> None:
        """Send unsent bytes, as far as there is room."""
        if self.unsent:
            try:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
            except BlockingIOError:
                pass

    def send_rest(self) -> None:
        """Wait until the kernel has taken all bytes."""
        self.sock.setblocking(True)
        self.sock.sendall(self.unsent)

    def receive(self) -> bytes:
        """Receive bytes; returns all that have not been read. Raises LoadFailed when the server has hung up."""
        size = self.sock.recv_into(RECEIVE_BUFFER)
        if not size:
            raise LoadFailed("the server closed the connection")
        chunk = bytes(RECEIVE_BUFFER[:size])
        return self.buffer + chunk if self.buffer else chunk


class _SlotSender(_Socket):
    """Sends messages of one slot after the other."""

    def __init__(self, job: ConsumerJob, number: int, in_flight: int) -> None:
        super().__init__(job.address)
        exchange = FAN_OUT if job.kind == PACE and job.wire == "amqp" else ""
        first = 1 + number * in_flight
        self.wire = WIRES[job.wire](DueSlots(first, in_flight, job.body_bytes, exchange=exchange))
        self.wire.open(self.sock)
        self.sock.setblocking(False)
        self.free: deque[Hashable] = deque(self.wire.idle())

    def send_due(self, due: float) -> None:
        """Send a message; there must be a free slot."""
        slot = self.free.popleft()
        if isinstance(self.wire, KafkaWire):  # a checksum protects the body, so it is stamped first
            assert isinstance(slot, int), "its keys are the numbers of slots"
            self.send(self.wire.repeat_due(slot, partial(stamp, due=due)))
        else:
            self.send(stamp(self.wire.repeat((slot,))[1], due))

    def read_responses(self) -> Sequence[Hashable]:
        """The slots of acknowledged messages. Raises LoadFailed."""
        data = self.receive()
        keys, end = self.wire.read_responses(data)
        self.buffer = data[end:]
        return keys


class _SlotConsumer(_Socket):
    def __init__(self, job: ConsumerJob, share: Share) -> None:
        super().__init__(job.address)
        self.wire = (BY_MESSAGE if share.confirms_each else BY_POSITION)[job.wire](share)
        self.wire.open(self.sock)
        self.sock.setblocking(False)

    def take(self) -> list[bytes]:
        """Read an answer, confirm its messages, and ask for more; returns their due times. Raises LoadFailed."""
        data = self.receive()
        end, output = self.wire.take(data)
        self.buffer = data[end:]
        self.send(output)
        if isinstance(self.wire, KafkaConsumer):
            return self.wire.due(data, end)
        return DUE.findall(data, 0, end) if end else []


S = TypeVar("S", bound=_Socket)


def generate(job: ConsumerJob) -> ConsumerResult:
    """Do the job. Raises LoadFailed, OSError."""
    return {FILL: _fill, DRAIN: _drain, PACE: _pace}[job.kind](job)


def _fill(job: ConsumerJob) -> ConsumerResult:
    senders = [_SlotSender(job, number, FILL_IN_FLIGHT) for number in range(FILL_CONNECTIONS)]
    meters, send_count, ack_count = _Meters(job), 0, 0
    for sender in senders:
        send_count += _more(sender, list(sender.free), job.messages - send_count)
    while ack_count < job.messages:
        for sender in _ready(senders, meters.end - monotonic_seconds()):
            keys = sender.read_responses()
            ack_count += len(keys)
            send_count += _more(sender, keys, job.messages - send_count)
        if monotonic_seconds() > meters.end:
            raise LoadFailed(f"{ack_count:,} of {job.messages:,} messages were sent in {job.limit_seconds:g} s")
    return meters.read(job.messages)


def _more(sender: _SlotSender, keys: Sequence[Hashable], most: int) -> int:
    batch = keys[:most]
    sender.send(sender.wire.repeat(batch)[1])
    return len(batch)


def _drain(job: ConsumerJob) -> ConsumerResult:
    shares = [
        Share(
            job.group,
            number,
            job.consumers,
            confirms_each=job.confirms_each,
            joins=job.joins,
            pulled_max=job.pulled_max,
        )
        for number in range(job.consumers)
    ]
    consumers = [_SlotConsumer(job, share) for share in shares]
    meters, count = _Meters(job), 0
    for consumer in consumers:
        consumer.send(consumer.wire.initial())
    while count < job.messages:
        for consumer in _ready(consumers, meters.end - monotonic_seconds()):
            count += len(consumer.take())
        if monotonic_seconds() > meters.end:
            raise LoadFailed(f"{count:,} of {job.messages:,} messages came within {job.limit_seconds:g} s")
    result = meters.read(count)
    for consumer in consumers:
        consumer.send_rest()
    time.sleep(CONFIRM_SECONDS)
    return result


def _pace(job: ConsumerJob) -> ConsumerResult:
    fan_out = job.wire == "amqp"
    shares = [
        Share(f"{job.group}-{number}", is_late=True, fan_out=fan_out, confirms_each=job.confirms_each)
        for number in range(job.groups)
    ]
    consumers = [_SlotConsumer(job, share) for share in shares]
    for consumer in consumers:
        consumer.send(consumer.wire.initial())
    sender = _SlotSender(job, 0, IN_FLIGHT_MAX)
    begin = monotonic_seconds() + job.warm_up
    end = begin + job.seconds
    begin_ns, end_ns = round(begin * 1e9), round(end * 1e9)
    due, interval = begin - job.warm_up + 0.1, 1 / job.rate
    samples, due_count = array("d"), 0
    meters: _Meters | None = None
    result: ConsumerResult | None = None
    sockets: list[_SlotSender | _SlotConsumer] = [sender, *consumers]
    while True:
        now = monotonic_seconds()
        if meters is None and now >= begin:
            meters = _Meters(job)
        if result is None and now >= end:
            assert meters is not None, "a second begins before it ends"
            result = meters.read(0)
        if result is not None and (len(samples) >= due_count or now >= end + LAST_SECONDS):
            return ConsumerResult(
                len(samples),
                result.seconds,
                result.server_seconds,
                result.client_seconds,
                buckets(samples),
                due_count - len(samples),
            )
        if due < end and now >= due and sender.free:
            sender.send_due(due)
            due_count += job.groups * (begin_ns <= round(due * 1e9) < end_ns)
            due += interval
            continue
        wait = (due if due < end and sender.free else end if result is None else end + LAST_SECONDS) - now
        for ready in _ready(sockets, min(wait, begin - now) if meters is None else wait):
            if isinstance(ready, _SlotSender):
                ready.free += ready.read_responses()
                ready.send(ready.wire.repeat(())[1])
            else:
                times = ready.take()
                now = monotonic_seconds()
                samples.extend([now - at / 1e9 for each in times if begin_ns <= (at := int(each)) < end_ns])


def _ready(sockets: Sequence[S], wait: float) -> list[S]:
    """Return the sockets that have something to read, within ``wait`` seconds; sends unsent bytes of all."""
    unsent = [each for each in sockets if each.unsent]
    readable, writable, _ = select.select(sockets, unsent, (), max(0.0, wait))
    for each in writable:
        each.flush()
    return readable


class _Meters:
    """Measures time and CPU since it was made."""

    def __init__(self, job: ConsumerJob) -> None:
        self._pids = job.pids
        self._begin, self._servers, self._own = monotonic_seconds(), self._server_seconds(), process_cpu_seconds()
        self.end = self._begin + job.limit_seconds

    def _server_seconds(self) -> float:
        return sum(map(cpu_seconds, self._pids))

    def read(self, messages: int) -> ConsumerResult:
        """The figures since the start, for ``messages`` messages."""
        servers = self._server_seconds() - self._servers
        return ConsumerResult(messages, monotonic_seconds() - self._begin, servers, process_cpu_seconds() - self._own)


if __name__ == "__main__":
    do_job(ConsumerJob, generate, LoadFailed, OSError)
