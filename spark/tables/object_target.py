"""Writes a pipeline's table as Parquet objects in S3 storage; see `spark.tables.object_directory`.

Tasks write the objects themselves, with pyarrow and the client that the archive uses. So the table needs no packages of
Hadoop, and credentials are found where they are found for the archive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark.tables.arrow_rows import arrow_type
from spark.tables.column_types import Primitive, Schema, ddl, parse_schema, quote_name
from spark.tables.commits import Commit
from spark.tables.frames import Messages, partition_rows
from spark.tables.layout import added_columns, check_folder, table_columns
from spark.tables.object_directory import ObjectDirectory
from spark.tables.object_files import read_objects, write_objects
from spark.tables.pipeline import Pipeline

_WRITTEN: Final = "name string, nbytes bigint"
_READ_PARTS: Final = 16


class ObjectTarget:
    """A table of Parquet objects in S3 storage; implements `loop.Target`."""

    def __init__(self, pipeline: Pipeline, directory: ObjectDirectory) -> None:
        self._pipeline = pipeline
        self._directory = directory
        self._last: Commit | None = None

    def open(self) -> Commit | None:
        """Complete the commit of a killed process. Raises SchemaInvalid for other partitions."""
        self._last = self._directory.open()
        check_folder(self._directory.folder(), self._pipeline)
        return self._last

    def last(self) -> Commit | None:
        """Return the last commit."""
        self._last = self._directory.last()
        return self._last

    def prepare(self, schema: Schema) -> None:
        """Prepare nothing: each object has its own columns. Raises SchemaInvalid if they do not fit."""
        table_columns(self._pipeline, schema)
        if self._last is not None:
            added_columns(parse_schema(self._last.schema), schema, self._pipeline.table.where)

    def create(self, schema: Schema, commit: Commit) -> None:
        """Make the first commit, without objects. Raises Overtaken, DirectoryUnusable, SchemaInvalid."""
        table_columns(self._pipeline, schema)
        self._directory.commit(commit, ())
        self._last = commit

    def commit(self, batch: Messages, commit: Commit) -> None:
        """Write objects and the commit. Raises Overtaken, DirectoryUnusable."""
        rows: Any = batch.good()
        # A column that the pipeline now writes narrower keeps the type that the other objects have.
        for name, kind in commit.schema.items():
            if name in batch.schema and str(batch.schema[name]) != kind:
                rows = rows.withColumn(name, f.col(quote_name(name)).cast(kind))
        rows, unit = partition_rows(rows, self._pipeline)
        new_files: list[tuple[str, int]] = []
        if commit.messages > commit.dead:
            url = self._directory.staging_of(commit)
            endpoint_url = self._pipeline.table.endpoint_url

            def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                context = TaskContext.get()
                assert context is not None, "Spark calls this in a task"
                # An attempt that Spark gave up leaves objects that no commit names.
                name = f"{context.partitionId():05}-{context.taskAttemptId()}"
                for file in write_objects(batches, url, endpoint_url, name, unit):
                    yield pa.RecordBatch.from_pydict({"name": [file[0]], "nbytes": [file[1]]})

            new_files = [(row["name"], row["nbytes"]) for row in rows.mapInArrow(write, _WRITTEN).collect()]
        self._directory.commit(commit, new_files)
        self._last = commit

    def close(self) -> None:
        """Close connections."""
        self._directory.close()


def object_rows(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """Return the rows of the table. Raises CommitRefused, DirectoryUnusable."""
    table = pipeline.table
    url, endpoint_url, unit = str(table.location), table.endpoint_url, None
    directory = ObjectDirectory(url, endpoint_url)
    try:
        last, names = directory.last(), directory.files()
    finally:
        directory.close()
    columns = table_columns(pipeline, {} if last is None else parse_schema(last.schema))
    if table.partition_column is not None:
        unit = table.partition_unit
        columns[unit] = Primitive("string")
    schema = pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()])

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        file_names = (name for batch in batches for name in batch.column(0).to_pylist())
        yield from read_objects(file_names, url, endpoint_url, schema, unit)

    frame = spark.createDataFrame([(name,) for name in names], "name string")
    return frame.repartition(max(1, min(_READ_PARTS, len(names)))).mapInArrow(read, ddl(columns))
