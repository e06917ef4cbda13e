"""The common parts of the cases of `make bench-store`: the command line, a broker to measure, and load on it."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from benchmarks.load.frames import QUEUES, topic_ext, topic_name
from benchmarks.load.generators import JobWindows, run_generator
from benchmarks.load.job import Job
from benchmarks.load.report import Report
from benchmarks.store.sizes import DEFAULT, Sizes
from benchmarks.suites.figures import Figure
from mq.client.admin import Admin
from mq.client.net.client_core import ClientCore
from mq.local_cluster import DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK
from mq.monitoring.cpu_time import cpu_seconds
from mq.protocol.codes import RequestCode

R = TypeVar("R")

ROOT = Path(__file__).parents[2]
BATCH = 32
BODY_BYTES = 128


class Arguments(argparse.Namespace):
    """The command line."""

    case: list[str]
    quick: bool
    windows: int
    seconds: float
    warmup: float
    dir: Path | None
    no_write: bool
    limit: float
    sizes: Sizes = DEFAULT


Note = Callable[[Figure], None]
Measure = Callable[[Arguments, Path, Note], Awaitable[None]]
"""A case: reports each figure as soon as it has it."""


@asynccontextmanager
async def one_broker(directory: Path) -> AsyncIterator[DevCluster]:
    """Run a broker and a name server as processes."""
    async with DevCluster.open(directory, nodes=1, ports=Ports.free(1), settings=ANY_DISK) as cluster:
        yield cluster


async def create_topics(cluster: DevCluster, count: int, node_id: str = "n0", queues: int = QUEUES) -> None:
    """Create topics through the leader ``node_id``. On return, the last of them is visible."""
    async with ClientCore.open([cluster.namesrv]) as core:
        for number in range(count - 1):
            ext = topic_ext(topic_name(number), queues).fields()
            await core.call(cluster.address(node_id), RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(topic_name(count - 1), queues)


async def run_load(cluster: DevCluster, job: Job, node_id: str = "n0") -> tuple[Report, list[float]]:
    """Send to the broker from a separate process, as the job says. Also returns the broker's CPU seconds by window."""
    return await run_beside("benchmarks.load.closed_loop", cluster, job, Report, node_id)


async def run_beside(
    module: str, cluster: DevCluster, job: JobWindows, report: type[R], node_id: str, *, may_end_early: bool = False
) -> tuple[R, list[float]]:
    """Run a load generator. Also returns the CPU seconds of the broker ``node_id`` in each window that ended before the
    generator.
    """
    pid, marks = cluster.pid(node_id), list[float]()

    async def mark_ends() -> None:
        for window in range(job.windows + 1):
            await trio.sleep(job.begin + window * job.window_seconds - time.clock_gettime(time.CLOCK_MONOTONIC))
            marks.append(cpu_seconds(pid))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mark_ends)
        report_of_job = await run_generator(module, job, report)
        if may_end_early:
            nursery.cancel_scope.cancel()
    cluster.check()
    return report_of_job, [end - start for start, end in itertools.pairwise(marks)]


async def send_messages(cluster: DevCluster, args: Arguments, target: int, node_id: str = "n0") -> int:
    """Send at least ``target`` small messages as fast as batches allow. Returns their number."""
    seconds = 1.0 if args.quick else 5.0
    fill = Arguments(**vars(args) | {"warmup": 0.0, "seconds": seconds, "windows": 1})
    count = 0
    while count < target:
        job = job_for(cluster, fill, in_flight=16, batch=BATCH, node_id=node_id)
        report, _ = await run_load(cluster, job, node_id)
        count += sum(report.messages)
    return count


def job_for(
    cluster: DevCluster, args: Arguments, *, in_flight: int, topics: int = 1, batch: int = 1, node_id: str = "n0"
) -> Job:
    """Return a job of four connections to the broker. Its windows begin after the warm-up."""
    return Job(
        address=("127.0.0.1", cluster.port(node_id)),
        connections=4,
        in_flight=in_flight,
        body_bytes=BODY_BYTES,
        begin=time.clock_gettime(time.CLOCK_MONOTONIC) + args.sizes.connect_seconds + args.warmup,
        window_seconds=args.seconds,
        windows=args.windows,
        first_slot=1,
        topics=topics,
        batch=batch,
    )
