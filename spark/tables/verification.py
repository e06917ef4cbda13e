"""Compares a table with its topic: `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from spark.positions import parse_position
from spark.tables.column_types import parse_schema, quote_name
from spark.tables.commits import Commit
from spark.tables.compaction import TableCommandRefused
from spark.tables.frames import Messages, partition_rows
from spark.tables.loop import Range
from spark.tables.parquet_directory import OWN, directory_pattern
from spark.tables.pipeline import Pipeline
from spark.tables.topic import TopicSource

_PLACE: Final = ("_broker_name", "_queue_id")
DIFFERENCES_MAX: Final = 10
"""Rows of each queue that are named."""


def table_rows(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """The rows of a pipeline's table."""
    table = pipeline.table
    if table.is_in_bucket:
        from spark.tables.object_target import object_rows

        return object_rows(spark, pipeline)
    if table.format == "parquet":
        reader = spark.read.option("mergeSchema", "true").option("pathGlobFilter", "*.parquet")
        return reader.parquet(directory_pattern(Path(str(table.location))))
    if table.format == "iceberg":
        return spark.table(str(table.name))
    return spark.read.format("delta").load(str(table.location))


def compare(spark: SparkSession, pipeline: Pipeline, commit: Commit, ranges: Range) -> list[dict[str, Any]]:
    """Compare the rows of a range with its messages, queue by queue: their number, and a checksum over all columns.

    Messages are decoded with the columns that the table's commits have; messages that do not decode have no row.
    Returns one entry for each queue, with the first differences. Raises TableCommandRefused.
    """
    if pipeline.upsert is not None:
        raise TableCommandRefused("verify does not support tables with upserts: their rows are keys, not messages")
    batch = Messages(spark, pipeline, ranges, parse_schema(commit.schema))
    try:
        counts = batch.count()
        target_rows = batch.good() if pipeline.table.format == "iceberg" else partition_rows(batch.good(), pipeline)[0]
        rows = table_rows(spark, pipeline) if _has_rows(pipeline) else target_rows.limit(0)
        names = target_rows.columns
        for name in set(names).difference(rows.columns):  # dropped or renamed: as if it were null in all rows
            rows = rows.withColumn(name, f.lit(None).cast(target_rows.schema[name].dataType))
        types = {field.name: field.dataType for field in rows.schema.fields}
        target_rows = target_rows.select(*[f.col(quote_name(name)).cast(types[name]).alias(name) for name in names])
        rows = _within(rows, ranges).select(*[f.col(quote_name(name)) for name in names])
        expected, actual = _sums(target_rows, names), _sums(rows, names)
        differences = {} if expected == actual else _differences(target_rows, rows, names)
    finally:
        batch.close()
    return [
        {
            "broker_name": name,
            "queue_id": number,
            "begin": low,
            "end": high,
            "messages": counts.queues.get((name, number), (0, 0, 0))[0],
            "rows_expected": expected.get((name, number), (0, 0))[0],
            "rows_found": actual.get((name, number), (0, 0))[0],
            "equal": expected.get((name, number), (0, 0)) == actual.get((name, number), (0, 0)),
            "differences": differences.get((name, number), []),
        }
        for (_, name, number), (low, high) in ranges.items()
    ]


def kept_ranges(pipeline: Pipeline, commit: Commit) -> Range:
    """The messages of a table that the topic still has, by queue: from the later of the topic's first message and the
    table's beginning up to the last commit.
    """
    source = TopicSource(pipeline, is_once=True)
    try:
        beginning = source.earliest()
    finally:
        source.close()
    low, began = parse_position(beginning).offsets, parse_position(commit.begin).offsets
    ends = parse_position(commit.end).offsets
    ranges = {queue: (max(low.get(queue, 0), began.get(queue, 0)), end) for queue, end in sorted(ends.items())}
    return {queue: bounds for queue, bounds in ranges.items() if bounds[0] < bounds[1]}


def _has_rows(pipeline: Pipeline) -> bool:
    if pipeline.table.format != "parquet" or pipeline.table.is_in_bucket:
        return True
    root = Path(str(pipeline.table.location))
    return any(path.relative_to(root).parts[0] != OWN for path in root.rglob("*.parquet"))


def _sums(rows: DataFrame, names: list[str]) -> dict[tuple[str, int], tuple[int, int]]:
    sums = rows.groupBy(*_PLACE).agg(f.count(f.lit(1)).alias("rows"), f.sum(_hash(rows, names)).alias("sum"))
    return {(row[0], row[1]): (row["rows"], int(row["sum"])) for row in sums.collect()}


def _differences(
    expected: DataFrame, actual: DataFrame, names: list[str]
) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """The first rows of each queue that differ, with their differences."""
    place = [*_PLACE, "_queue_offset"]

    def sum_rows(rows: DataFrame, side: str) -> DataFrame:
        total = f.sum(_hash(rows, names)).alias(f"{side}_sum")
        return rows.groupBy(*place).agg(f.count(f.lit(1)).alias(f"{side}_rows"), total)

    both = sum_rows(expected, "wanted").join(sum_rows(actual, "found"), place, "full_outer")
    unequal = both.where("NOT (wanted_rows <=> found_rows AND wanted_sum <=> found_sum)")
    number = f.row_number().over(Window.partitionBy(*_PLACE).orderBy("_queue_offset"))
    first = unequal.withColumn("number", number).where(f"number <= {DIFFERENCES_MAX}").orderBy(*place).collect()
    differences: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in first:
        if row["found_rows"] is None:
            what = "the row is missing"
        elif row["wanted_rows"] is None:
            what = "there is a row, and the message does not decode"
        elif row["found_rows"] > row["wanted_rows"]:
            what = f"the row is there {row['found_rows']} times"
        else:
            what = "the row differs from the message"
        differences.setdefault((row[0], row[1]), []).append({"queue_offset": row["_queue_offset"], "what": what})
    return differences


def _hash(rows: DataFrame, names: list[str]) -> Column:
    # Maps have no hash; as text they have.
    plain = [f.to_json(f.col(quote_name(name))) if _has_map(rows, name) else f.col(quote_name(name)) for name in names]
    return f.xxhash64(*plain).cast("decimal(38,0)")


def _has_map(rows: DataFrame, name: str) -> bool:
    return "map<" in rows.schema[name].dataType.simpleString()


def _within(rows: DataFrame, ranges: Range) -> DataFrame:
    condition = f.lit(False)
    for (_, name, number), (low, high) in ranges.items():
        place = (f.col("_broker_name") == name) & (f.col("_queue_id") == number)
        condition = condition | (place & f.col("_queue_offset").between(low, high - 1))
    return rows.where(condition)
