"""The latest change of each key in a range of messages, and the statement that applies them to a table."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from spark.tables.column_types import quote_name
from spark.tables.decoding import DELETED, REASON, ROW
from spark.tables.loop import Stopped
from spark.tables.pipeline import POSITION_COLUMNS, PREFIX, Pipeline, Upsert

CHANGES: Final = "raftmq_changes"
_NUMBER: Final = "raftmq_number"


def latest_changes(frame: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Keep the latest change of each key, with all columns of the table and `DELETED`.

    Raises Stopped if a key's changes are in several queues and no column says which is later.
    """
    upsert = pipeline.upsert
    assert upsert is not None
    metadata = [f.col(name).alias(alias) for name, alias in pipeline.metadata_columns.items()]
    rows = frame.where(f.col(REASON).isNull()).select(*metadata, f.col(f"{ROW}.*"), f.col(DELETED))
    keys = [f.col(quote_name(name)) for name in upsert.key]
    if upsert.order is None:
        conflict = (
            rows.groupBy(*keys)
            .agg(f.count_distinct("_broker_name", "_queue_id").alias("queues"))
            .where("queues > 1")
            .first()
        )
        if conflict is not None:
            key = ", ".join(f"{name} {conflict[name]!r}" for name in upsert.key)
            raise Stopped(
                f"changes of the key {key} are in {conflict['queues']} queues: so the latest one is unknown. "
                f"None of them was committed. Send the changes of a key to one queue, or set upsert.order to a "
                f"column that grows with each change"
            )
    order = [] if upsert.order is None else [f.col(quote_name(upsert.order)).desc_nulls_last()]
    # Of equal ones in several queues none is later: the same one each time.
    place = [f.col(PREFIX + name).desc() for name in POSITION_COLUMNS]
    window = Window.partitionBy(*keys).orderBy(*order, *place)
    return rows.withColumn(_NUMBER, f.row_number().over(window)).where(f"{_NUMBER} = 1").drop(_NUMBER)


def merge_statement(table: str, columns: list[str], upsert: Upsert) -> str:
    """The MERGE that applies the changes in the view `CHANGES`. A change that is older than the table's row is left."""
    on = " AND ".join(f"t.{quote_name(name)} = s.{quote_name(name)}" for name in upsert.key)
    newer = ""
    if upsert.order is not None:
        order = quote_name(upsert.order)
        newer = f" AND (t.{order} IS NULL OR s.{order} >= t.{order})"
    updates = ", ".join(f"t.{quote_name(name)} = s.{quote_name(name)}" for name in columns)
    names = ", ".join(quote_name(name) for name in columns)
    values = ", ".join(f"s.{quote_name(name)}" for name in columns)
    return (
        f"MERGE INTO {table} t USING {CHANGES} s ON {on} "  # noqa: S608
        f"WHEN MATCHED AND s.{DELETED}{newer} THEN DELETE "
        f"WHEN MATCHED{newer} THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND NOT s.{DELETED} THEN INSERT ({names}) VALUES ({values})"
    )
