"""The read of one Spark task: the same for batches and for streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition

from spark.options import ReadOptions
from spark.plan import LogRange


@dataclass
class TopicPartition(InputPartition):
    """What one task reads."""

    part: LogRange


def read_partition(
    partition: InputPartition, options: ReadOptions, columns: tuple[str, ...], *, from_earliest: bool = False
) -> Iterator[Any]:
    """The messages of a partition as record batches.

    With ``from_earliest`` messages deleted between planning and the start of the task are no loss. Raises DataLoss,
    ReadFailed, BodyUnreadable.
    """
    if not isinstance(partition, TopicPartition):
        return  # Spark gives an empty plan to one task as None
    from spark.bulk_reader import task_reader  # numpy and pyarrow are for executors
    from spark.reader import TaskOptions

    reader = task_reader(
        partition.part,
        TaskOptions(
            namesrv=options.namesrv,
            columns=columns,
            tags=tags_of(options.tags),
            read_from=options.read_from,
            keep_bad_bodies=options.on_bad_body == "keep",
            on_data_loss="fail" if options.fail_on_data_loss else "skip",
            fetch_bytes=options.fetch_bytes,
            fetch_seconds=options.fetch_timeout_ms / 1000,
            deadline_seconds=options.read_deadline_ms / 1000,
            client_id=options.client_id,
            read_mode=options.read_mode,
            from_earliest=from_earliest,
        ),
    )
    yield from reader.read()
    done = reader.statistics
    if done.skipped:
        logging.getLogger(__name__).warning("%d messages of %s were deleted", done.skipped, partition.part)


def tags_of(expression: str) -> tuple[str, ...] | None:
    """The tags of an expression such as ``A || B``; None for all messages."""
    if expression == "*":
        return None
    return tuple(sorted({tag.strip() for tag in expression.split("||") if tag.strip()}))
