"""Decides which columns a table must have for a pipeline and the columns of its messages. Pure."""

from __future__ import annotations

from spark.schema import COLUMN_TYPES
from spark.tables.column_types import ColumnType, Schema, compare, parse_type
from spark.tables.commits import Commit
from spark.tables.documents import format_list
from spark.tables.pipeline import POSITION_COLUMNS, PREFIX, Pipeline

TIMES = ("timestamp", "timestamp_ntz", "date")
_REMEDY = ": name it with such a type in decode.schema (inferred JSON has no times), or partition by _store_timestamp"


class SchemaInvalid(Exception):
    """Columns of a pipeline or its messages are impossible. The text names them and the reason. Nothing was written."""


def table_columns(pipeline: Pipeline, schema: Schema) -> dict[str, ColumnType]:
    """Return all columns that a pipeline writes: metadata first, then the columns of bodies.

    Raises SchemaInvalid if two have the same name, or the column to partition by is missing or no time.
    """
    columns: dict[str, ColumnType] = {
        alias: parse_type(COLUMN_TYPES[name]) for name, alias in pipeline.metadata_columns.items()
    }
    reserved_names = {name.lower() for name in columns}
    table = pipeline.table
    if table.partition_column is not None and table.format != "iceberg":
        reserved_names.add(table.partition_unit)
    for name, kind in schema.items():
        if name.lower() in reserved_names:
            raise SchemaInvalid(
                f"the name {name!r} of a field is also the name of a column that the pipeline adds: set decode.schema "
                f"without it, or leave the column out of metadata or partition_by"
            )
        columns[name] = kind
    if (column := table.partition_column) is not None:
        if column not in columns:
            raise SchemaInvalid(f"table.partition_by.column is {column!r}; there are {format_list(columns)}{_REMEDY}")
        kind = columns[column]
        if str(kind) not in TIMES:
            types = ", ".join(TIMES)
            raise SchemaInvalid(f"table.partition_by.column {column} is {kind}; it must be one of {types}{_REMEDY}")
        if (str(kind), table.partition_unit) == ("date", "hour"):
            raise SchemaInvalid(f"table.partition_by.column {column} is a date without hours: set the unit day")
    return columns


def check_kept(table_schema: Schema, schema: Schema, last: Commit, where: str) -> None:
    """Raises SchemaInvalid if a table has lost a column that its last commit has: added again, it would be null in all
    rows.
    """
    expected = {*last.schema, *(PREFIX + name for name in POSITION_COLUMNS)}
    if absent := [name for name in schema if name in expected and name not in table_schema]:
        raise SchemaInvalid(
            f"the table {where} no longer has column {absent[0]} of commit {last.number}: it was dropped or renamed. "
            f"Nothing was written; rename it back, or add it again, or write to a new table"
        )


def check_partition(unit: str | None, pipeline: Pipeline) -> None:
    """Raises SchemaInvalid if a table is partitioned otherwise than its pipeline says: readers could not tell which
    rows are where.

    Args:
        unit: the unit that the table has; None if it has none.
    """
    table = pipeline.table
    target = None if table.partition_column is None else table.partition_unit
    if unit != target:
        has = "has no partitions" if unit is None else f"is partitioned by {unit}"
        says = "is not set" if target is None else f"has the unit {target}"
        raise SchemaInvalid(
            f"the table {table.where} {has}, and table.partition_by {says}: a table cannot change that. Nothing was "
            f"written; set partition_by back, or write to a new table"
        )


def check_folder(folder: str | None, pipeline: Pipeline) -> None:
    """Check the table's partition by ``folder``, the folder of one of its files, such as ``day=2026-01-31``; None
    without files.
    """
    if folder is not None:
        check_partition(folder.partition("=")[0] or None, pipeline)


def added_columns(table_schema: Schema, schema: Schema, where: str) -> dict[str, ColumnType]:
    """Return the columns to add to a table. Raises SchemaInvalid, which names each column that would break."""
    difference = compare(table_schema, schema)
    if difference.reasons:
        problems = "; ".join(f"column {name}: {reason}" for name, reason in difference.reasons.items())
        raise SchemaInvalid(
            f"the table {where} cannot take these rows: {problems}. Nothing was written; set decode.schema to what the "
            f"table has, or write to a new table"
        )
    return difference.new_columns
