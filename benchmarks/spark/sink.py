"""Measures a task of the Spark sink without Spark, with three replicas: rows per second, and CPU time per row.

Tasks are processes as in an executor; each writes its rows, prepared before, as Spark passes them. The cost of Spark
itself comes on top. The second line is the same rows once more: the cost of a replayed micro-batch.

``python -m benchmarks.spark.sink --rows 200000 --tasks 2``
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import trio

from benchmarks.procfs import load_average
from mq.cli.errors import run_trio
from mq.client import Admin
from mq.local_cluster import DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK
from mq.monitoring.cpu_time import cpu_seconds
from spark.numbering import WriteId
from spark.outgoing import Codec, sink_columns
from spark.writer import TaskWriter, WriterOptions, WrittenRows

ROWS_PER_BATCH = 10_000
"""The rows that Spark passes at once by default."""
TOPIC = "Out"


class Plan(NamedTuple):
    """The plan of a run: the rows of each task, the number of tasks, and the bodies."""

    rows: int
    tasks: int
    body_bytes: int
    codec: Codec


class Task(NamedTuple):
    """The rows that a task has written, and its CPU seconds."""

    written: WrittenRows
    cpu: float


def run_task(plan: Plan, namesrv: str, partition: int) -> Task:
    """Write the rows of one task. Returns what it wrote."""
    options = WriterOptions(
        namesrv=(namesrv,),
        columns=sink_columns([("body", "binary")], TOPIC),
        codec=plan.codec,
        in_flight_bytes_max=4 << 20,
        request_seconds=10.0,
        deadline_seconds=60.0,
        client_id="bench",
    )
    rows = plan.rows // plan.tasks
    noise = random.Random(partition).randbytes(plan.body_bytes + ROWS_PER_BATCH)
    bodies = [noise[at : at + plan.body_bytes] for at in range(ROWS_PER_BATCH)]
    whole = pa.record_batch([pa.array(bodies, pa.binary())], ["body"])
    batches = [whole.slice(0, min(ROWS_PER_BATCH, rows - at)) for at in range(0, rows, ROWS_PER_BATCH)]
    began = time.process_time()
    written_rows = TaskWriter(options, WriteId("bench", 0), partition).write(batches)
    return Task(written_rows, time.process_time() - began)


def run_tasks(plan: Plan, namesrv: str, pids: list[int]) -> Iterator[str]:
    """Write all rows twice. Yields a line about each time."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(plan.tasks) as pool:
        pool.starmap(run_task, [(plan._replace(rows=plan.tasks), namesrv, 1000 + n) for n in range(plan.tasks)])
        for what in ("written", "written again"):
            before, began = [cpu_seconds(pid) for pid in pids], time.perf_counter()
            tasks = pool.starmap(run_task, [(plan, namesrv, number) for number in range(plan.tasks)])
            seconds = time.perf_counter() - began
            brokers = [cpu_seconds(pid) - was for pid, was in zip(pids, before, strict=True)]
            rows = sum(task.written.rows for task in tasks)
            yield (
                f"{rows} rows of {plan.body_bytes} B {what} by {plan.tasks} tasks in {seconds:.2f} s: "
                f"{rows / seconds:,.0f} rows/s; us of CPU a row: tasks {sum(t.cpu for t in tasks) * 1e6 / rows:.1f}, "
                f"brokers {' + '.join(f'{cpu * 1e6 / rows:.1f}' for cpu in brokers)}; already stored "
                f"{sum(task.written.already_stored for task in tasks)}; "
                f"requests {sum(t.written.requests for t in tasks)}"
            )


async def main(plan: Plan) -> None:
    """Start three replicas and run the write tasks."""
    with tempfile.TemporaryDirectory(prefix="bench-sink-") as directory:
        async with DevCluster.open(Path(directory), ports=Ports.free(3), settings=ANY_DISK) as cluster:
            async with Admin(cluster.namesrv) as admin:
                await admin.create_topic(TOPIC, 8)
            leader = await cluster.leader()
            pids = [cluster.pid(node) for node in sorted(cluster.node_ids, key=lambda node: (node != leader, node))]
            print(f"load average {load_average():.1f} on {os.cpu_count()} processors; brokers: the leader first")
            lines = run_tasks(plan, cluster.namesrv, pids)
            while (line := await trio.to_thread.run_sync(next, lines, "")) != "":
                print(line, flush=True)
            print(f"load average {load_average():.1f}")


def parse_arguments(arguments: list[str]) -> Plan:
    """Parse the command line. Exits for unknown arguments."""
    parser = argparse.ArgumentParser(prog="benchmarks.spark.sink", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--codec", choices=("none", "zlib", "lz4", "zstd"), default="none")
    options = parser.parse_args(arguments)
    return Plan(options.rows, options.tasks, options.body_bytes, options.codec)


if __name__ == "__main__":
    run_trio(partial(main, parse_arguments(sys.argv[1:])))
