"""Measures the curves of sends. Most curves measure each point twice: on the way up and on the way down."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from benchmarks.curves.group_load import (
    Arguments,
    Note,
    Replicas,
    Shape,
    begin_after,
    measure,
    measure_jobs,
    persist,
)
from benchmarks.curves.sample import Curve, PointMeasurement, bytes_name
from benchmarks.load.frames import QUEUES, heartbeat_frame, topic_name
from benchmarks.load.generators import drive, share_out
from benchmarks.load.job import Job
from benchmarks.load.open_loop import PacedJob
from benchmarks.suites.case_load import BATCH, create_topics
from mq.client.admin import Admin
from mq.local_cluster import HOST, DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK
from mq.local_cluster.groups import open_groups

GROUP_RATE = 2000.0
CONNECTIONS = Curve("connections", "Connections that send", "connections", "1 KiB, one message in flight on each")
IDLE = Curve("idle", "Connections that do nothing", "idle connections", "1 KiB, 4x256 on other connections")
QUEUES_CURVE = Curve("queues", "Queues", "queues", "128 B, 4x2,500, which take turns in the queues")
SIZE = Curve("size", "Size of a message", "bytes in the body", "4 connections with 256 messages or 1 MiB in flight")
LOG = Curve("log", "Size of the log", "GB in the log", "1 KiB, 4x256, one replica")
REPLICAS = Curve("replicas", "Replicas", "replicas", "1 KiB, 4x256")
GROUPS = Curve(
    "groups", "Broker groups", "groups of three replicas", f"1 KiB, {GROUP_RATE:,.0f} messages/s in each group"
)

LOG_GB = (0, 1, 2, 5, 10, 20)
DISK_GB_LEFT = 25
"""The GB of this machine's disk that the log leaves to others."""
FILL_SECONDS_MAX = 260.0
IDLE_AFTER_SECONDS = 2.0

T = TypeVar("T")


def up_and_down(points: Sequence[T]) -> list[T]:
    """Return the points forward and backward, so that slow changes of the machine affect both ends alike."""
    return [*points, *reversed(points)]


@asynccontextmanager
async def _group(directory: Path, nodes: int) -> AsyncIterator[DevCluster]:
    async with DevCluster.open(directory, nodes=nodes, ports=Ports.free(nodes), settings=ANY_DISK) as cluster:
        yield cluster


async def connections(args: Arguments, directory: Path, note: Note) -> None:
    """Measure 1 to 10,000 connections with one message in flight on each."""
    counts = (1, 16, 200) if args.quick else (1, 4, 16, 64, 256, 1000, 4000, 10_000)
    async with _group(directory, 3) as cluster:
        await create_topics(cluster, 1, await cluster.leader())
        for count in up_and_down(counts):
            note(await measure([cluster], Shape(connections=count, in_flight=1), args, f"{count:,}"))


async def idle(args: Arguments, directory: Path, note: Note) -> None:
    """Measure one load beside 0 to 10,000 idle connections, each of which has sent only a heartbeat."""
    counts = (0, 50) if args.quick else (0, 10, 100, 1000, 4000, 10_000)
    async with _group(directory, 3) as cluster:
        await create_topics(cluster, 1, await cluster.leader())
        leader = await cluster.leader()
        for count in up_and_down(counts):
            with _idle_connections((HOST, cluster.port(leader)), count):
                await trio.sleep(IDLE_AFTER_SECONDS)
                note(await measure([cluster], Shape(), args, f"{count:,}"))


@contextmanager
def _idle_connections(address: tuple[str, int], count: int) -> Iterator[None]:
    """Open ``count`` connections of producers within the block. Blocks."""
    with ExitStack() as stack:
        for number in range(count):
            sock = stack.enter_context(socket.create_connection(address))
            sock.sendall(heartbeat_frame(1, f"idle@{number}"))
            assert sock.recv(4096), "the broker closed a connection after its heartbeat"
        yield


async def queues(args: Arguments, directory: Path, note: Note) -> None:
    """Measure messages in flight to 1 to 10,000 queues, each to another queue if there are enough."""
    topics = (1, 10, 40) if args.quick else (1, 10, 125, 1250)
    async with _group(directory, 3) as cluster:
        await create_topics(cluster, topics[-1], await cluster.leader())
        one = Shape(in_flight=2500, body_bytes=128, queues=1)
        shapes = [one, *(replace(one, topics=count, queues=QUEUES) for count in topics)]
        for shape in up_and_down(shapes):
            note(await measure([cluster], shape, args, f"{shape.topics * shape.queues:,}"))


async def size(args: Arguments, directory: Path, note: Note) -> None:
    """Measure bodies from 64 B to 1 MiB."""
    sizes = (64, 4096) if args.quick else tuple(64 * 4**step for step in range(8))
    async with _group(directory, 3) as cluster:
        await create_topics(cluster, 1, await cluster.leader())
        for count in up_and_down(sizes):
            shape = Shape(in_flight=max(1, min(256, 2**20 // count)), body_bytes=count)
            note(await measure([cluster], shape, args, bytes_name(count)))


async def log(args: Arguments, directory: Path, note: Note) -> None:
    """Measure while a log grows, as far as the disk and the time limit allow."""
    async with _group(directory, 1) as cluster:
        await create_topics(cluster, 1, await cluster.leader())
        began = trio.current_time()
        for gigabytes in (0, 0.02) if args.quick else LOG_GB:
            while await _log_gigabytes(cluster) < gigabytes:
                if trio.current_time() > began + FILL_SECONDS_MAX:
                    return
                if shutil.disk_usage(directory).free < DISK_GB_LEFT * 1e9:
                    return
                await _fill(cluster, 1.0 if args.quick else 10.0)
            size = await _log_gigabytes(cluster)
            note(await measure([cluster], Shape(), args, f"{size:.1f}"))


async def _log_gigabytes(cluster: DevCluster) -> float:
    status = await cluster.status()
    assert status is not None, "a running group is not registered"
    return max(replica.commit_position or 0 for replica in status.replicas) / 1e9


async def _fill(cluster: DevCluster, seconds: float) -> None:
    """Store messages of 4 KiB for ``seconds``."""
    job = Job(
        address=(HOST, cluster.port("n0")),
        connections=4,
        in_flight=2,
        body_bytes=4096,
        begin=time.clock_gettime(time.CLOCK_MONOTONIC) + 1.0,
        window_seconds=seconds,
        windows=1,
        first_slot=1,
        batch=BATCH,
    )
    await drive(share_out(job), [])


async def replicas(args: Arguments, directory: Path, note: Note) -> None:
    """Measure groups of 1, 3 and 5 replicas."""
    for nodes in up_and_down((1, 3) if args.quick else (1, 3, 5)):
        async with _group(directory / f"{nodes}", nodes) as cluster:
            await create_topics(cluster, 1, await cluster.leader())
            note(await measure([cluster], Shape(), args, f"{nodes}"))
        shutil.rmtree(directory / f"{nodes}")


async def groups(args: Arguments, directory: Path, note: Note) -> None:
    """Measure 1, 2 and 4 groups, each with the same rate, which a small machine can bear for all of them."""
    for count in up_and_down((1, 2) if args.quick else (1, 2, 4)):
        home = directory / f"{count}"
        async with open_groups(home, count, ports=Ports.free(3, groups=count), settings=ANY_DISK) as clusters:
            async with Admin(clusters[0].namesrv) as admin:
                await admin.create_topic(topic_name(0), QUEUES)
            note(await persist(partial(_measure_groups, clusters, args)))
        shutil.rmtree(home)


async def _measure_groups(clusters: Sequence[DevCluster], args: Arguments) -> PointMeasurement:
    replicas = await Replicas.find(clusters)
    begin = begin_after(4 * len(clusters), args)
    jobs = [
        PacedJob(
            Job(
                address=address,
                connections=4,
                in_flight=256,
                body_bytes=1024,
                begin=begin,
                window_seconds=args.seconds,
                windows=args.windows,
                first_slot=1,
            ),
            GROUP_RATE,
        )
        for address in replicas.addresses
    ]
    return await measure_jobs(clusters, replicas, jobs, f"{len(clusters)}", generator="benchmarks.load.open_loop")
