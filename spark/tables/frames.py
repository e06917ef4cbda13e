"""The messages of a range as a data frame, cached while they are counted, sent as dead letters and written."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from spark.tables.column_types import Schema, merge_schemas
from spark.tables.commits import assign_option, offsets_option
from spark.tables.decoding import REASON, ROW, decode_bodies, infer_columns
from spark.tables.loop import Range, RangeCounts
from spark.tables.pipeline import POSITION_COLUMNS, Pipeline

REASON_PROPERTY: Final = "RAFTMQ_TABLE_REASON"
SOURCE_PROPERTY: Final = "RAFTMQ_TABLE_SOURCE"
_REASON_CHARACTERS: Final = 500
_PROPERTIES_BYTES_MAX: Final = 24 * 1024
"""The most bytes of the message's properties; the sink takes 29 KiB, with the reason and the place."""
_BODY: Final = "coalesce(nullif(body, X''), X'20')"
"""Compacted topics have empty bodies, others do not take them: a space instead."""


class Messages:
    """The decoded messages of one range; implements `loop.Batch`."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, ranges: Range, schema: Schema) -> None:
        self._pipeline = pipeline
        decode = pipeline.decode
        self._source = _source(spark, pipeline, ranges)
        self._is_kept = decode.format == "json" and (decode.schema is None or decode.new_fields == "add")
        if self._is_kept:
            self._source = self._source.persist(StorageLevel.MEMORY_AND_DISK)
            # The file's columns are first, and win; the table refuses them if they changed in a way that breaks it.
            self.schema: Schema = infer_columns(
                self._source, merge_schemas(decode.schema or {}, schema), decode.new_fields == "add"
            )
        else:
            self.schema = decode.columns
        self.frame = decode_bodies(self._source, pipeline, self.schema).persist(StorageLevel.MEMORY_AND_DISK)

    def count(self) -> RangeCounts:
        """Count messages and bad ones of each queue, in one pass that also reads and decodes them."""
        rows = (
            self.frame.groupBy("broker_name", "queue_id")
            .agg(
                f.count(f.lit(1)).alias("messages"),
                f.min("queue_offset").alias("low"),
                f.max("queue_offset").alias("high"),
                f.count(REASON).alias("dead"),
                f.min(f.when(f.col(REASON).isNotNull(), f.struct("queue_offset", REASON))).alias("example"),
            )
            .collect()
        )
        queues = {(row["broker_name"], row["queue_id"]): (row["messages"], row["low"], row["high"]) for row in rows}
        example = next(
            (
                f"{row['broker_name']}:{row['queue_id']} offset {row['example'][0]}, {row['example'][1]}"
                for row in sorted(rows, key=lambda row: (row["broker_name"], row["queue_id"]))
                if row["example"] is not None
            ),
            None,
        )
        return RangeCounts(queues, sum(row["dead"] for row in rows), example)

    def good(self) -> DataFrame:
        """Return the rows of the table: metadata, and the columns of the body."""
        metadata = [f.col(name).alias(alias) for name, alias in self._pipeline.metadata_columns.items()]
        return self.frame.where(f.col(REASON).isNull()).select(*metadata, f.col(f"{ROW}.*"))

    def send_dead(self, app_id: str, version: int) -> None:
        """Send the bad messages with their reason, in the order of their positions: so each has the same number when
        that is repeated.
        """
        where = self._pipeline.dead_letters
        assert where is not None
        position = f.concat_ws(":", f.col("broker_name"), f.col("queue_id"), f.col("queue_offset"))
        reason = f.substring(_without_separators(f.col(REASON)), 1, _REASON_CHARACTERS)
        new_properties = f.create_map(
            f.lit(REASON_PROPERTY), reason, f.lit(SOURCE_PROPERTY), f.concat_ws(":", f.col("topic"), position)
        )
        nothing = f.expr("map()").cast("map<string,string>")
        properties = f.map_filter(
            f.coalesce(f.col("properties"), nothing),
            lambda name, _: (name != "") & ~name.isin(REASON_PROPERTY, SOURCE_PROPERTY),
        )
        # The sink refuses messages that no topic takes, and a refused dead letter would stop the pipeline for ever.
        is_small = f.octet_length(f.to_json(properties)) <= _PROPERTIES_BYTES_MAX
        properties = f.transform_values(
            f.when(is_small, properties).otherwise(nothing), lambda _, value: _without_separators(value)
        )
        (
            self.frame.where(f.col(REASON).isNotNull())
            .repartition(1)
            .sortWithinPartitions(*POSITION_COLUMNS)
            .select(f.expr(_BODY).alias("body"), f.map_concat(properties, new_properties).alias("properties"))
            .write.format("raftmq")
            .option("namesrv", self._pipeline.namesrv)
            .option("topic", where.topic)
            .option("clientId", f"table-{self._pipeline.name}")
            .option("txnAppId", app_id)
            .option("txnVersion", version)
            .option("compression", "zlib")  # a message that is decompressed here may be too large for brokers
            .mode("append")
            .save()
        )

    def close(self) -> None:
        """Remove cached frames from Spark. A stopped Spark has none; the failed caller reports why."""
        with suppress(Py4JError, PySparkException):
            self.frame.unpersist()
            if self._is_kept:
                self._source.unpersist()


def _source(spark: SparkSession, pipeline: Pipeline, ranges: Range) -> DataFrame:
    columns = [*pipeline.metadata, "topic", "body", "properties", *(() if pipeline.upsert is None else ("keys",))]
    return (
        spark.read.format("raftmq")
        .options(**pipeline.read_options())
        .option("assign", assign_option(ranges))
        .option("startingOffsets", offsets_option(ranges, 0))
        .option("endingOffsets", offsets_option(ranges, 1))
        .option("onBadBody", "fail" if pipeline.decode.format in ("raw", "text") else "keep")  # kept: a dead letter
        .option("columns", ",".join(dict.fromkeys(columns)))
        .load()
    )


def partition_rows(rows: DataFrame, pipeline: Pipeline) -> tuple[DataFrame, str | None]:
    """Add the column by which files are partitioned, and return its name. For tables without hidden partitions."""
    table = pipeline.table
    if table.partition_column is None:
        return rows, None
    pattern = {"hour": "yyyy-MM-dd-HH", "day": "yyyy-MM-dd", "month": "yyyy-MM"}[table.partition_unit]
    unit: str = table.partition_unit
    return rows.withColumn(unit, f.date_format(f.col(_quote(table.partition_column)), pattern)), unit


def _without_separators(text: Column) -> Column:
    """The text without the separators of properties."""
    return f.translate(text, "\x01\x02", "??")


def _quote(name: str) -> Any:
    return "`" + name.replace("`", "``") + "`"
