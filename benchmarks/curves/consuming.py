"""Measures messages at a steady rate that one consumer receives, or a group of up to a thousand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.curves.group_load import Arguments, Note, Replicas, begin_after, measure_jobs, persist
from benchmarks.curves.polling import PollingJob
from benchmarks.curves.producing import up_and_down
from benchmarks.curves.sample import Curve, PointMeasurement
from benchmarks.load.frames import topic_name
from mq.client.admin import Admin
from mq.local_cluster import DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK

RATE = 2000.0
JOIN_COST = 4
"""The factor by which a consumer begins slower than a connection: it joins its group, and members are told."""
CONSUMERS = Curve(
    "consumers",
    "Consumers",
    "consumers of a group, each with a queue of its own",
    f"1 KiB, {RATE:,.0f} messages/s in all, each to one consumer; CPU is of sending and consuming",
)


async def consumers(args: Arguments, directory: Path, note: Note) -> None:
    """Measure long polls of 1 to 1,000 consumers, each number on a new topic with one queue per consumer."""
    counts = (1, 20) if args.quick else (1, 4, 16, 64, 250, 1000)
    async with DevCluster.open(directory, nodes=3, ports=Ports.free(3), settings=ANY_DISK) as cluster:
        topics = map(topic_name, itertools.count())
        for count in up_and_down(counts):
            note(await persist(partial(_measure, cluster, topics, count, args)))


async def _measure(cluster: DevCluster, topics: Iterator[str], count: int, args: Arguments) -> PointMeasurement:
    topic = next(topics)
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(topic, count)
    replicas = await Replicas.find([cluster])
    job = PollingJob(
        address=replicas.addresses[0],
        topic=topic,
        consumers=count,
        rate=RATE,
        body_bytes=1024,
        begin=begin_after(count * JOIN_COST, args),
        window_seconds=args.seconds,
        windows=args.windows,
    )
    return await measure_jobs([cluster], replicas, [job], f"{count:,}", generator="benchmarks.curves.polling")
