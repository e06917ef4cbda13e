"""Measures what a consumer that reads old messages from a follower costs the producers at the leader.

Three replicas hold 5 million messages of 128 B. One connection's pull shows that the leader redirects such a consumer
to a follower, whose log is then dropped from the page cache. Four connections with 256 messages in flight each produce
to the leader throughout; in every other window (in the order without, with, with, without) a consumer reads from the
follower as fast as it gets messages, 16 pulls in flight.

In production, replicas have their own machines. So that they do not merely compete for the cores of this one, the
leader and the producer have one half of its cores, and the followers and the consumer the other half. The same without
that is measured, too. The disk and the memory are shared either way.

Two followers and a consumer share the cores that each would have alone. To separate that from the cost of the reading,
it is measured once more with processes in the reader's place that burn as much CPU time as the reader used, at the
follower and at the consumer, and read nothing: the rest is the leader's cost.
"""

from __future__ import annotations

import os
import re
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from benchmarks.load.frames import QUEUES, complete_bytes, pull_frame
from benchmarks.pulling import PullRate, pull, walk
from benchmarks.suites.case_load import ROOT, Arguments, Note, create_topics, job_for, run_load, send_messages
from benchmarks.suites.figures import Figure
from mq.local_cluster import DevCluster, Ports, ServersFailed
from mq.local_cluster.any_disk import ANY_DISK
from mq.monitoring.cpu_time import cpu_seconds

LAG_BYTES = 64 * 1024 * 1024
SLOW_PULL_MESSAGES = 8
"""The messages that a consumer that is so far behind gets at once, see `slow_pull_messages_max`."""

_SUGGESTED = re.compile(rb'"suggestWhichBrokerId":"(\d+)"')
_REDIRECT_SECONDS_MAX = 20.0
_WINDOW_SECONDS = 3.0
_BLOCKS = 4
"""The number of blocks of four windows each."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Messages a second and the leader's CPU us per message, without and with a reader; and the reader's messages."""

    rates: tuple[float, float]
    leader_us: tuple[float, float]
    read: int
    read_seconds: float

    @property
    def percent(self) -> float:
        """The part of the throughput that the reader costs, in percent."""
        return 100 * (1 - self.rates[1] / self.rates[0])


def has_reader(window: int) -> bool:
    """Whether a window has a reader. The order without, with, with, without evens out a steady drift."""
    return window % 4 in (1, 2)


def cost_of(messages: Sequence[int], cpu: Sequence[float], seconds: float, reads: Sequence[PullRate]) -> Cost:
    """Compute the cost from windows of ``seconds``. ``cpu``: the leader's CPU seconds in each."""
    rates: list[float] = []
    leader_us: list[float] = []
    for has_read in (False, True):
        windows = [window for window in range(len(messages)) if has_reader(window) is has_read]
        rates.append(statistics.median(messages[window] for window in windows) / seconds)
        total = max(1, sum(messages[window] for window in windows))
        leader_us.append(1e6 * sum(cpu[window] for window in windows) / total)
    read, read_seconds = sum(each.messages for each in reads), sum(each.seconds for each in reads)
    return Cost((rates[0], rates[1]), (leader_us[0], leader_us[1]), read, read_seconds)


async def measure_follower(args: Arguments, directory: Path, note: Note) -> None:
    """Measure windows with and without a consumer that reads from a follower."""
    target = args.sizes.old_messages // (100 if args.quick else 1)
    lag = LAG_BYTES // (100 if args.quick else 1)
    settings = ANY_DISK | {"slow_consumer_bytes": str(lag), "slow_pull_messages_max": str(SLOW_PULL_MESSAGES)}
    async with DevCluster.open(directory / "follower", nodes=3, ports=Ports.free(3), settings=settings) as cluster:
        leader = await cluster.leader()
        await create_topics(cluster, 1, leader)
        count = await send_messages(cluster, args, target, leader)
        follower = await _where_to_read(cluster, leader)
        note(Figure("follower", "old messages", count / 1e6, "million"))
        frames = walk(count // QUEUES // 2, SLOW_PULL_MESSAGES, range(QUEUES))
        cores = sorted(os.sched_getaffinity(0))
        half = len(cores) // 2
        for name, goal in (("cores of their own", 5.0), ("all cores shared", None)):
            if goal is None:
                own, others = cores, cores
            elif half == 0:
                continue
            else:
                own, others = cores[:half], cores[half:]
            for node_id in cluster.node_ids:
                pin(cluster.pid(node_id), own if node_id == leader else others)
            forget(cluster.directory / follower)
            reader = _FollowerReader(cluster, leader, follower, frames, others)
            messages, cpu, seconds = await produce_beside(cluster, args, leader, own, reader.read)
            cost = cost_of(messages, cpu, seconds, reader.reads)
            if await cluster.leader() != leader:
                raise ServersFailed("follower: the leader changed meanwhile; is this machine too busy?")
            rate = cost.read / max(cost.read_seconds, 1e-9)
            note(Figure("follower", f"messages/s produced without a reader, {name}", cost.rates[0], "/s"))
            note(Figure("follower", f"messages/s produced with a reader, {name}", cost.rates[1], "/s"))
            note(Figure("follower", f"cost of the reader, {name}", cost.percent, "%", goal))
            note(Figure("follower", f"CPU of the leader without a reader, {name}", cost.leader_us[0], "us/message"))
            note(Figure("follower", f"CPU of the leader with a reader, {name}", cost.leader_us[1], "us/message"))
            note(Figure("follower", f"messages/s read, {name}", rate, "/s"))
            note(Figure("follower", f"messages read, {name}", cost.read / 1e6, "million"))
            if goal is not None:
                burnt = await produce_beside(cluster, args, leader, own, partial(burn, others, reader.share))
                note(Figure("follower", f"CPU of the reader, {name}", 100 * reader.share, "% of one"))
                note(
                    Figure(
                        "follower",
                        f"cost of burning the same CPU time, {name}",
                        cost_of(*burnt, []).percent,
                        "%",
                    )
                )


class _FollowerReader:
    """A consumer at the follower; ``share`` is the CPU time that it uses there and itself, over time."""

    def __init__(
        self, cluster: DevCluster, leader: str, follower: str, frames: Iterator[bytes], cores: Sequence[int]
    ) -> None:
        others = [node_id for node_id in cluster.node_ids if node_id not in (leader, follower)]
        self._address = ("127.0.0.1", cluster.port(follower))
        self._pid, self._other_pid = cluster.pid(follower), cluster.pid(others[0])
        self._frames = frames
        self._cores = cores
        self._used_seconds = 0.0
        self.reads: list[PullRate] = []

    @property
    def share(self) -> float:
        return self._used_seconds / max(sum(each.seconds for each in self.reads), 1e-9)

    async def read(self, seconds: float) -> None:
        before = cpu_seconds(self._other_pid)
        work = partial(_pull_on, self._cores, self._address, self._frames, seconds, self._pid)
        result, own_seconds = await trio.to_thread.run_sync(work)
        # The other follower replicates as well, and does nothing else.
        self._used_seconds += own_seconds + result.cpu_seconds - (cpu_seconds(self._other_pid) - before)
        self.reads.append(result)


async def burn(cores: Sequence[int], share: float, seconds: float) -> None:
    """Use the share ``share`` of the time of ``cores`` for ``seconds``, in a separate process."""
    command = [sys.executable, "-m", "benchmarks.load.cpu_burner", f"{min(max(share, 0.0), 1.0):.3f}", f"{seconds:.3f}"]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, command, cwd=ROOT))
        os.sched_setaffinity(process.pid, cores)


async def produce_beside(
    cluster: DevCluster,
    args: Arguments,
    leader: str,
    own: Sequence[int],
    disturb: Callable[[float], Awaitable[None]],
) -> tuple[list[int], list[float], float]:
    """Produce while ``disturb`` runs. Returns messages and the leader's CPU seconds by window, and its length."""
    windows = 4 * (1 if args.quick else _BLOCKS)
    seconds = min(args.seconds, _WINDOW_SECONDS)
    timed_plan = Arguments(**vars(args) | {"windows": windows, "seconds": seconds})
    job = replace(job_for(cluster, timed_plan, in_flight=256, node_id=leader), cores=own)
    totals: tuple[list[int], list[float]] = ([], [])

    async def produce() -> None:
        report, cpu = await run_load(cluster, job, leader)
        totals[0].extend(report.messages)
        totals[1].extend(cpu)

    async def disturb_some() -> None:
        for window in filter(has_reader, range(windows)):
            begin = job.begin + window * seconds
            await trio.sleep(max(0.0, begin - time.clock_gettime(time.CLOCK_MONOTONIC)))
            seconds_left = begin + seconds - time.clock_gettime(time.CLOCK_MONOTONIC)
            await disturb(seconds_left)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        nursery.start_soon(disturb_some)
    return *totals, seconds


def _pull_on(
    cores: Sequence[int], address: tuple[str, int], frames: Iterable[bytes], seconds: float, pid: int
) -> tuple[PullRate, float]:
    """Run `pull` in a thread that runs on these cores only; returns also the CPU seconds of this thread."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    cpu = time.thread_time()
    try:
        result = pull(address, frames, count=SLOW_PULL_MESSAGES, in_flight=16, seconds=seconds, pid=pid)
        return result, time.thread_time() - cpu
    finally:
        os.sched_setaffinity(0, before)


async def _where_to_read(cluster: DevCluster, leader: str) -> str:
    """The follower to which the leader redirects a consumer that pulls the first message."""
    with trio.move_on_after(_REDIRECT_SECONDS_MAX):
        while True:
            number = await trio.to_thread.run_sync(suggested_broker, ("127.0.0.1", cluster.port(leader)))
            if number:
                return cluster.node_ids[number - 1]
            await trio.sleep(0.2)
    raise ServersFailed(f"the leader sent no client to a follower for {_REDIRECT_SECONDS_MAX:g} s")


def suggested_broker(address: tuple[str, int]) -> int:
    """Return the broker id that the response to a pull of a queue's first message suggests. Blocks."""
    with socket.create_connection(address, timeout=10.0) as sock:
        sock.sendall(pull_frame(1, 0, 0, 1))
        buffer = b""
        while complete_bytes(buffer)[0] == 0:
            data = sock.recv(64 * 1024)
            if not data:
                raise ConnectionError(f"{address} closed the connection")
            buffer += data
    match = _SUGGESTED.search(buffer)
    if match is None:
        raise ConnectionError(f"the broker answers {buffer[8:400]!r}")
    return int(match[1])


def pin(pid: int, cores: Sequence[int]) -> None:
    """Let all threads of a process, also those that it starts later, run only on these cores."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


def forget(directory: Path) -> None:
    """Drop the files below ``directory`` from the page cache, as far as they are synced."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
