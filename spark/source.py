"""The data source of Spark: ``spark.read.format("raftmq")``.

Spark creates these objects in several processes: the driver plans, executors read. They share no state, so all that a
task needs is in its partition and in the options of the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from spark.batch_plan import plan_batch
from spark.filters import Narrowing, narrow_all
from spark.options import OptionInvalid, ReadOptions, columns_in, parse_read_options, parse_write_options
from spark.schema import COLUMN_TYPES

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        InputPartition,
    )
    from pyspark.sql.types import (
        BinaryType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    from spark.partition_read import TopicPartition, read_partition
except ImportError as error:
    raise ImportError("the format raftmq needs PySpark 4.2 or later: pip install 'raftmq[spark]'") from error

FORMAT = "raftmq"


class RaftmqDataSource(DataSource):
    """Topics of raftmq, or of Apache RocketMQ, as tables."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns that the option ``columns`` names. Raises OptionInvalid."""
        # Spark calls this before it says whether this is a batch or a stream.
        return struct_of(columns_in(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Make a writer for a batch job."""
        from spark.sink import batch_writer

        return batch_writer(parse_write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Make a writer for the micro-batches of a stream."""
        from spark.sink import stream_writer

        return stream_writer(parse_write_options(self.options), schema, overwrite=overwrite)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make a batch reader for these columns, which a user may have given as the schema."""
        options = parse_read_options(self.options, "batch")
        # Spark refuses every reader that has `pushFilters` unless configured to allow it.
        kind = FilteringTopicReader if options.push_filters else TopicReader
        return kind(options, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Make a streaming reader for these columns."""
        from spark.stream import TopicStreamReader

        return TopicStreamReader(parse_read_options(self.options, "stream"), columns_of(schema))


class TopicReader(DataSourceReader):
    """Plans a scan on the driver, and reads a part of it on an executor."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        """The partitions of the scan; its end is fixed here. Raises as `plan_batch`."""
        parts = plan_batch(self._options, self._narrowing)
        return [TopicPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the messages of a partition as record batches."""
        from_earliest = self._options.start == "earliest"
        yield from read_partition(partition, self._options, self._columns, from_earliest=from_earliest)


class FilteringTopicReader(TopicReader):
    """Reads only messages that fulfil the conditions of a query on topic, broker group, queue and queue offset."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Accept the conditions that can be applied exactly; returns the others."""
        self._narrowing, remaining = narrow_all(filters)
        return remaining


def struct_of(names: tuple[str, ...]) -> StructType:
    """The schema of the named columns. (Not as a DDL string: Sail does not parse maps in it.)"""
    types = {
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "binary": BinaryType(),
        "timestamp": TimestampType(),
        "map<string,string>": MapType(StringType(), StringType()),
    }
    return StructType([StructField(name, types[COLUMN_TYPES[name]]) for name in names])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The names of a schema's columns. Raises OptionInvalid for an unknown one, or one of another type."""
    if not isinstance(schema, StructType):
        return tuple(schema.names)  # Sail passes the Arrow schema of `schema`'s result
    for field in schema.fields:
        kind = COLUMN_TYPES.get(field.name)
        if kind is None:
            raise OptionInvalid(f"there is no column {field.name!r}; there are {', '.join(COLUMN_TYPES)}")
        if field.dataType.simpleString() != kind:
            raise OptionInvalid(f"column {field.name} is {kind}, not {field.dataType.simpleString()}")
    return tuple(schema.names)
