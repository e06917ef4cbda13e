"""Reads topics as a stream for Spark: ``spark.readStream.format("raftmq")``.

Spark creates one reader in a process that lives as long as the query, and another one whose copies read on executors:
they share no state, so all that a task needs is in its partition and in the options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark.options import ReadOptions
from spark.partition_read import TopicPartition, read_partition
from spark.stream_progress import StreamProgress

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    raise ImportError("streams of raftmq need PySpark 4.2 or later: pip install 'raftmq[spark]'") from error


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the micro-batches of a query."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._stream_progress: StreamProgress | None = None

    @property
    def _progress(self) -> StreamProgress:
        # Created on first use: this object is pickled before.
        if self._stream_progress is None:
            self._stream_progress = StreamProgress(self._options)
        return self._stream_progress

    def initialOffset(self) -> dict[str, Any]:
        """Return the position where a new query begins. Raises PlanInvalid, Unreachable, ServerError."""
        return self._progress.beginning()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tell Spark that reads are limited. `latestOffset` applies all limits; Spark can represent only one."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the next batch's end. Raises DataLoss, ClusterChanged, PositionInvalid, Unreachable, ServerError."""
        return self._progress.latest(start, is_limited=not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of all queues, from which Spark computes the query's lag."""
        return self._progress.newest()

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end with the messages that are stored now. Raises Unreachable, ServerError."""
        self._progress.end_here()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts that the tasks of a micro-batch read. Raises as `latestOffset`."""
        return [TopicPartition(part) for part in self._progress.partitions(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        """Record that a micro-batch is complete."""
        self._progress.on_finish(end)

    def stop(self) -> None:
        """Release connections and state at the end of the query."""
        if self._stream_progress is not None:
            self._stream_progress.stop()
            self._stream_progress = None

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the messages of a partition as record batches. Raises DataLoss, ReadFailed, BodyUnreadable."""
        yield from read_partition(partition, self._options, self._columns)
