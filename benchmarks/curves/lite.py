"""Measures the cost of a send to one of many lite topics, and the memory and disk that an idle one takes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from benchmarks.curves.group_load import Arguments, Note, Shape, measure
from benchmarks.curves.sample import Curve
from benchmarks.load.frames import CODE, QUEUES, TOPIC, complete_bytes, lite_name, send_frame
from benchmarks.load.generators import GeneratorFailed
from mq.client import Admin, ClientError
from mq.local_cluster import HOST, DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE
from mq.protocol.requests.lite_attributes import LITE as OF_LITE_TOPICS

BODY_BYTES = 128
COUNTS = (10, 1_000, 10_000, 100_000, 1_000_000)
FILL_SECONDS_MAX = 200.0
LITE = Curve(
    "lite",
    "Lite topics",
    "lite topics",
    f"{BODY_BYTES} B, 4x250 to as many of the lite topics; each of the others has one message; one replica",
    each="a lite topic with one message",
)
_IN_FLIGHT = 2000
_CHUNK = 500
_REST_SECONDS = 6.0
"""After filling: a checkpoint is written."""
PAIRS = 8


async def lite_topics(args: Arguments, directory: Path, note: Note) -> None:
    """Measure with more and more lite topics in one topic, as many as can be filled in time."""
    counts = (10, 1000) if args.quick else COUNTS
    async with DevCluster.open(directory, nodes=1, ports=Ports.free(1), settings=ANY_DISK) as cluster:
        await _create_topic(cluster)
        address, there, seconds_each = (HOST, cluster.port("n0")), 0, 0.0
        for count in counts:
            if seconds_each * (count - there) > FILL_SECONDS_MAX:
                return
            began = trio.current_time()
            await trio.to_thread.run_sync(partial(_fill, address, range(there, count)))
            seconds_each = (trio.current_time() - began) / (count - there)
            there = count
            await trio.sleep(1.0 if args.quick else _REST_SECONDS)
            shape = Shape(in_flight=250, body_bytes=BODY_BYTES, lite_topics=count)
            point = await measure([cluster], shape, args, f"{count:,}")
            pairs = PAIRS if count == counts[-1] else 0
            times = [await _times(cluster, shape, counts[0], args) for _ in range(pairs)]
            note(replace(point, state_mib=_state_bytes(directory / "n0") / 2**20, times_first=times))


async def _times(cluster: DevCluster, shape: Shape, few: int, args: Arguments) -> float:
    """The leader's CPU for a message to one of all lite topics, divided by that for a message to one of a few.

    One window each, one right after the other: the speed of the machine changes more from minute to minute than this.
    """
    short = copy(args)
    short.windows = 1
    costs = [
        (await measure([cluster], replace(shape, lite_topics=count), short, str(count))).windows[0].leader_us
        for count in (few, shape.lite_topics)
    ]
    return costs[1] / costs[0]


async def _create_topic(cluster: DevCluster) -> None:
    async with Admin(cluster.namesrv) as admin:
        with trio.fail_after(30):
            while True:
                try:
                    await admin.create_topic(TOPIC, QUEUES, attributes={MESSAGE_TYPE_ATTRIBUTE: OF_LITE_TOPICS})
                    return
                except ClientError:
                    await trio.sleep(0.1)  # the group is just being formed


def _fill(address: tuple[str, int], numbers: range) -> None:
    """Send a message to each lite topic in ``numbers``. Blocks. Raises GeneratorFailed, OSError."""
    with socket.create_connection(address) as sock:
        data, in_flight = b"", 0
        for frames in lite_frames(numbers):
            sock.sendall(b"".join(frames))
            in_flight += len(frames)
            while in_flight > (_IN_FLIGHT - _CHUNK if frames else 0):
                chunk = sock.recv(1 << 20)
                if not chunk:
                    raise GeneratorFailed("the broker closed the connection while lite topics were made")
                data += chunk
                answer_count, end = complete_bytes(data)
                if CODE.findall(data[:end]).count(b"0") != answer_count:
                    raise GeneratorFailed(f"a message was refused: {data[:500]!r}")
                data, in_flight = data[end:], in_flight - answer_count


def lite_frames(numbers: range) -> Iterator[list[bytes]]:
    """Yield chunks with a frame for each lite topic. The last chunk is empty, to wait for the missing responses."""
    sample = send_frame(1, BODY_BYTES, 0, lite_topic=lite_name(0))
    head, _, tail = sample.partition(lite_name(0).encode())
    for at in range(0, len(numbers), _CHUNK):
        yield [head + lite_name(number).encode() + tail for number in numbers[at : at + _CHUNK]]
    yield []


def _state_bytes(directory: Path) -> int:
    """The bytes of all files of a replica except its log."""
    files = [path for path in directory.rglob("*") if "commitlog" not in path.parts and path.is_file()]
    return sum(path.stat().st_size for path in files if path.exists())
