"""Measures the latency at half of the maximum rate, with an open loop, three replicas, and messages of 1 KiB.

First the maximum: 4 connections with 256 single sends in flight each. Then half of its median rate at fixed times,
whether earlier messages were acknowledged or not. A latency begins when a message was due, so that a pause of the
servers delays all messages that were due in it.

Beside it are the possible causes: the synced writes of the replicas, and the disk alone when a plain program makes the
same number of writes with the same bytes; how late the load generators sent; and the cores, which all processes share.

Real processes and files, the default durability; two minutes. ``python -m benchmarks paced`` (``make
bench-paced``).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.cases import Window
from benchmarks.latency_causes import CASE, core_figures, core_meters, measure_writes, writes_of
from benchmarks.load.generators import cpu_meters, drive, share_out
from benchmarks.load.job import Job
from benchmarks.load.open_loop import PacedJob
from benchmarks.load.report import Report, quantile, sum_counts
from benchmarks.produce import windows_of
from benchmarks.suites.case_load import Arguments, Measure, Note, create_topics
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite
from mq.local_cluster import HOST, DevCluster, Ports, ServersFailed
from mq.local_cluster.any_disk import ANY_DISK

BODY_BYTES = 1024
CONNECTIONS = 4
IN_FLIGHT, IN_FLIGHT_PACED = 256, 4096
"""The most requests in flight: in the open loop enough to send due messages in time after a pause of half a second."""
PACED_SECONDS_PER_WINDOW = 2.0
"""The length of the open loop, as a multiple of the length of the measurement of the maximum."""
CONNECT_SECONDS = 3.0
"""Seconds from the start of a load generator until it has built its requests and connected."""
P999_GOAL_MS = 50.0


async def measure_paced(args: Arguments, directory: Path, note: Note) -> None:
    """Measure the maximum rate, then the latency at half of it. Raises ServersFailed, also if the leader changes."""
    async with DevCluster.open(directory / "replicas", nodes=3, ports=Ports.free(3), settings=ANY_DISK) as cluster:
        leader = await cluster.leader()
        await create_topics(cluster, 1, leader)
        pids = [cluster.pid(node) for node in (leader, *(each for each in cluster.node_ids if each != leader))]
        job = Job(
            address=(HOST, cluster.port(leader)),
            connections=CONNECTIONS,
            in_flight=IN_FLIGHT,
            body_bytes=BODY_BYTES,
            begin=_begin(args),
            window_seconds=args.seconds,
            windows=args.windows,
            first_slot=1,
        )
        reports, cpu = await drive(share_out(job), cpu_meters(pids))
        maximum = statistics.median(each.messages_per_second for each in windows_of(reports, cpu, args.seconds))
        if not maximum:
            raise ServersFailed("paced: no message was acknowledged in half of the windows")
        before = [await writes_of(cluster, node) for node in cluster.node_ids]
        paced_job = replace(
            job,
            in_flight=IN_FLIGHT_PACED,
            begin=_begin(args),
            window_seconds=PACED_SECONDS_PER_WINDOW * args.seconds,
        )
        jobs = [PacedJob(each, maximum / 2 * each.connections / CONNECTIONS) for each in share_out(paced_job)]
        reports, cpu = await drive(jobs, [*cpu_meters(pids), *core_meters(pids)], "benchmarks.load.open_loop")
        writes = [
            (await writes_of(cluster, node)).since(start) for node, start in zip(cluster.node_ids, before, strict=True)
        ]
        cluster.check()
        if await cluster.leader() != leader:
            raise ServersFailed("paced: the leader changed meanwhile; is this machine too busy?")
    seconds = paced_job.window_seconds
    for figure in figures_of(maximum, reports, windows_of(reports, [each[: len(pids)] for each in cpu], seconds)):
        note(figure)
    for figure in core_figures([each[len(pids) :] for each in cpu], seconds):
        note(figure)
    await measure_writes(writes, directory, note)


def _begin(args: Arguments) -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC) + CONNECT_SECONDS + args.warmup


def figures_of(maximum: float, reports: Sequence[Report], windows: Sequence[Window]) -> list[Figure]:
    """Compute the figures of all windows of the open loop together. Pure."""
    counts = sum_counts(latencies for report in reports for latencies in report.latencies)
    late = sum_counts(report.late for report in reports)
    rate = statistics.mean(window.messages_per_second for window in windows)
    return [
        Figure(CASE, "maximum rate, 4x256", maximum, "/s"),
        Figure(CASE, "rate", rate, "/s", 0.98 * maximum / 2, is_limit=False),
        Figure(CASE, "p50", 1e3 * quantile(counts, 0.5), "ms"),
        Figure(CASE, "p99", 1e3 * quantile(counts, 0.99), "ms"),
        Figure(CASE, "p99.9", 1e3 * quantile(counts, 0.999), "ms", P999_GOAL_MS),
        Figure(CASE, "longest", 1e3 * quantile(counts, 1.0), "ms"),
        Figure(CASE, "sent late by the load generators, p99.9", 1e3 * quantile(late, 0.999), "ms"),
        Figure(CASE, "CPU of the leader", statistics.mean(window.leader_us for window in windows), "us/message"),
        Figure(
            CASE,
            "most of a core that a load generator used",
            100 * max(window.generator_cores_max for window in windows),
            "%",
        ),
    ]


CASES: dict[str, Measure] = {"paced": measure_paced}

PACED = Suite("paced", __doc__, CASES)

if __name__ == "__main__":
    PACED.main()
