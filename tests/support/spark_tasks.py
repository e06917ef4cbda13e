"""Reads of a whole topic, as a task of Spark reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import trio

from spark.bulk_offset_survey import BulkSurveyor
from spark.bulk_reader import BulkTaskReader
from spark.offset_survey import Survey
from spark.options import Topics
from spark.plan import LogRange, QueueRange, ReadFrom, replica_order
from spark.task_reader import TaskOptions


def survey(namesrv: str, topic: str = "T") -> Survey:
    surveyor = BulkSurveyor((namesrv,), 10.0, consistency="latest", detail=True)
    return surveyor.survey(Topics((topic,)))


def reader_of(
    namesrv: str, found: Survey, turn: int = 0, topic: str = "T", read_from: ReadFrom = "follower"
) -> BulkTaskReader:
    """Reads the whole topic, from the followers first."""
    [broker_name] = found.routes[topic].addresses
    ranges = tuple(
        QueueRange(queue_id, ends.first, ends.end) for (_, _, queue_id), ends in found.ends.items() if ends.end
    )
    replicas = replica_order(found.routes[topic].addresses[broker_name], 0, read_from, turn)
    options = TaskOptions(
        namesrv=(namesrv,),
        columns=("queue_id", "queue_offset", "body", "properties"),
        tags=None,
        read_from=read_from,
        keep_bad_bodies=False,
        on_data_loss="fail",
        fetch_bytes=512 * 1024,
        fetch_seconds=5.0,
        deadline_seconds=60.0,
        client_id="test",
    )
    part = LogRange(topic, found.identities[topic, broker_name], broker_name, ranges, replicas)
    return BulkTaskReader(part, options)


def rows_of(batches: Iterator[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await trio.to_thread.run_sync(partial(function, *arguments))
