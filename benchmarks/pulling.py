"""Measures what pulls cost a broker: one consumer sends many pulls at once, and messages are in the page cache.

    python -m benchmarks.pulling [--seconds 3] [--messages 100000]

starts a group of one replica, fills a topic, and prints for each case the messages that the broker serves per second,
and its CPU time per response. Other measurements use `pull`: it pulls from one address and counts.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import socket
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from benchmarks.load.frames import QUEUES, TOPIC, complete_bytes, pull_frame, send_frame
from mq.client import Admin
from mq.local_cluster import DevCluster, Ports
from mq.monitoring.cpu_time import cpu_seconds

_CODES = re.compile(rb'"code":(-?\d+),"extFields":\{"maxOffset"')
_RECEIVE_BYTES = 4 * 1024 * 1024
_SENDS_IN_FLIGHT = 256
_LENGTHS = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class PullRate:
    """The messages received in ``seconds``. ``cpu_seconds``: of the server's process."""

    answers: int
    messages: int
    nbytes: int
    seconds: float
    cpu_seconds: float

    @property
    def cpu_us(self) -> float:
        """The CPU time of the server per response, in microseconds."""
        return self.cpu_seconds / max(self.answers, 1) * 1e6


def pull(
    address: tuple[str, int], frames: Iterable[bytes], *, count: int, in_flight: int, seconds: float, pid: int
) -> PullRate:
    """Send ``frames``, an endless iterator, on one connection for some seconds, ``in_flight`` of them at a time.

    Each response stands for ``count`` messages; a response with another code than 0 is an error. Blocks.
    """
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        next_frames = iter(frames)
        sock.sendall(b"".join(itertools.islice(next_frames, in_flight)))
        buffer = memoryview(bytearray(_RECEIVE_BYTES))
        length = response_count = nbytes = 0
        cpu, begin = cpu_seconds(pid), time.monotonic()
        # A window without any response has no rate: it continues until there is one.
        while (now := time.monotonic()) < begin + seconds or not response_count:
            size = sock.recv_into(buffer[length:])
            if not size:
                raise ConnectionError(f"{address} closed the connection")
            length += size
            nbytes += size
            complete, end = complete_bytes(buffer[:length])
            if complete:
                if response_count == 0:
                    _check(bytes(buffer[:512]))
                sock.sendall(b"".join(itertools.islice(next_frames, complete)))
                response_count += complete
                buffer[: length - end] = bytes(buffer[end:length])
                length -= end
        return PullRate(response_count, response_count * count, nbytes, now - begin, cpu_seconds(pid) - cpu)


def _check(response: bytes) -> None:
    match = _CODES.search(response)
    if match is None or match[1] != b"0":
        raise ConnectionError(f"the broker answers {response[8:400]!r}")


def fill(address: tuple[str, int], messages: int, body_bytes: int, queues: int = QUEUES) -> None:
    """Send ``messages`` messages to the benchmark's topic, round robin over its queues. Blocks."""
    fill_with(address, messages, [send_frame(number + 1, body_bytes, number % queues) for number in range(queues)])


def fill_with(address: tuple[str, int], messages: int, frames: Sequence[bytes]) -> None:
    """Send the frames in turn, again and again, until ``messages`` are acknowledged. Blocks."""
    with socket.create_connection(address) as sock:
        buffer, send_count, ack_count = b"", 0, 0
        while ack_count < messages:
            more = min(_SENDS_IN_FLIGHT - (send_count - ack_count), messages - send_count)
            if more:
                sock.sendall(b"".join(frames[(send_count + number) % len(frames)] for number in range(more)))
                send_count += more
            buffer += sock.recv(256 * 1024)
            complete, end = complete_bytes(buffer)
            buffer = buffer[end:]
            ack_count += complete


def receive_frame(sock: socket.socket) -> bytes:
    """Receive the next frame, and return it without its length. Blocks. Raises ConnectionError."""
    data = bytearray()
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = sock.recv(_RECEIVE_BYTES)
        if not more:
            raise ConnectionError(f"{sock.getpeername()} closed the connection")
        data += more
    return bytes(data[4:])


def sequential(messages: int, count: int, expression: str = "*", kind: str = "TAG") -> list[bytes]:
    """Return pulls that read the first queue from its begin to its end."""
    offsets = range(0, messages - count + 1, count)
    return [pull_frame(opaque, 0, offset, count, expression, kind) for opaque, offset in enumerate(offsets, 1)]


def walk(messages: int, step: int, queues: Sequence[int], *, count: int = 32) -> Iterator[bytes]:
    """Yield pulls of one queue after the other, round robin, without an end. Each queue has ``messages`` messages.

    Each requests ``count`` messages, and should get ``step`` of them.
    """
    opaque, offset = 987654321, 123456789
    templates: list[bytes] = []
    for queue_id in queues:
        frame = pull_frame(opaque, queue_id, offset, count).replace(b"%", b"%%")
        templates.append(frame[8:].replace(b"%d" % offset, b"%d").replace(b"%d" % opaque, b"%d"))
    number = 0
    while True:
        for offset in range(0, messages - step + 1, step):
            for template in templates:
                number += 1
                header = template % (offset, number)
                yield _LENGTHS.pack(4 + len(header), len(header)) + header


def scattered_pulls(messages: int, pulls: int = 5000) -> list[bytes]:
    """Return pulls of single messages at random places of all queues."""
    rng = random.Random(1)
    return [
        pull_frame(opaque, rng.randrange(QUEUES), rng.randrange(messages // QUEUES), 1) for opaque in range(1, pulls)
    ]


def cases(messages: int) -> Iterator[tuple[str, int, int, list[bytes], int]]:
    """Yield the cases: name, body size, queues, pulls, messages per pull."""
    yield "32 x 1 KiB, one queue", 1024, 1, sequential(messages, 32), 32
    yield "32 x 1 KiB, one of 8 queues", 1024, QUEUES, sequential(messages // QUEUES, 32), 32
    yield "the same by a tag", 1024, QUEUES, sequential(messages // QUEUES, 32, "TagA || TagB"), 32
    expression = "TAGS = 'TagA' AND n IS NULL"
    yield "the same by SQL92", 1024, QUEUES, sequential(messages // QUEUES, 32, expression, "SQL92"), 32
    yield "4 KiB anywhere", 4096, QUEUES, scattered_pulls(messages), 1


async def run(messages: int, seconds: float) -> None:
    """Measure all cases and print them."""
    for name, body_bytes, queues, frames, count in cases(messages):
        with tempfile.TemporaryDirectory() as directory:
            ports = Ports.free(1)
            async with DevCluster.open(Path(directory), nodes=1, ports=ports) as cluster:
                host, _, port = cluster.address("n0").rpartition(":")
                address, pid = (host, int(port)), cluster.pid("n0")
                async with Admin(cluster.namesrv) as admin:
                    await admin.create_topic(TOPIC, queues=QUEUES)
                await trio.to_thread.run_sync(fill, address, messages, body_bytes, queues)
                for in_flight in (1, 16):
                    pull_once = partial(
                        pull,
                        address,
                        itertools.cycle(frames),
                        count=count,
                        in_flight=in_flight,
                        seconds=seconds,
                        pid=pid,
                    )
                    result = await trio.to_thread.run_sync(pull_once)
                    print(
                        f"{name:28} {in_flight:2} in flight: {result.messages / result.seconds:9,.0f} msgs/s, "
                        f"{result.nbytes / result.seconds / 2**20:7,.0f} MiB/s, {result.cpu_us:6.1f} us CPU an answer"
                    )


def main() -> None:
    """Read the command line, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000, help="in the topic")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    plan = parser.parse_args()
    trio.run(run, plan.messages, plan.seconds)


if __name__ == "__main__":
    main()
