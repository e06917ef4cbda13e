"""The columns of a table: which there must be for a pipeline and the columns of its messages. Pure."""

from __future__ import annotations

from spark.schema import COLUMN_TYPES
from spark.tables.column_types import ColumnType, Schema, change, parse_type
from spark.tables.documents import listed
from spark.tables.pipeline import Pipeline

TIMES = ("timestamp", "timestamp_ntz", "date")


class SchemaRefused(Exception):
    """Columns cannot be what a pipeline or its messages want; says which, and why. Nothing was written."""


def table_columns(pipeline: Pipeline, schema: Schema) -> dict[str, ColumnType]:
    """All columns that a pipeline writes: metadata first, then those of bodies.

    Raises SchemaRefused if two have the same name, or the column to partition by is missing or no time.
    """
    columns: dict[str, ColumnType] = {
        alias: parse_type(COLUMN_TYPES[name]) for name, alias in pipeline.metadata_columns.items()
    }
    reserved = {name.lower() for name in columns}
    table = pipeline.table
    if table.partition_column is not None and table.format != "iceberg":
        reserved.add(table.partition_unit)
    for name, kind in schema.items():
        if name.lower() in reserved:
            raise SchemaRefused(
                f"messages have a field {name!r}, and the pipeline adds a column of that name: set decode.schema "
                f"without it, or leave the column out of metadata or partition_by"
            )
        columns[name] = kind
    if (column := table.partition_column) is not None:
        if column not in columns:
            raise SchemaRefused(f"table.partition_by.column is {column!r}; there are {listed(columns)}")
        kind = columns[column]
        if str(kind) not in TIMES:
            raise SchemaRefused(f"table.partition_by.column {column} is {kind}; it must be one of {', '.join(TIMES)}")
    return columns


def added_columns(table: Schema, wanted: Schema, where: str) -> dict[str, ColumnType]:
    """What must be added to a table. Raises SchemaRefused, naming each column that would break."""
    found = change(table, wanted)
    if found.refused:
        said = "; ".join(f"column {name}: {reason}" for name, reason in found.refused.items())
        raise SchemaRefused(
            f"the table {where} cannot take these rows: {said}. Nothing was written; set decode.schema to what the "
            f"table has, or write to a new table"
        )
    return found.added
