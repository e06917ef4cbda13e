"""Load that consists of dialogues: send a half message, end its transaction; pop messages, acknowledge them.

A *flow* is a generator: it yields a request, is sent the response, and so on for ever; many of them share a few
connections. As in `benchmarks.load` there are raw sockets under epoll, but responses are decoded, since the next
request depends on them.

Run as ``python -m benchmarks.dialogues``: one JSON object on standard input (`Job`), one on standard output (`Report`).
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import resource
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import msgspec

from benchmarks.frames import TOPIC

GROUP = "bench_producers"
CONSUMERS = "bench_consumers"
BROKER = "broker-a"
POP_COUNT = 32
INVISIBLE_MS = 60_000
_COMMIT = 8
_PREPARED = 4
_FOUND, _EMPTY = 0, (19, 209, 210)
_LENGTHS = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class Job:
    """``flows`` of one kind (a name in `FLOWS`) on so many ``connections``.

    ``begin``: when the first window begins, on CLOCK_MONOTONIC. ``total``: end after so many operations, 0 for never.
    ``options`` are the flow's own.
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
class Report:
    """The operations in each window, and in total, and the CPU seconds of this process."""

    done: list[int]
    total: int
    cpu_seconds: float
    seconds: float


class Answer(NamedTuple):
    """A broker's response."""

    code: int
    ext: dict[str, str]
    body: bytes
    remark: str


class FlowFailed(Exception):
    """The broker refused a request of a flow, or closed a connection."""


class Request(NamedTuple):
    """A request of a flow."""

    code: int
    ext: dict[str, str]
    body: bytes = b""


Flow = Generator[Request, Answer, None]
Done = Callable[[int], None]


class _Header(msgspec.Struct):
    code: int
    opaque: int
    remark: str | None = None
    ext: dict[str, str] | None = msgspec.field(default=None, name="extFields")


def send_request(
    slot: int, number: int, body: bytes, queue_id: int, properties: str = "", sys_flag: int = 0
) -> Request:
    """A SEND_MESSAGE_V2 with its own unique key."""
    properties = f"UNIQ_KEY\x017F000001{slot:08X}{number:016X}\x02WAIT\x01true\x02{properties}"
    ext = {"a": GROUP, "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue_id), "f": str(sys_flag)}
    ext |= {"g": "1700000000000", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}
    return Request(310, ext, body)


def sends(job: Job, slot: int, done: Done) -> Flow:
    """Plain messages."""
    body = bytes(job.body_bytes)
    for number in itertools.count():
        _check((yield send_request(slot, number, body, slot % 8)))
        done(1)


def timed(job: Job, slot: int, done: Done) -> Flow:
    """Messages for a time between ``options["from_ms"]`` and ``options["to_ms"]``, epoch milliseconds."""
    rng = random.Random(slot)
    low, high = job.options["from_ms"], job.options["to_ms"]
    body = bytes(job.body_bytes)
    for number in itertools.count():
        due = rng.randrange(low, high)
        _check((yield send_request(slot, number, body, slot % 8, f"TIMER_DELIVER_MS\x01{due}\x02")))
        done(1)


def transactions(job: Job, slot: int, done: Done) -> Flow:
    """Half messages, each committed as soon as it is stored."""
    body = bytes(job.body_bytes)
    half = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
    for number in itertools.count():
        answer = yield send_request(slot, number, body, slot % 8, half, _PREPARED)
        _check(answer)
        ext = {
            "producerGroup": GROUP,
            "topic": TOPIC,
            "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": str(int(answer.ext["msgId"][-16:], 16)),
            "commitOrRollback": str(_COMMIT),
            "fromTransactionCheck": "false",
            "msgId": answer.ext["transactionId"],
            "transactionId": answer.ext["transactionId"],
        }
        _check((yield Request(37, ext)))
        done(1)


def pops(job: Job, slot: int, done: Done) -> Flow:
    """Messages of one queue, popped and acknowledged in batches."""
    queue_id = slot % 8
    while True:
        ext = {"consumerGroup": CONSUMERS, "topic": TOPIC, "queueId": str(queue_id), "maxMsgNums": str(POP_COUNT)}
        ext |= {"invisibleTime": str(INVISIBLE_MS), "pollTime": "15000", "bornTime": str(time.time_ns() // 10**6)}
        ext |= {"initMode": "0", "expType": "TAG", "exp": "*", "order": "false"}
        answer = yield Request(200050, ext)
        if answer.code in _EMPTY:
            continue
        _check(answer)
        acks = []
        count = 0
        starts = {tuple(each.split(" ")[:2]): int(each.split(" ")[2]) for each in _listed(answer, "startOffsetInfo")}
        for each in _listed(answer, "msgOffsetInfo"):
            mark, queue, offsets = each.split(" ")
            start = starts[mark, queue]
            bits = 0
            for offset in offsets.split(","):
                bits |= 1 << int(offset) - start
                count += 1
            ack = {
                "c": CONSUMERS,
                "t": TOPIC,
                "r": mark,
                "so": start,
                "q": int(queue),
                "rq": int(answer.ext["reviveQid"]),
            }
            encoded = base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode()
            ack |= {"pt": int(answer.ext["popTime"]), "it": int(answer.ext["invisibleTime"]), "b": encoded}
            acks.append(ack)
        _check((yield Request(200151, {}, json.dumps({"brokerName": BROKER, "acks": acks}).encode())))
        done(count)


FLOWS: dict[str, Callable[[Job, int, Done], Flow]] = {
    "sends": sends,
    "timed": timed,
    "transactions": transactions,
    "pops": pops,
}


def _listed(answer: Answer, name: str) -> list[str]:
    return [each for each in answer.ext[name].split(";") if each]


def _check(answer: Answer) -> None:
    if answer.code != _FOUND:
        raise FlowFailed(f"the broker answers {answer.code}: {answer.remark}")


def encode_request(opaque: int, request: Request) -> bytes:
    """The whole frame."""
    header = {"code": request.code, "extFields": request.ext, "flag": 0, "language": "JAVA", "opaque": opaque}
    encoded = msgspec.json.encode(header | {"serializeTypeCurrentRPC": "JSON", "version": 479})
    return _LENGTHS.pack(4 + len(encoded) + len(request.body), len(encoded)) + encoded + request.body


class _Connection:
    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""

    def answers(self) -> list[tuple[int, Answer]]:
        """The responses received, by opaque."""
        chunk = self.sock.recv(1 << 20)
        if not chunk:
            raise FlowFailed(f"{self.sock.getpeername()} closed the connection")
        data = self.received + chunk
        found: list[tuple[int, Answer]] = []
        at = 0
        while at + 8 <= len(data):
            total, header_bytes = _LENGTHS.unpack_from(data, at)
            if at + 4 + total > len(data):
                break
            header_bytes &= 0xFFFFFF
            head = _decode(data[at + 8 : at + 8 + header_bytes])
            body = data[at + 8 + header_bytes : at + 4 + total]
            found.append((head.opaque, Answer(head.code, head.ext or {}, body, head.remark or "")))
            at += 4 + total
        self.received = data[at:]
        return found


_decode = msgspec.json.Decoder(_Header).decode


def run(job: Job) -> Report:
    """Run all flows until the last window ends or the total is reached. Raises FlowFailed, OSError."""
    count = 0

    def done(more: int) -> None:
        nonlocal count
        count += more

    connections = [_Connection(job.address) for _ in range(job.connections)]
    poll = select.epoll()
    by_fd = {connection.sock.fileno(): connection for connection in connections}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    flows = {slot: FLOWS[job.kind](job, slot, done) for slot in range(1, job.flows + 1)}
    started = time.monotonic()
    for slot, flow in flows.items():
        connections[slot % job.connections].sock.sendall(encode_request(slot, next(flow)))
    boundary, marks = job.begin, list[int]()
    while not job.total or count < job.total:
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        while now >= boundary and len(marks) <= job.windows:
            marks.append(count)
            boundary += job.window_seconds
        if not job.total and len(marks) > job.windows:
            break
        for fd, _ in poll.poll(max(0.0, boundary - now)):
            connection = by_fd[fd]
            requests = [encode_request(opaque, flows[opaque].send(answer)) for opaque, answer in connection.answers()]
            connection.sock.sendall(b"".join(requests))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Report(
        done=[after - before for before, after in itertools.pairwise(marks)],
        total=count,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        seconds=time.monotonic() - started,
    )


def main() -> None:
    """Read a job, run it, write the report."""
    given = json.load(sys.stdin)
    job = Job(**{**given, "address": tuple(given["address"])})
    try:
        report = run(job)
    except (FlowFailed, OSError) as error:
        print(f"flows: {error}", file=sys.stderr)
        sys.exit(1)
    json.dump(asdict(report), sys.stdout)


if __name__ == "__main__":
    main()
