"""Measures the rate and the cost of Spark reading from a group and writing to one: ``make bench-spark``.

Three replicas and Spark (``local[2]``) share the machine. A million messages of 1 KiB are in 8 queues, interleaved in
the log as by producers: 4 connections with 256 sends in flight each.

- ``scan``: all columns into Spark's noop sink, alternating with Parquet files of the same rows into the same sink; rows
  counted by their offsets alone; a partition per stripe of the log against one per queue, read by plain pulls.
- ``cold``: bytes that the replicas read from the disk for a scan, when no page of the log is in memory.
- ``planning``: the first and the last offsets of 10,000 queues, as a stream queries them ten times a second.
- ``sink``: rows of 1 KiB written to a topic; a row is written when a majority has it on disk.
- ``batches``: the overhead of a micro-batch besides its rows.
- ``leader``: the cost of a scan for the leader's producers, beside a process that burns as much CPU.

``python -m benchmarks.spark``; needs Java 17 and PySpark.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from benchmarks.load.frames import QUEUES, TOPIC, topic_name
from benchmarks.procfs import disk_bytes_read, rss_bytes
from benchmarks.spark.process import SparkProcess
from benchmarks.spark.stages import seconds_of_stages
from benchmarks.store.follower import burn, cost_of, forget, pin, produce_beside
from benchmarks.suites.case_load import Arguments, Measure, Note, create_topics, job_for, run_load
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite
from mq.inspection.cluster import ask_cluster
from mq.local_cluster import DevCluster, Ports, ServersFailed
from mq.local_cluster.any_disk import ANY_DISK
from mq.monitoring.cpu_time import cpu_seconds
from spark.kept_connections import KeptConnections
from spark.options import Topics, parse_read_options
from spark.stream_progress import stream_surveyor

MESSAGES = 1_000_000
BODY_BYTES = 1024
ROUNDS = 3
MANY_TOPICS = 1250
"""The number of topics of 8 queues each."""
PLANS_PER_ROUND = 10
SINK_ROWS = 200_000


@asynccontextmanager
async def open_filled(directory: Path, args: Arguments, messages: int) -> AsyncIterator[tuple[DevCluster, int]]:
    """Run three replicas that have at least ``messages`` messages. Also yields the exact number."""
    async with DevCluster.open(directory, nodes=3, ports=Ports.free(3), settings=ANY_DISK) as cluster:
        leader = await cluster.leader()
        await create_topics(cluster, 1, leader)
        count = 0
        while count < messages:
            seconds = 0.5 if args.quick else 5.0
            timed_plan = Arguments(**vars(args) | {"warmup": 0.0, "seconds": seconds, "windows": 1})
            job = replace(job_for(cluster, timed_plan, in_flight=256, node_id=leader), body_bytes=BODY_BYTES)
            report, _ = await run_load(cluster, job, leader)
            count += sum(report.messages)
        yield cluster, count


def scale(args: Arguments, count: int) -> int:
    """Return ``count``, or a hundredth of it for a quick run."""
    return count // (100 if args.quick else 1)


async def measure_scan(args: Arguments, directory: Path, note: Note) -> None:
    """Measure rows a second from raftmq and from Parquet files, alternately."""
    async with (
        open_filled(directory / "cluster", args, scale(args, MESSAGES)) as (cluster, _),
        SparkProcess.open() as spark,
    ):
        options = {"namesrv": cluster.namesrv, "subscribe": TOPIC}
        files = str(directory / "parquet")
        before_scans = rss_of_replicas(cluster)
        await spark.ask("copy", "raftmq", options, to={"format": "parquet", "mode": "overwrite", "path": files})
        rows = (await spark.ask("count", "parquet", path=files)).rows
        gigabytes = rows * BODY_BYTES / 1e9
        seconds: dict[str, list[float]] = {"raftmq": [], "parquet": [], "pulls": []}
        worker_cpu, replica_cpu, jvm_cpu = [], [], []
        for _ in range(ROUNDS):
            before = spark.worker_cpu_seconds(), replicas_cpu(cluster), spark.cpu_seconds()
            seconds["raftmq"].append((await spark.ask("scan", "raftmq", options)).seconds)
            worker_cpu.append(spark.worker_cpu_seconds() - before[0])
            replica_cpu.append(replicas_cpu(cluster) - before[1])
            jvm_cpu.append(spark.cpu_seconds() - before[2] - worker_cpu[-1])
            seconds["parquet"].append((await spark.ask("scan", "parquet", path=files)).seconds)
        growth = most_grown(before_scans, rss_of_replicas(cluster))
        # Plain pulls take so long that they run only once.
        seconds["pulls"].append((await spark.ask("scan", "raftmq", options | {"readMode": "pull"})).seconds)
        rate = {name: rows * BODY_BYTES / 1e6 / statistics.median(each) for name, each in seconds.items()}
        note(Figure("scan", "rows", rows / 1e6, "million"))
        note(Figure("scan", "bodies read, a partition per stripe", rate["raftmq"], "MB/s", 200, is_limit=False))
        note(Figure("scan", "bodies read, a partition per queue by plain pulls", rate["pulls"], "MB/s"))
        note(Figure("scan", "bodies read from Parquet", rate["parquet"], "MB/s"))
        share = 100 * rate["raftmq"] / rate["parquet"]
        note(Figure("scan", "of the rate from Parquet", share, "%", 50, is_limit=False))
        note(Figure("scan", "CPU of Spark's workers", statistics.median(worker_cpu) / gigabytes, "s/GB", 1.8))
        note(Figure("scan", "CPU of all replicas", statistics.median(replica_cpu) / gigabytes, "s/GB", 0.6))
        note(Figure("scan", "CPU of Spark's JVM", statistics.median(jvm_cpu) / gigabytes, "s/GB"))
        counts = [await spark.ask("count", "raftmq", options | {"columns": "queue_offset"}) for _ in range(ROUNDS)]
        assert {each.rows for each in counts} == {rows}, "a count that differs"
        count_rate = rows / statistics.median(each.seconds for each in counts)
        note(Figure("scan", "rows counted by offset", count_rate, "/s", 350_000, is_limit=False))
        served_bytes = await served_in_bulk(cluster)
        note(Figure("scan", "bytes that followers served", served_bytes["Follower"] / 1e6, "MB"))
        note(Figure("scan", "bytes that the leader served", served_bytes["Leader"] / 1e6, "MB", 0))
        note(Figure("scan", "memory of a worker, at most", spark.worker_rss_bytes_max() / 1e6, "MB", 300))
        note(Figure("scan", "growth of a replica's memory over four scans", growth / 2**20, "MiB", 64))
        stages = await trio.to_thread.run_sync(seconds_of_stages, options)
        for name, took in stages.items():
            note(Figure("scan", f"CPU of the reader without Spark: {name}", took / gigabytes, "s/GB"))
        growth = most_grown(before_scans, rss_of_replicas(cluster))
        note(Figure("scan", "growth including plain pulls and counts", growth / 2**20, "MiB"))


async def measure_cold(args: Arguments, directory: Path, note: Note) -> None:
    """Measure a scan of a log that is not in the page cache."""
    async with (
        open_filled(directory / "cluster", args, scale(args, MESSAGES)) as (cluster, count),
        SparkProcess.open() as spark,
    ):
        options = {"namesrv": cluster.namesrv, "subscribe": TOPIC}
        await spark.ask("count", "raftmq", options | {"columns": "queue_offset"})  # so that Spark is warm
        for node_id in cluster.node_ids:
            forget(cluster.directory / node_id)
        before = {node_id: disk_bytes_read(cluster.pid(node_id)) for node_id in cluster.node_ids}
        response = await spark.ask("scan", "raftmq", options)
        read = {node_id: disk_bytes_read(cluster.pid(node_id)) - before[node_id] for node_id in cluster.node_ids}
        leader = await cluster.leader()
        log_bytes = sum(each.stat().st_blocks * 512 for each in (cluster.directory / leader / "commitlog").glob("*"))
        followers = sum(size for node_id, size in read.items() if node_id != leader)
        note(Figure("cold", "log", log_bytes / 1e6, "MB"))
        note(Figure("cold", "read from the followers' disks, of the log", followers / log_bytes, "times", 1.15))
        note(Figure("cold", "read from the leader's disk", read[leader] / 1e6, "MB"))
        note(Figure("cold", "bodies read", count * BODY_BYTES / 1e6 / response.seconds, "MB/s"))


async def measure_planning(args: Arguments, directory: Path, note: Note) -> None:
    """Measure the query for the ends of many queues, which each micro-batch makes."""
    topics = 50 if args.quick else MANY_TOPICS
    async with DevCluster.open(directory / "cluster", nodes=3, ports=Ports.free(3), settings=ANY_DISK) as cluster:
        await create_topics(cluster, topics, await cluster.leader())
        names = tuple(topic_name(number) for number in range(topics))
        first, again = await trio.to_thread.run_sync(_plan_often, cluster.namesrv, names)
        note(Figure("planning", f"routes and offsets of {topics * 8:,} queues", 1e3 * first, "ms"))
        note(Figure("planning", f"offsets of {topics * 8:,} queues, with routes cached", 1e3 * again, "ms", 10))


def _plan_often(namesrv: str, topics: tuple[str, ...]) -> tuple[float, float]:
    """Seconds for a survey that includes the name servers, as a stream does every few seconds, and for others."""
    options = parse_read_options({"namesrv": namesrv, "subscribe": ",".join(topics)}, "stream")
    connections = KeptConnections()
    surveyor = stream_surveyor(options, connections)
    took: dict[bool, list[float]] = {False: [], True: []}
    survey = None
    for number in range(ROUNDS * PLANS_PER_ROUND):
        if number % PLANS_PER_ROUND == 0:
            survey = None
        began = time.perf_counter()
        survey = surveyor.survey(Topics(topics), previous=survey)
        took[number % PLANS_PER_ROUND > 0].append(time.perf_counter() - began)
    connections.close()
    return statistics.median(took[False]), statistics.median(took[True])


async def served_in_bulk(cluster: DevCluster) -> dict[str, int]:
    """Return the bytes of messages in responses to bulk reads, by the role of the replica."""
    [group] = await ask_cluster(cluster.namesrv)
    return {
        role: sum(int(replica.figures.get(f"raftmq.bulkBytesAs{role}", 0)) for replica in group.replicas)
        for role in ("Leader", "Follower")
    }


def rss_of_replicas(cluster: DevCluster) -> list[int]:
    """Return the resident memory of each replica in bytes."""
    return [rss_bytes(cluster.pid(node_id)) for node_id in cluster.node_ids]


def most_grown(before: list[int], after: list[int]) -> int:
    """Return the growth in bytes of the replica that grew most."""
    return max(now - then for then, now in zip(before, after, strict=True))


def replicas_cpu(cluster: DevCluster) -> float:
    """Return the CPU seconds of all replicas so far."""
    return sum(cpu_seconds(cluster.pid(node_id)) for node_id in cluster.node_ids)


async def measure_sink(args: Arguments, directory: Path, note: Note) -> None:
    """Measure writing rows of 1 KiB from Parquet files to a topic."""
    rows = scale(args, SINK_ROWS)
    async with open_filled(directory / "cluster", args, rows) as (cluster, _), SparkProcess.open() as spark:
        files = str(directory / "parquet")
        source = {"namesrv": cluster.namesrv, "subscribe": TOPIC, "columns": "body"}
        await spark.ask("copy", "raftmq", source, to={"format": "parquet", "mode": "overwrite", "path": files})
        count = (await spark.ask("count", "parquet", path=files)).rows
        await create_topics(cluster, 2, await cluster.leader())
        options = {"namesrv": cluster.namesrv, "topic": topic_name(1)}
        before = spark.worker_cpu_seconds(), replicas_cpu(cluster)
        response = await spark.ask(
            "copy", "parquet", path=files, to={"format": "raftmq", "mode": "append", "options": options}
        )
        stored_rows = (
            await spark.ask("count", "raftmq", {**source, "subscribe": topic_name(1), "columns": "queue_offset"})
        ).rows
        assert stored_rows == count, f"{stored_rows} of {count} rows were stored"
        note(Figure("sink", "rows written", count / response.seconds, "/s", 20_000, is_limit=False))
        note(Figure("sink", "CPU of Spark's workers", 1e6 * (spark.worker_cpu_seconds() - before[0]) / count, "us/row"))
        note(Figure("sink", "CPU of all replicas", 1e6 * (replicas_cpu(cluster) - before[1]) / count, "us/row"))


async def measure_batches(args: Arguments, directory: Path, note: Note) -> None:
    """Measure the cost of a micro-batch apart from reading its rows."""
    messages = scale(args, 100_000)
    async with open_filled(directory / "cluster", args, messages) as (cluster, count), SparkProcess.open() as spark:
        options = {"namesrv": cluster.namesrv, "subscribe": TOPIC, "startingOffsets": "earliest"}
        options["maxOffsetsPerTrigger"] = str(max(1, count // 10))
        batches = (await spark.ask("batches", "raftmq", options, path=str(directory / "checkpoint"))).batches
        read = sum(each["rows"] for each in batches)
        assert read == count or read > messages, f"{read} of {count} rows were read"
        beside = [each["ms"]["triggerExecution"] - each["ms"].get("addBatch", 0) for each in batches if each["rows"]]
        offsets = [each["ms"].get("latestOffset", 0) for each in batches if each["rows"]]
        note(Figure("batches", "micro-batches", len(beside), ""))
        note(Figure("batches", "overhead of a micro-batch", statistics.median(beside) / 1e3, "s", 1))
        note(Figure("batches", "of that, fetching the latest offsets", statistics.median(offsets), "ms"))


async def measure_leader(args: Arguments, directory: Path, note: Note) -> None:
    """Measure how much a scan slows down producers at the leader."""
    async with (
        open_filled(directory / "cluster", args, scale(args, MESSAGES)) as (cluster, _),
        SparkProcess.open() as spark,
    ):
        leader = await cluster.leader()
        # A part of the topic, so that a scan ends with its window.
        options = up_to(cluster.namesrv, scale(args, 8_000))
        await spark.ask("count", "raftmq", options)
        cores = sorted(os.sched_getaffinity(0))
        half = len(cores) // 2
        if half == 0:
            return  # one core: it cannot be divided
        own, others = cores[:half], cores[half:]
        for node_id in cluster.node_ids:
            pin(cluster.pid(node_id), own if node_id == leader else others)
        spark.pin(others)
        scans = Scans(cluster, spark, leader, options)
        cost = cost_of(*await produce_beside(cluster, args, leader, own, scans.run), [])
        note(Figure("leader", "messages/s produced without a scan", cost.rates[0], "/s"))
        note(Figure("leader", "messages/s produced during a scan", cost.rates[1], "/s"))
        note(Figure("leader", "rows scanned during the run", scans.rows / 1e6, "million"))
        burnt = cost_of(*await produce_beside(cluster, args, leader, own, partial(burn, others, scans.share)), [])
        note(Figure("leader", "CPU of the scan", 100 * scans.share, "% of one"))
        note(Figure("leader", "cost of a scan", cost.percent, "%"))
        note(Figure("leader", "cost of burning the same CPU time", burnt.percent, "%"))
        note(Figure("leader", "cost of a scan beyond its CPU time", cost.percent - burnt.percent, "%", 5))
        if await cluster.leader() != leader:
            raise ServersFailed("leader: the leader changed meanwhile; is this machine too busy?")


def up_to(namesrv: str, end: int) -> dict[str, str]:
    """Return options that read each queue up to the offset ``end``."""
    ends = {TOPIC: {f"broker-a:{queue}": end for queue in range(QUEUES)}}
    return {"namesrv": namesrv, "subscribe": TOPIC, "endingOffsets": json.dumps(ends)}


class Scans:
    """Scans a topic repeatedly. ``share``: the CPU time that scans use outside of the leader, over time."""

    def __init__(self, cluster: DevCluster, spark: SparkProcess, leader: str, options: dict[str, str]) -> None:
        self._followers = [cluster.pid(node_id) for node_id in cluster.node_ids if node_id != leader]
        self._spark = spark
        self._options = options
        self._used_seconds = self._seconds = 0.0
        self.rows = 0

    @property
    def share(self) -> float:
        return self._used_seconds / max(self._seconds, 1e-9)

    async def run(self, seconds: float) -> None:
        """Scan a part of the topic repeatedly, as long as another scan fits into ``seconds``."""
        began, before = trio.current_time(), self._cpu_seconds()
        last = 0.0
        while trio.current_time() - began + last < seconds:
            start = trio.current_time()
            self.rows += (await self._spark.ask("count", "raftmq", self._options)).rows
            last = trio.current_time() - start
        self._used_seconds += self._cpu_seconds() - before
        self._seconds += trio.current_time() - began

    def _cpu_seconds(self) -> float:
        return self._spark.worker_cpu_seconds() + sum(map(cpu_seconds, self._followers))


CASES: dict[str, Measure] = {
    "scan": measure_scan,
    "cold": measure_cold,
    "planning": measure_planning,
    "sink": measure_sink,
    "batches": measure_batches,
    "leader": measure_leader,
}

SPARK = Suite("spark", __doc__, CASES)


if __name__ == "__main__":
    SPARK.main()
