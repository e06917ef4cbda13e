"""The sink of Spark: ``frame.write.format("raftmq")`` and ``frame.writeStream.format("raftmq")``.

Rows are stored when a task has written them; there is nothing to commit, and nothing to roll back. `spark.numbering`
ensures that each is stored once.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mq.protocol.codes import ResponseCode
from spark.client import NameServers, ServerError, Unreachable
from spark.numbering import BATCH_MAX, WriteId
from spark.options import OptionInvalid, WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from spark.outgoing import SinkColumns

_REQUEST_SECONDS: Final = 10.0
_PLANNING_SECONDS: Final = 5.0
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_LOG: Final = logging.getLogger(__name__)


@dataclass
class TaskWritten(WriterCommitMessage):
    """A task's report about its rows; ``already_stored`` were stored by an earlier attempt."""

    rows: int
    already_stored: int


def batch_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> BatchWriter:
    """A writer for a batch job. Raises OptionInvalid."""
    columns = _plan_columns(options, schema, overwrite=overwrite)
    name, version = options.txn_app_id, options.txn_version
    job = WriteId(uuid.uuid4().hex, 0) if name is None or version is None else WriteId(name, version)
    return BatchWriter(options, columns, job)


def stream_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> StreamWriter:
    """A writer for the micro-batches of a streaming query. Raises OptionInvalid."""
    columns = _plan_columns(options, schema, overwrite=overwrite)
    if options.txn_app_id is not None:
        raise OptionInvalid(
            "options txnAppId and txnVersion are for batch writes: a streaming query is known by its checkpoint, and "
            "its micro-batches by their numbers"
        )
    return StreamWriter(options, columns)


class BatchWriter(DataSourceArrowWriter):
    """Writes the partitions of a batch job. All attempts of its tasks share one job, which is pickled with this
    object.
    """

    def __init__(self, options: WriteOptions, columns: SinkColumns, job: WriteId) -> None:
        self._options = options
        self._columns = columns
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition. Raises RowInvalid, WriteFailed."""
        return _write(self._options, self._columns, self._job, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the number of rows; all rows are stored already."""
        _log_rows("a batch job", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Keep the stored rows: run the job again with the same ``txnAppId`` and ``txnVersion``."""
        _LOG.warning("the write failed; the rows of %d tasks are stored, and of others some", _count(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the partitions of a streaming query's micro-batches."""

    def __init__(self, options: WriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition of the task's micro-batch. Raises RowInvalid, WriteFailed."""
        return _write(self._options, self._columns, _micro_batch(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the number of rows; all rows are stored already. The same micro-batch may be repeated."""
        _log_rows(f"micro-batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Keep the stored rows, which are recognized when the micro-batch is repeated."""
        _LOG.warning("micro-batch %d failed; the rows of %d tasks are stored", batchId, _count(messages))


def _plan_columns(options: WriteOptions, schema: StructType, *, overwrite: bool) -> SinkColumns:
    from spark.outgoing import sink_columns  # importing pyarrow takes time, and readers of other sources do not need it

    if overwrite:
        raise OptionInvalid(
            "topics are logs, nothing in them can be overwritten: write with mode('append') or outputMode('append')"
        )
    columns = sink_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], options.topic)
    if options.topic is not None:
        try:
            NameServers(options.namesrv, _PLANNING_SECONDS).route(options.topic)
        except ServerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise OptionInvalid(f"option topic: the topic {options.topic!r} cannot be written: {error}") from error
            raise OptionInvalid(f"option topic: the topic {options.topic!r} does not exist; create it first") from error
        except Unreachable as error:
            raise OptionInvalid(f"option namesrv: {error}") from error
    return columns


def _write(
    options: WriteOptions, columns: SinkColumns, job: WriteId, iterator: Iterator[pa.RecordBatch]
) -> WriterCommitMessage:
    from spark.writer import TaskWriter, WriterOptions

    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    writer_options = WriterOptions(
        namesrv=options.namesrv,
        columns=columns,
        codec=options.compression,
        in_flight_bytes_max=options.max_in_flight_bytes,
        request_seconds=_REQUEST_SECONDS,
        deadline_seconds=options.write_deadline_ms / 1000,
        client_id=options.client_id,
    )
    writer = TaskWriter(writer_options, job, context.partitionId()).write(iterator)
    _LOG.info("partition %d of %s: %s", context.partitionId(), job, writer)
    return TaskWritten(writer.rows, writer.already_stored)


def _micro_batch() -> WriteId:
    """The micro-batch of the running task. Spark reports it under undocumented names."""
    context = TaskContext.get()
    query = context and context.getLocalProperty(_QUERY_ID)
    batch = context and context.getLocalProperty(_BATCH_ID)
    if not query or not batch or not batch.isdecimal():
        raise RuntimeError(
            f"this version of Spark does not tell tasks to which micro-batch they belong: {_QUERY_ID} is {query!r}, "
            f"{_BATCH_ID} is {batch!r}; nothing was written"
        )
    if int(batch) > BATCH_MAX:
        raise RuntimeError(f"micro-batch {batch} is above the highest possible number, {BATCH_MAX}")
    return WriteId(query, int(batch))


def _count(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(message is not None for message in messages)


def _log_rows(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    task_results = [message for message in messages if isinstance(message, TaskWritten)]
    rows, already = sum(each.rows for each in task_results), sum(each.already_stored for each in task_results)
    _LOG.info("%s: %d rows are stored, %d of them were before", what, rows, already)
