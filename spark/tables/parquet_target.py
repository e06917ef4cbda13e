"""Writes a pipeline's table as Parquet files in a directory; see `spark.tables.parquet_directory`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet
from pyspark.sql import functions as f

from spark.tables.column_types import Schema, parse_schema, quote_name
from spark.tables.commits import Commit
from spark.tables.frames import Messages, partition_rows
from spark.tables.layout import added_columns, check_folder, table_columns
from spark.tables.parquet_directory import DirectoryUnusable, ParquetDirectory, directory_url
from spark.tables.pipeline import Pipeline


class ParquetTarget:
    """A table of Parquet files in a directory; implements `loop.Target`."""

    def __init__(self, pipeline: Pipeline, directory: ParquetDirectory) -> None:
        self._pipeline = pipeline
        self._directory = directory
        self._last: Commit | None = None

    def open(self) -> Commit | None:
        """Lock the table, and complete the commit of a killed process. Raises SchemaInvalid for other partitions."""
        self._last = self._directory.open()
        check_folder(self._directory.folder(), self._pipeline)
        return self._last

    def last(self) -> Commit | None:
        """Return the last commit."""
        self._last = self._directory.last()
        return self._last

    def prepare(self, schema: Schema) -> None:
        """Prepare nothing: each file has its own columns. Raises SchemaInvalid if they do not fit."""
        table_columns(self._pipeline, schema)
        if self._last is not None:
            added_columns(parse_schema(self._last.schema), schema, self._pipeline.table.where)

    def create(self, schema: Schema, commit: Commit) -> None:
        """Make the first commit, without files. Raises Overtaken, DirectoryUnusable, SchemaInvalid."""
        table_columns(self._pipeline, schema)
        self._directory.commit(commit, self._directory.staging_of(commit))
        self._last = commit

    def commit(self, batch: Messages, commit: Commit) -> None:
        """Write files and the commit. Raises Overtaken, DirectoryUnusable."""
        rows: Any = batch.good()
        # A column that the pipeline now writes narrower keeps the type that the other files have.
        for name, kind in commit.schema.items():
            if name in batch.schema and str(batch.schema[name]) != kind:
                rows = rows.withColumn(name, f.col(quote_name(name)).cast(kind))
        rows, unit = partition_rows(rows, self._pipeline)
        staging = self._directory.staging_of(commit)
        if commit.messages > commit.dead:
            writer = rows.write.mode("error")
            if unit is not None:
                writer = writer.partitionBy(unit)
            writer.parquet(directory_url(staging))
        self._check_rows(staging, commit.messages - commit.dead)
        self._directory.commit(commit, staging)
        self._last = commit

    def _check_rows(self, staging: Path, row_count: int) -> None:
        """Raises DirectoryUnusable unless the files of all tasks are here: an executor on another machine writes into
        the directory of this path there, without any error.
        """
        count = sum(pyarrow.parquet.read_metadata(each).num_rows for each in staging.rglob("*.parquet"))
        if count != row_count:
            raise DirectoryUnusable(
                f"{staging} has {count} of the {row_count} rows that tasks wrote: nothing of this commit is in the "
                f"table. On a cluster, {self._directory.root} must be the same directory on all machines, "
                f"such as one of NFS"
            )

    def close(self) -> None:
        """Release the lock."""
        self._directory.close()
