"""Measures the throughput of one consumer, from the page cache.

- ``backlog``: messages of 1 KiB, 32 to a pull, 16 pulls in flight on one connection. Once from a single queue, whose
  messages are consecutive in the log, and once from 8 queues in turn, which were filled in turn: then no two messages
  of a response are adjacent.
- ``random``: one message of 4 KiB to a pull, anywhere in 8 queues, 64 pulls in flight.

The reader is this process; it splits frames and does not decode messages.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import trio

from benchmarks.load.frames import QUEUES
from benchmarks.pulling import PullRate, fill, pull, scattered_pulls, walk
from benchmarks.suites.case_load import Arguments, Note, create_topics, one_broker
from benchmarks.suites.figures import Figure
from mq.local_cluster import DevCluster

PULL_MESSAGES = 32
PULLS_IN_FLIGHT = 16
JUMPS_IN_FLIGHT = 64
_READ_SECONDS = 3.0


async def measure_backlog(args: Arguments, directory: Path, note: Note) -> None:
    """Measure a consumer that reads a backlog."""
    messages = args.sizes.backlog_messages // (3 if args.quick else 1)  # more than a broker caches itself
    for queues in (1, QUEUES):
        async with one_broker(directory / f"{queues}") as cluster:
            await _fill(cluster, messages, 1024, queues)
            frames = walk(messages // queues, PULL_MESSAGES, range(queues), count=PULL_MESSAGES)
            windows = await _read(cluster, args, frames, PULL_MESSAGES, PULLS_IN_FLIGHT)
        name = "1 queue" if queues == 1 else f"{queues} queues"
        note(Figure("backlog", f"messages/s of 1 KiB, {name}", _rate(windows), "/s", 150_000, is_limit=False))
        note(Figure("backlog", f"CPU of the broker, {name}", _cpu_us(windows), "us/answer of 32", 45))


async def measure_random(args: Arguments, directory: Path, note: Note) -> None:
    """Measure a consumer that reads at random offsets."""
    messages = args.sizes.random_messages // (10 if args.quick else 1)
    async with one_broker(directory / "random") as cluster:
        await _fill(cluster, messages, 4096, QUEUES)
        windows = await _read(cluster, args, itertools.cycle(scattered_pulls(messages)), 1, JUMPS_IN_FLIGHT)
    note(Figure("random", "reads/s of 4 KiB", _rate(windows), "/s", 20_000, is_limit=False))
    note(Figure("random", "CPU of the broker", _cpu_us(windows), "us/read"))


async def _fill(cluster: DevCluster, messages: int, body_bytes: int, queues: int) -> None:
    await create_topics(cluster, 1)
    address = ("127.0.0.1", cluster.port("n0"))
    await trio.to_thread.run_sync(fill, address, messages, body_bytes, queues)


async def _read(
    cluster: DevCluster, args: Arguments, frames: Iterable[bytes], count: int, in_flight: int
) -> list[PullRate]:
    """Measure the windows of the arguments, after a short one that is discarded."""
    address, pid = ("127.0.0.1", cluster.port("n0")), cluster.pid("n0")
    windows: list[PullRate] = []
    for number in range(args.windows + 1):
        seconds = min(args.seconds, _READ_SECONDS if number else 1.0)
        read = partial(pull, address, frames, count=count, in_flight=in_flight, seconds=seconds, pid=pid)
        windows.append(await trio.to_thread.run_sync(read))
        cluster.check()
    return windows[1:]


def _rate(windows: list[PullRate]) -> float:
    return statistics.median(window.messages / window.seconds for window in windows)


def _cpu_us(windows: list[PullRate]) -> float:
    return statistics.median(window.cpu_us for window in windows)
