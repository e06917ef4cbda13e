"""Measures how fast consumers read messages from the archive, and how much these reads slow down new messages."""

from __future__ import annotations

import itertools
import re
import socket
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from benchmarks.archive.groups import PREFIX, URL, archiving_group, fill_group, wait_archived
from benchmarks.latency import share_of
from benchmarks.load.frames import TOPIC, pull_frame
from benchmarks.load.paced_client import PacedSendJob as PacedJob
from benchmarks.load.paced_client import run_paced_client
from benchmarks.pulling import receive_frame
from benchmarks.suites.case_load import Arguments, Note, create_topics
from benchmarks.suites.figures import Figure
from mq.broker.limits import DEFAULT
from mq.client.admin import Admin
from mq.local_cluster import HOST, DevCluster
from mq.monitoring.cpu_time import cpu_seconds
from raftlog.segment.s3_storage import open_s3

COLD_BYTES = 600_000_000
BODY_BYTES = 4096
ASKED = 32
COLD_SHARE_PERCENT = 60.0
COLD_RATE = 100.0
COLD_DELAY_SECONDS = 0.020
RANGE_BYTES = 4 * 1024 * 1024
HOT_DELAY_SECONDS = 2.0
HOT_BYTES = 200_000_000
HOT_TOPIC = "Hot"
HOT_RATE = 200
HOT_SECONDS = 8.0
HOT_PAIRS = 3
READERS = 10
NOISE_PERCENT_MIN = 10.0
"""p99 of neighbouring windows without readers differ by more than that on a shared machine, by less on a quiet one."""
_NEXT = re.compile(rb'"nextBeginOffset":"?(\d+)')
_CODE = re.compile(rb'"code":(-?\d+)')
_FOUND, _RETRY = 0, 20


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue, and the range of offsets to read from it."""

    number: int
    begin: int
    end: int


def read_queue(address: tuple[str, int], queue: Queue, over: threading.Event | None = None) -> int:
    """Pull a queue from its begin to its end, or until ``over`` is set. Returns the received bytes. Blocks.

    Raises ConnectionError on an answer that is neither messages nor to be repeated.
    """
    offset, nbytes = queue.begin, 0
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for opaque in itertools.count(1):
            if offset >= queue.end or (over is not None and over.is_set()):
                return nbytes
            sock.sendall(pull_frame(opaque, queue.number, offset, ASKED, waits=True))
            response = receive_frame(sock)
            head = response[4 : 4 + int.from_bytes(response[1:4], "big")]
            code = _CODE.search(head)
            if code is None or (over is None and int(code[1]) not in (_FOUND, _RETRY)):
                raise ConnectionError(f"{address} answers {head[:400]!r} at offset {offset} of {queue}")
            if int(code[1]) == _FOUND and (next_match := _NEXT.search(head)) is not None:
                nbytes += len(response)
                offset = int(next_match[1])
    raise AssertionError("unreachable")


async def queues_of(cluster: DevCluster, topic: str, base_share: float) -> list[Queue]:
    """Return the range of offsets of each queue of a topic, without its newest part."""
    async with Admin(cluster.namesrv) as admin:
        stats = await admin.topic_stats(topic)
    return [Queue(each.queue_id, ends.min_offset, int(ends.max_offset * base_share)) for each, ends in stats.items()]


def range_rate(endpoint_url: str, objects: Path, threads: int) -> float:
    """Read log files from the store in order, in ``threads`` concurrent ranges. Returns MB/s. Blocks."""
    store = open_s3(URL, endpoint_url)
    names = sorted(path for path in objects.iterdir() if path.stat().st_size > RANGE_BYTES // 4)  # not the indexes
    pieces = [(f"log/{path.name}", at) for path in names for at in range(0, path.stat().st_size, RANGE_BYTES)]
    store.read_range(pieces[0][0], 1, 0)
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        sizes = list(pool.map(lambda piece: len(store.read_range(piece[0], RANGE_BYTES, piece[1])), pieces))
    seconds = time.perf_counter() - begin
    store.close()
    return sum(sizes) / 1e6 / seconds


async def measure_cold(args: Arguments, directory: Path, note: Note) -> None:
    """Measure the case ``cold`` of the package."""
    settings = {"local_retention_bytes": str(1 << 20), "archive_cache_bytes": "0"}
    async with archiving_group(directory, 1, quick=args.quick, settings=settings) as (cluster, storage):
        await create_topics(cluster, 1, "n0")
        await fill_group(cluster, "n0", COLD_BYTES // (100 if args.quick else 1), BODY_BYTES)
        await wait_archived(cluster, base_moves=True)
        storage.delay(COLD_DELAY_SECONDS)
        ranges = partial(range_rate, storage.url, storage.files(f"{PREFIX}/log"))
        rates = {count: await trio.to_thread.run_sync(ranges, count) for count in (1, DEFAULT.archive.read_threads)}
        queues = await queues_of(cluster, TOPIC, 0.9)
        address, pid = (HOST, cluster.port("n0")), cluster.pid("n0")
        begin, cpu = time.perf_counter(), cpu_seconds(pid)
        before = len(storage.answered_requests())
        total = sum(await trio.to_thread.run_sync(partial(_read_all, address, queues)))
        seconds = time.perf_counter() - begin
        cpu = cpu_seconds(pid) - cpu
        requests = len(storage.answered_requests()) - before
    rate = total / 1e6 / seconds
    at_once = DEFAULT.archive.read_threads
    note(Figure("cold", "read", total / 1e9, "GB"))
    note(Figure("cold", "ranges of 4 MiB, one after the other", rates[1], "MB/s"))
    note(Figure("cold", f"ranges of 4 MiB, {at_once} at a time, as a broker reads", rates[at_once], "MB/s"))
    note(Figure("cold", "consumed", rate, "MB/s", None if args.quick else COLD_RATE, is_limit=False))
    share = 100 * rate / rates[1]
    note(Figure("cold", "share of ranges one after the other", share, "%", COLD_SHARE_PERCENT, is_limit=False))
    note(Figure("cold", f"share of ranges {at_once} at a time", 100 * rate / rates[at_once], "%"))
    note(Figure("cold", "CPU of the broker", 1e9 * cpu / max(total, 1), "s/GB"))
    note(Figure("cold", "requests to the store", requests, ""))


def _read_all(address: tuple[str, int], queues: Sequence[Queue]) -> list[int]:
    with ThreadPoolExecutor(len(queues)) as threads:
        return list(threads.map(lambda queue: read_queue(address, queue), queues))


class ColdReaders:
    """Ten readers, which begin at different offsets. A reader that reaches the end begins again at the first offset."""

    def __init__(self, address: tuple[str, int], queues: Sequence[Queue]) -> None:
        self._address = address
        self._queues = queues
        self._turn = itertools.count()
        self.nbytes = 0

    async def run(self, seconds: float) -> None:
        """Read for ``seconds``."""
        over = threading.Event()

        def read(number: int) -> None:
            while not over.is_set():
                queue = self._queues[number % len(self._queues)]
                span = queue.end - queue.begin
                begin = queue.begin + (next(self._turn) * 7919 * ASKED) % max(1, span - ASKED)
                self.nbytes += read_queue(self._address, Queue(queue.number, begin, queue.end), over)

        async with trio.open_nursery() as nursery:
            for number in range(READERS):
                nursery.start_soon(partial(trio.to_thread.run_sync, read, number))
            try:
                await trio.sleep(seconds)
            finally:
                over.set()  # also if this is cancelled: otherwise they read until the broker ends


async def measure_hot(args: Arguments, directory: Path, note: Note) -> None:
    """Measure the case ``hot`` of the package."""
    settings = {"local_retention_bytes": str(1 << 20), "archive_cache_bytes": "0"}
    seconds, pairs = (1.0, 1) if args.quick else (HOT_SECONDS, HOT_PAIRS)
    p99: dict[str, dict[bool, list[float]]] = {name: {False: [], True: []} for name in ("acknowledged", "delivered")}
    missing_count = 0
    async with archiving_group(directory, 1, quick=args.quick, settings=settings) as (cluster, storage):
        await create_topics(cluster, 1, "n0")
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(HOT_TOPIC, 4)
        await fill_group(cluster, "n0", HOT_BYTES // (100 if args.quick else 1), BODY_BYTES)
        await wait_archived(cluster, base_moves=True)
        queues = await queues_of(cluster, TOPIC, 0.8)
        storage.delay(HOT_DELAY_SECONDS)
        before = len(storage.answered_requests())
        readers = ColdReaders((HOST, cluster.port("n0")), queues)
        job = PacedJob(cluster.namesrv, HOT_TOPIC, HOT_RATE, 2.0, seconds)
        for pair in range(pairs):
            for is_beside in (pair % 2 == 0, pair % 2 == 1):
                async with trio.open_nursery() as nursery:
                    if is_beside:
                        nursery.start_soon(readers.run, seconds + 4.0)
                    report = await run_paced_client(job)
                missing_count += report.failed + report.missing
                for name, values in (("acknowledged", report.acknowledged), ("delivered", report.delivered)):
                    p99[name][is_beside].append(1e3 * share_of(values or [float("inf")], 0.99))
        requests = len(storage.answered_requests()) - before
        cluster.check()
    for name, latencies in p99.items():
        alone, beside = (statistics.median(latencies[is_beside]) for is_beside in (False, True))
        noise = max(NOISE_PERCENT_MIN, 100 * (max(latencies[False]) / alone - 1))
        note(Figure("hot", f"{name}, p99, without readers", alone, "ms"))
        note(Figure("hot", f"{name}, p99, with ten readers of old messages", beside, "ms"))
        note(Figure("hot", f"{name}, p99, differs between windows without readers by up to", noise, "%"))
        note(Figure("hot", f"{name}, p99, growth", 100 * (beside / alone - 1), "%", noise))
    note(Figure("hot", "not acknowledged, or not delivered", missing_count, "", 0))
    note(Figure("hot", "requests to the store", requests, ""))
    note(Figure("hot", "old messages read", readers.nbytes / 1e6, "MB"))
