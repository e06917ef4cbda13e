"""Puts load on one broker group or several, and measures their replicas."""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from benchmarks.curves.sample import PointMeasurement
from benchmarks.load.frames import QUEUES
from benchmarks.load.generators import GeneratorFailed, Meter, WindowedJob, drive, share_out
from benchmarks.load.job import Job
from benchmarks.procfs import load_average, own_cpu_seconds, rss_bytes
from benchmarks.produce import windows_of
from benchmarks.store.sizes import DEFAULT, Sizes
from mq.local_cluster import HOST, DevCluster, ServersFailed
from mq.monitoring.cpu_time import cpu_seconds

CONNECTS_PER_SECOND = 1000
START_SECONDS = 2.0
"""Seconds for the start of load generators on a machine with other load."""
AGAIN_AFTER_SECONDS = 3.0


class Arguments(argparse.Namespace):
    """The command line."""

    curve: list[str]
    quick: bool
    windows: int
    seconds: float
    limit: float
    dir: Path | None
    no_write: bool
    sizes: Sizes = DEFAULT


@dataclass(frozen=True, slots=True)
class Shape:
    """The load of a point; see `benchmarks.load.job`. Several groups share the connections."""

    connections: int = 4
    in_flight: int = 256
    body_bytes: int = 1024
    topics: int = 1
    queues: int = QUEUES
    batch: int = 1
    lite_topics: int = 0


Note = Callable[[PointMeasurement], None]


@dataclass(slots=True)
class Replicas:
    """The replicas of running groups, with the roles that they had when `find` was called."""

    leaders: list[int]
    followers: list[int]
    addresses: list[tuple[str, int]]

    @classmethod
    async def find(cls, clusters: Sequence[DevCluster]) -> Replicas:
        """Ask all groups for the roles of their replicas. Raises ServersFailed if a group has no leader."""
        replicas = cls([], [], [])
        for cluster in clusters:
            leader = await cluster.leader()
            replicas.leaders.append(cluster.pid(leader))
            replicas.followers += [cluster.pid(node) for node in cluster.node_ids if node != leader]
            replicas.addresses.append((HOST, cluster.port(leader)))
        return replicas

    def meters(self) -> list[Meter]:
        """Return meters of CPU seconds: of leaders, a follower of each group, and one replica's children in each."""
        every = [*self.leaders, *self.followers]
        groups, others = len(self.leaders), max(1, len(self.followers))
        return [
            partial(_total, own_cpu_seconds, self.leaders, 1.0),
            partial(_total, own_cpu_seconds, self.followers, groups / others),
            partial(_total, _children_cpu_seconds, every, groups / len(every)),
        ]

    def rss_mib(self) -> float:
        """Return the resident memory of a leader in MiB."""
        return sum(map(rss_bytes, self.leaders)) / len(self.leaders) / 2**20


def _total(read: Callable[[int], float], pids: Sequence[int], share: float) -> float:
    return share * sum(map(read, pids))


def _children_cpu_seconds(pid: int) -> float:
    return cpu_seconds(pid) - own_cpu_seconds(pid)


async def measure(clusters: Sequence[DevCluster], shape: Shape, args: Arguments, at: str) -> PointMeasurement:
    """Put load on the leaders of all groups. Raises as `persist`."""
    return await persist(partial(_measure, clusters, shape, args, at))


async def persist(attempt: Callable[[], Awaitable[PointMeasurement]]) -> PointMeasurement:
    """Measure; if a leader changed, as it may on a busy machine, measure once more.

    Raises GeneratorFailed, ServersFailed.
    """
    try:
        return await attempt()
    except (GeneratorFailed, ServersFailed) as error:
        print(f"measured again: {error}", flush=True)
    await trio.sleep(AGAIN_AFTER_SECONDS)
    return await attempt()


async def _measure(clusters: Sequence[DevCluster], shape: Shape, args: Arguments, at: str) -> PointMeasurement:
    replicas = await Replicas.find(clusters)
    job = Job(
        address=replicas.addresses[0],
        connections=shape.connections,
        in_flight=shape.in_flight,
        body_bytes=shape.body_bytes,
        begin=begin_after(shape.connections, args),
        window_seconds=args.seconds,
        windows=args.windows,
        first_slot=1,
        topics=shape.topics,
        queues=shape.queues,
        batch=shape.batch,
        lite_topics=shape.lite_topics,
    )
    shares = share_out(job, max(2, len(clusters)))
    jobs = [replace(each, address=replicas.addresses[n % len(clusters)]) for n, each in enumerate(shares)]
    return await measure_jobs(clusters, replicas, jobs, at)


def begin_after(connections: float, args: Arguments) -> float:
    """Return the monotonic time at which a job that starts now has opened ``connections`` and warmed up."""
    connect_seconds = START_SECONDS + connections / CONNECTS_PER_SECOND
    return time.clock_gettime(time.CLOCK_MONOTONIC) + connect_seconds + args.sizes.curve_warm_up_seconds


async def measure_jobs(
    clusters: Sequence[DevCluster],
    replicas: Replicas,
    jobs: Sequence[WindowedJob],
    at: str,
    *,
    generator: str = "benchmarks.load.closed_loop",
) -> PointMeasurement:
    """Run all jobs at once. Raises GeneratorFailed, and ServersFailed if a leader changed meanwhile."""
    before = load_average()
    reports, cpu_readings = await drive(jobs, replicas.meters(), generator)
    for cluster in clusters:
        cluster.check()
    if (await Replicas.find(clusters)).leaders != replicas.leaders:
        raise ServersFailed(f"{at}: a leader changed meanwhile; is this machine too busy?")
    windows = windows_of(reports, cpu_readings, jobs[0].window_seconds)
    if not any(window.messages_per_second for window in windows):
        raise GeneratorFailed(f"{at}: no message was answered while it was measured")
    return PointMeasurement(at, windows, replicas.rss_mib(), before, bool(replicas.followers))
