"""Reads the partition of one Spark task, for batches and for streams."""

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
    """The messages that one task reads."""

    part: LogRange


def read_partition(
    partition: InputPartition, options: ReadOptions, columns: tuple[str, ...], *, from_earliest: bool = False
) -> Iterator[Any]:
    """Yield the messages of a partition as record batches.

    With ``from_earliest`` messages deleted between planning and the start of the task are not a loss. Raises DataLoss,
    ReadFailed, BodyUnreadable.
    """
    if not isinstance(partition, TopicPartition):
        return  # Spark gives an empty plan to one task as None
    from spark.reader_choice import task_reader  # numpy and pyarrow are for executors
    from spark.task_reader import task_options

    reader = task_reader(partition.part, task_options(options, columns, from_earliest=from_earliest))
    yield from reader.read()
    statistics = reader.statistics
    if statistics.skip_count:
        logging.getLogger(__name__).warning("%d messages of %s were deleted", statistics.skip_count, partition.part)
