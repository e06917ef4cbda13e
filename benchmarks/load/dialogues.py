"""A load generator of dialogues, in which each request depends on the response before, as in transactions and POP.

A dialogue is a generator of requests, which gets the response to each. Many of them share a few connections: the opaque
is the number of the dialogue. Run as ``python -m benchmarks.load.dialogues``: a `DialogueJob` on standard input, a
`DialogueReport` on standard output.
"""

from __future__ import annotations

import itertools
import random
import select
import socket
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.load.do_job import do_job
from benchmarks.load.frames import (
    CONSUMERS,
    PRODUCERS,
    TOPIC,
    batch_ack,
    pop_ext,
    request_frame,
    responses,
    send_ext,
)
from benchmarks.load.report import monotonic_seconds, process_cpu_seconds
from benchmarks.wires.wire import LoadFailed
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.records import COMMITTED, PREPARED
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.pop import PopReply
from mq.protocol.requests.send import SENT_ID, SENT_QUEUE_OFFSET, SENT_UNIQUE_KEY
from mq.protocol.requests.transactions import EndTransactionExt
from mq.protocol.wire.reply import read_reply
from mq.protocol.wire.request import Ext

POP_COUNT = 32
_EMPTY = (ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT)


@dataclass(frozen=True, slots=True)
class DialogueJob:
    """A load of ``flows`` of one kind (a name in `FLOWS`) on a number of ``connections``.

    ``begin``: when the first window begins, on CLOCK_MONOTONIC. ``total``: the number of operations after which to end,
    0 for never. ``options`` are the flow's own.
    """

    address: tuple[str, int]
    kind: str
    connections: int
    flows: int
    begin: float
    window_seconds: float
    windows: int
    body_bytes: int = 128
    total: int = 0
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DialogueReport:
    """The operations in each window and in total, and the CPU seconds of the load generator."""

    done: list[int]
    total: int
    cpu_seconds: float
    seconds: float


class Request(NamedTuple):
    """A request that a flow sends to the broker."""

    code: int
    ext: Ext | None
    body: bytes = b""


Flow = Generator[Request, Response, None]
OnDone = Callable[[int], None]


def send_request(
    slot: int, number: int, body: bytes, queue_id: int, more: Mapping[str, str], sys_flag: int = 0
) -> Request:
    """Make a SEND_MESSAGE_V2 with a unique key, and with ``more`` properties by their names on the wire."""
    properties = {props.UNIQUE_KEY: f"7F000001{slot:08X}{number:016X}", props.WAIT: "true", **more}
    ext = send_ext(TOPIC, queue_id, props.encode(properties), sys_flag=sys_flag)
    return Request(RequestCode.SEND_MESSAGE_V2, ext, body)


def sends(job: DialogueJob, slot: int, on_done: OnDone) -> Flow:
    """Send plain messages."""
    body = bytes(job.body_bytes)
    for number in itertools.count():
        _check((yield send_request(slot, number, body, slot % 8, {})))
        on_done(1)


def timed_sends(job: DialogueJob, slot: int, on_done: OnDone) -> Flow:
    """Send messages to deliver between ``options["from_ms"]`` and ``options["to_ms"]``, in epoch milliseconds."""
    rng = random.Random(slot)
    low, high = job.options["from_ms"], job.options["to_ms"]
    body = bytes(job.body_bytes)
    for number in itertools.count():
        due = {props.TIMER_DELIVER_MS: str(rng.randrange(low, high))}
        _check((yield send_request(slot, number, body, slot % 8, due)))
        on_done(1)


def transactions(job: DialogueJob, slot: int, on_done: OnDone) -> Flow:
    """Send half messages, and commit each one as soon as it is stored."""
    body = bytes(job.body_bytes)
    half = {props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: PRODUCERS}
    for number in itertools.count():
        response = yield send_request(slot, number, body, slot % 8, half, PREPARED)
        _check(response)
        ext = EndTransactionExt(
            producer_group=PRODUCERS,
            topic=TOPIC,
            half_queue_offset=QueueOffset(int(response.ext[SENT_QUEUE_OFFSET])),
            half_physical_offset=parse_offset_message_id(response.ext[SENT_ID]).physical_offset,
            commit_or_rollback=COMMITTED,
            msg_id=response.ext[SENT_UNIQUE_KEY],
            transaction_id=response.ext[SENT_UNIQUE_KEY],
        )
        _check((yield Request(RequestCode.END_TRANSACTION, ext)))
        on_done(1)


def pops(job: DialogueJob, slot: int, on_done: OnDone) -> Flow:
    """Pop messages of one queue, and acknowledge them in batches."""
    while True:
        response = yield Request(RequestCode.POP_MESSAGE, pop_ext(CONSUMERS, slot % 8, POP_COUNT))
        if response.code in _EMPTY:
            continue
        _check(response)
        acks = batch_ack(CONSUMERS, read_reply(PopReply, response.ext))
        _check((yield Request(RequestCode.BATCH_ACK_MESSAGE, None, acks.encode())))
        on_done(sum(row.bits.bit_count() for row in acks.acks))


FLOWS: dict[str, Callable[[DialogueJob, int, OnDone], Flow]] = {
    "sends": sends,
    "timed": timed_sends,
    "transactions": transactions,
    "pops": pops,
}


def _check(response: Response) -> None:
    if response.code != ResponseCode.SUCCESS:
        raise LoadFailed(f"the broker answers {response.code}: {response.remark}")


class _DialogueConnection:
    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def responses(self) -> list[Response]:
        """The responses received."""
        chunk = self.sock.recv(1 << 20)
        if not chunk:
            raise LoadFailed(f"{self.sock.getpeername()} closed the connection")
        data = self.buffer + chunk
        pairs, end = responses(data)
        self.buffer = data[end:]
        return [header for header, _ in pairs]


def run(job: DialogueJob) -> DialogueReport:
    """Run all flows until the last window ends or the total is reached. Raises LoadFailed, OSError."""
    count = 0

    def count_done(more: int) -> None:
        nonlocal count
        count += more

    connections = [_DialogueConnection(job.address) for _ in range(job.connections)]
    poll = select.epoll()
    by_fd = {connection.sock.fileno(): connection for connection in connections}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    flows = {slot: FLOWS[job.kind](job, slot, count_done) for slot in range(1, job.flows + 1)}
    start = time.monotonic()
    for slot, flow in flows.items():
        connections[slot % job.connections].sock.sendall(_encode(slot, next(flow)))
    boundary, marks = job.begin, list[int]()
    while not job.total or count < job.total:
        now = monotonic_seconds()
        while now >= boundary and len(marks) <= job.windows:
            marks.append(count)
            boundary += job.window_seconds
        if not job.total and len(marks) > job.windows:
            break
        for fd, _ in poll.poll(max(0.0, boundary - now)):
            connection = by_fd[fd]
            requests = [_encode(each.opaque, flows[each.opaque].send(each)) for each in connection.responses()]
            connection.sock.sendall(b"".join(requests))
    return DialogueReport(
        done=[after - before for before, after in itertools.pairwise(marks)],
        total=count,
        cpu_seconds=process_cpu_seconds(),
        seconds=time.monotonic() - start,
    )


def _encode(opaque: int, request: Request) -> bytes:
    return request_frame(request.code, opaque, request.ext, request.body)


if __name__ == "__main__":
    do_job(DialogueJob, run, LoadFailed, OSError)
