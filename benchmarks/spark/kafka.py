"""Compares Spark with raftmq and Spark with Kafka: ``make bench-spark-kafka``, a part of ``make bench-spark``.

The same rows (a key and 1 KiB, the same 16 bytes 64 times; neither side compresses), the same session of Spark with two
cores, in turns: Kafka with one broker, raftmq with one replica, and raftmq with three. Kafka acknowledges messages in
the page cache of its broker, raftmq messages that a majority has synced; both have their defaults otherwise, and eight
partitions or queues. The connector of Kafka comes from Maven and fits one version of Spark only, which is installed for
this case, so that both use it.

Every query runs once before it is measured. The columns are Kafka's: key, body, topic, queue, offset and time. The sums
of the checksums of all bodies are compared.

``python -m benchmarks.spark.kafka``; needs Java 17, PySpark, and Maven for the first time.
"""

from __future__ import annotations

import socket
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from benchmarks.load.frames import QUEUES, topic_name
from benchmarks.peers import kafka
from benchmarks.peers.consuming.clients import install_package
from benchmarks.procfs import load_average
from benchmarks.spark.process import QueryResult, SparkProcess
from benchmarks.spark.stages import seconds_of_stages
from benchmarks.suites.case_load import Arguments, Measure, Note, create_topics
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite
from benchmarks.wires.kafka import create_topic
from benchmarks.wires.wire import LoadFailed
from mq.local_cluster import HOST, DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK
from mq.monitoring.cpu_time import cpu_seconds
from tests.interop.clients import CACHE, BuildFailed, fetch_jars

SPARK_VERSION = "4.2.0"
"""The newest one for which Maven has the connector of Kafka."""
ROWS = 100_000
BODY_BYTES = 1024
ROUNDS = 2
BATCHES = 10
TOPICS = 1 + ROUNDS
"""The first one is for warming up."""
KAFKA = "Kafka"
_PYSPARK = f"pyspark=={SPARK_VERSION}"
_JARS = CACHE / f"spark-sql-kafka-{SPARK_VERSION}"


@dataclass
class Uses:
    """Durations and CPU seconds, of Spark and of the servers, of each query."""

    seconds: list[float] = field(default_factory=list)
    spark: list[float] = field(default_factory=list)
    servers: list[float] = field(default_factory=list)


@dataclass
class SparkSource:
    """A running system, and the options with which Spark reads it and writes to it.

    Attributes:
        reads: options for a topic, without its name; ``counts`` are further ones for counting.
        writes: options of the sink, without the topic's name; ``rows`` are its columns.
        body: the column with the body.
    """

    name: str
    source: str
    pids: Sequence[int]
    reads: Mapping[str, str]
    counts: Mapping[str, str]
    writes: Mapping[str, str]
    rows: Sequence[str]
    body: str
    used: dict[str, Uses] = field(default_factory=dict)

    def options(self, topic: str, **more: str) -> dict[str, str]:
        """Return the options that read a topic."""
        return {**self.reads, "subscribe": topic, **more}


async def measure_kafka(args: Arguments, directory: Path, note: Note) -> None:
    """Measure all cases with all systems in turns."""
    await trio.to_thread.run_sync(_prepare, directory / "kafka")
    rows = ROWS // (100 if args.quick else 1)
    jars = sorted((_JARS / "lib").glob("*.jar"))
    async with AsyncExitStack() as stack:
        spark = await stack.enter_async_context(SparkProcess.open(pyspark=CACHE / _PYSPARK, jars=jars))
        systems = [
            await stack.enter_async_context(_open_kafka(directory / "kafka")),
            await stack.enter_async_context(_open_raftmq(directory / "one", 1)),
            await stack.enter_async_context(_open_raftmq(directory / "three", 3)),
        ]
        files, few = str(directory / "rows"), str(directory / "few")
        await spark.ask("make", "", rows=rows, path=files)
        await spark.ask("make", "", rows=rows // 10, path=few)
        for number in range(TOPICS):
            for system in systems:
                await _write(spark, system, files if number else few, number)
        expected = await spark.ask("digest", "parquet", path=files, column="body")
        for system in systems:
            digest = await spark.ask("digest", system.source, system.options(topic_name(1)), column=system.body)
            assert (digest.rows, digest.digest) == (rows, expected.digest), f"{system.name} has other rows"
        for number in range(1 + ROUNDS):
            for system in systems:
                await _scan(spark, system, rows, is_measured=number > 0)
        for number in range(2):
            for system in systems:
                path = str(directory / f"checkpoint-{number}-{system.source}-{len(system.pids)}")
                await _stream(spark, system, rows, path, note if number else None)
        for what in ("sink", "scan", "count"):
            _report(what, systems, rows, note)
        await _report_stages(systems[-1], rows, note)
    note(Figure("machine", "load average at the end", load_average(), ""))


async def _report_stages(system: SparkSource, rows: int, note: Note) -> None:
    """Report the CPU time of the stages of a scan in the Python process, and of the replicas."""
    gigabytes = rows * BODY_BYTES / 1e9
    before = sum(map(cpu_seconds, system.pids))
    stages = await trio.to_thread.run_sync(seconds_of_stages, system.options(topic_name(1)))
    for name, seconds in stages.items():
        note(Figure("reader", f"CPU without Spark: {name}", seconds / gigabytes, "s/GB"))
    servers = (sum(map(cpu_seconds, system.pids)) - before) / len(stages)
    note(Figure("reader", "CPU of the replicas meanwhile", servers / gigabytes, "s/GB"))


async def _write(spark: SparkProcess, system: SparkSource, files: str, number: int) -> None:
    to = {"format": system.source, "mode": "append", "options": {**system.writes, "topic": topic_name(number)}}
    await _use(spark, system, "sink" if number else "", "copy", "parquet", {}, path=files, to=to, select=system.rows)


async def _scan(spark: SparkProcess, system: SparkSource, rows: int, *, is_measured: bool) -> None:
    topic = topic_name(1)
    await _use(spark, system, "scan" if is_measured else "", "scan", system.source, system.options(topic))
    options = system.options(topic, **system.counts)
    response = await _use(spark, system, "count" if is_measured else "", "count", system.source, options)
    assert response.rows == rows, f"{system.name} counts {response.rows} of {rows} rows"


async def _stream(spark: SparkProcess, system: SparkSource, rows: int, path: str, note: Note | None) -> None:
    limit = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(max(1, rows // BATCHES))}
    options = system.options(topic_name(1), **limit)
    batches = (await spark.ask("batches", system.source, options, path=path)).batches
    assert sum(each["rows"] for each in batches) == rows, f"{system.name}: a stream with other rows"
    if note is not None:
        whole = [each["ms"]["triggerExecution"] for each in batches if each["rows"]]
        beside = [each["ms"]["triggerExecution"] - each["ms"].get("addBatch", 0) for each in batches if each["rows"]]
        size = f"{system.name}: micro-batch of {rows // BATCHES:,} rows"
        note(Figure("batches", size, statistics.median(whole), "ms"))
        note(Figure("batches", f"{system.name}: of that, besides its rows", statistics.median(beside), "ms"))


async def _use(
    spark: SparkProcess,
    system: SparkSource,
    what: str,
    do: str,
    source: str,
    options: Mapping[str, str],
    **more: object,
) -> QueryResult:
    """Send one request to Spark; its cost is added to the uses of ``what``, if that is not empty."""
    before = spark.cpu_seconds(), sum(map(cpu_seconds, system.pids))
    response = await spark.ask(do, source, options, **more)
    if what:
        uses = system.used.setdefault(what, Uses())
        uses.seconds.append(response.seconds)
        uses.spark.append(spark.cpu_seconds() - before[0])
        uses.servers.append(sum(map(cpu_seconds, system.pids)) - before[1])
    return response


def _report(what: str, systems: Sequence[SparkSource], rows: int, note: Note) -> None:
    """Report rates and costs of each system, and raftmq's as multiples of Kafka's."""
    gigabytes = rows * BODY_BYTES / 1e9
    rates, costs = {}, {}
    for system in systems:
        uses = system.used[what]
        rates[system.name] = rows / statistics.median(uses.seconds)
        costs[system.name] = (statistics.median(uses.spark) / gigabytes, statistics.median(uses.servers) / gigabytes)
        if what == "count":
            note(Figure(what, f"{system.name}: rows counted", rates[system.name], "/s"))
        else:
            verb = "read" if what == "scan" else "written"
            note(Figure(what, f"{system.name}: bodies {verb}", rates[system.name] * BODY_BYTES / 1e6, "MB/s"))
        note(Figure(what, f"{system.name}: CPU of Spark", costs[system.name][0], "s/GB"))
        note(Figure(what, f"{system.name}: CPU of servers", costs[system.name][1], "s/GB"))
    for name in [each for each in rates if each != KAFKA]:
        rate, cost = rates[name] / rates[KAFKA], sum(costs[name]) / sum(costs[KAFKA])
        note(Figure(what, f"{name}: rate, beside Kafka", rate, "times", 1, is_limit=False))
        note(Figure(what, f"{name}: CPU of Spark and servers, beside Kafka", cost, "times", 1))


@asynccontextmanager
async def _open_kafka(directory: Path) -> AsyncIterator[SparkSource]:
    async with kafka.open_servers(directory, [1], _create_topics) as target:
        servers = {"kafka.bootstrap.servers": f"{target.address[0]}:{target.address[1]}"}
        yield SparkSource(
            name=KAFKA,
            source="kafka",
            pids=target.pids,
            reads=servers,
            counts={},
            writes=servers,
            rows=("cast(keys as binary) as key", "body as value"),
            body="value",
        )


def _create_topics(port: int) -> None:
    try:
        with socket.create_connection((HOST, port), timeout=10) as sock:
            for number in range(TOPICS):
                create_topic(sock, topic_name(number), QUEUES, [1], {})
    except LoadFailed as error:
        raise ConnectionError(str(error)) from error


@asynccontextmanager
async def _open_raftmq(directory: Path, nodes: int) -> AsyncIterator[SparkSource]:
    async with DevCluster.open(directory, nodes=nodes, ports=Ports.free(nodes), settings=ANY_DISK) as cluster:
        await create_topics(cluster, TOPICS, await cluster.leader())
        yield SparkSource(
            name="raftmq, one replica" if nodes == 1 else "raftmq, three replicas",
            source="raftmq",
            pids=[cluster.pid(node_id) for node_id in cluster.node_ids],
            reads={"namesrv": cluster.namesrv, "columns": "keys,body,topic,queue_id,queue_offset,store_timestamp"},
            counts={"columns": "queue_offset"},
            writes={"namesrv": cluster.namesrv},
            rows=("keys", "body"),
            body="body",
        )


def _prepare(directory: Path) -> None:
    """Download the files once, and create the directory of the servers of Kafka. Raises OSError."""
    if (reason := kafka.missing_programs()) is not None:
        raise OSError(reason)
    try:
        kafka.prepare()
        install_package(_PYSPARK)
        if not any((_JARS / "lib").glob("spark-sql-kafka-*.jar")):
            fetch_jars("spark-kafka.xml", {"spark.version": SPARK_VERSION}, _JARS)
    except BuildFailed as error:
        raise OSError(str(error)) from error
    directory.mkdir(parents=True)


CASES: dict[str, Measure] = {"kafka": measure_kafka}

SPARK_KAFKA = Suite("spark-kafka", __doc__, CASES)


if __name__ == "__main__":
    SPARK_KAFKA.main()
