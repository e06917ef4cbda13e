"""Measures by stage, without Spark, the CPU time of a task that reads a topic: for the case ``scan``.

The same reader as in Spark's Python processes, in a thread of this one, three times: it only receives and checks, it
also makes columns, and it also writes them in Arrow's format for streams, as Spark has them sent to the JVM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from spark.batch_plan import plan_batch
from spark.bulk_reader import BulkTaskReader
from spark.columns import schema_of
from spark.filters import Narrowing
from spark.options import columns_in, parse_read_options
from spark.plan import LogRange
from spark.task_reader import Chunk, TaskOptions, task_options


class _Receiver(BulkTaskReader):
    """A reader that only receives and checks records, and makes no columns."""

    def _batches(self, chunk: Chunk, *, without_bodies: bool = False) -> Iterator[Any]:
        return iter(())


def _receive(part: LogRange, options: TaskOptions) -> None:
    for _ in _Receiver(part, options).read():
        pass


def _make_columns(part: LogRange, options: TaskOptions) -> None:
    for _ in BulkTaskReader(part, options).read():
        pass


def _write_stream(part: LogRange, options: TaskOptions) -> None:
    with open("/dev/null", "wb") as sink, pa.ipc.new_stream(sink, schema_of(options.columns)) as stream:
        for batch in BulkTaskReader(part, options).read():
            stream.write_batch(batch)


STAGES: dict[str, Callable[[LogRange, TaskOptions], None]] = {
    "receive and check": _receive,
    "and make columns": _make_columns,
    "and write Arrow's stream": _write_stream,
}


def seconds_of_stages(reader_options: dict[str, str]) -> dict[str, float]:
    """Return the CPU seconds of a scan by stage. Each stage includes the ones before it."""
    options = parse_read_options(reader_options, "batch")
    parts = plan_batch(options, Narrowing())
    tasks = task_options(options, columns_in(reader_options))
    seconds = {}
    for name, run in STAGES.items():
        began = time.thread_time()
        for part in parts:
            run(part, tasks)
        seconds[name] = time.thread_time() - began
    return seconds
