"""Tells how far a table is behind its topic, from the table's last commit and the brokers; without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from spark.batch_plan import plan_batch
from spark.filters import Narrowing
from spark.option_table import QueueName
from spark.options import parse_read_options
from spark.reader_choice import task_reader
from spark.tables.commits import (
    Commit,
    assign_option,
    check_owner,
    identity,
    messages_between,
    offsets_option,
    parse_commit,
)
from spark.tables.parquet_directory import ParquetDirectory
from spark.tables.pipeline import Pipeline
from spark.tables.state_directory import StateDirectory
from spark.tables.topic import TopicSource
from spark.task_reader import task_options

_DEADLINE: Final = "10s"


def known_commit(pipeline: Pipeline) -> Commit | None:
    """Return the last commit as far as known without Spark: of Parquet exactly, of Delta and Iceberg as this machine's
    last run noted.

    Raises CommitRefused, DirectoryUnusable.
    """
    if pipeline.table.is_in_bucket:
        from spark.tables.object_directory import ObjectDirectory

        bucket = ObjectDirectory(str(pipeline.table.location), pipeline.table.endpoint_url)
        try:
            return bucket.last()
        finally:
            bucket.close()
    if pipeline.table.format == "parquet":
        assert pipeline.table.location is not None
        return ParquetDirectory(pipeline.state.parent).last()
    note = StateDirectory(pipeline.state).last_note()
    return None if note is None else parse_commit(json.dumps(note["commit"]), str(pipeline.state))


def table_status(pipeline: Pipeline, now_ms: int) -> dict[str, Any]:
    """The status that `raftmq table status` prints.

    Raises CommitRefused, DirectoryUnusable; Stopped, DataLoss, ReadFailed, Unreachable, ServerError, PlanInvalid.
    """
    commit = known_commit(pipeline)
    check_owner(commit, identity(pipeline.name, pipeline.topic), pipeline.table.where)
    lag: dict[QueueName, tuple[int, int]] = {}
    seconds: float | None = None
    if commit is not None:
        source = TopicSource(pipeline, is_once=True, deadline=_DEADLINE)
        try:
            source.latest(dict(commit.end))
            newest = source.newest()
        finally:
            source.close()
        assert newest is not None, "`latest` has looked"
        lag = messages_between(commit.end, newest)
        oldest = _oldest_ms(pipeline, lag)
        seconds = 0.0 if oldest is None else max(0.0, (now_ms - oldest) / 1000)
    return {
        "pipeline": pipeline.name,
        "topic": pipeline.topic,
        "table": pipeline.table.where,
        "format": pipeline.table.format,
        "running": StateDirectory(pipeline.state).is_running(),
        "commit": None if commit is None else commit.number,
        "committed_at_ms": None if commit is None else commit.at_ms,
        "lag_messages": None if commit is None else sum(high - low for low, high in lag.values()),
        "lag_seconds": seconds,
        "queues": [
            {"broker_name": name, "queue_id": number, "next_offset": low, "end_offset": high}
            for (_, name, number), (low, high) in lag.items()
        ],
    }


def _oldest_ms(pipeline: Pipeline, lag: Mapping[QueueName, tuple[int, int]]) -> int | None:
    """The time at which the oldest message that is not in the table was stored; None if there is none."""
    if not lag:
        return None
    firsts = {queue: (low, low + 1) for queue, (low, _) in lag.items()}
    options = parse_read_options(
        {
            **pipeline.read_options(),
            "readDeadline": _DEADLINE,
            "assign": assign_option(firsts),
            "startingOffsets": offsets_option(firsts, 0),
            "endingOffsets": offsets_option(firsts, 1),
        },
        "batch",
    )
    columns = ("store_timestamp",)
    times = [
        int(each.timestamp() * 1000)
        for part in plan_batch(options, Narrowing())
        for batch in task_reader(part, task_options(options, columns)).read()
        for each in batch.column(0).to_pylist()
    ]
    return min(times, default=None)
