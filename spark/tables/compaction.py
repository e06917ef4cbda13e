"""Rewrites the small files of a table into large ones (`raftmq table compact`)."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import SparkSession

from spark.tables.commits import Commit
from spark.tables.pipeline import Pipeline

RETAIN_SNAPSHOTS: Final = 20


class TableCommandRefused(Exception):
    """The kind of table does not support the command. The text names the alternative."""


def compact(
    spark: SparkSession, pipeline: Pipeline, target: Any, last: Commit, retain: int = RETAIN_SNAPSHOTS
) -> dict[str, Any]:
    """Rewrite small files into large ones, and let old snapshots expire, but not the position in the topic: ``last`` is
    the table's last commit, found by its ``target``. The newest ``retain`` snapshots stay in any case. Raises
    TableCommandRefused for Parquet.
    """
    table = pipeline.table
    if table.format == "parquet":
        raise TableCommandRefused(
            "a directory of Parquet files cannot be compacted while it is read: a reader would see rows twice, or not. "
            "Commit less often (trigger, max_messages_per_commit), or use delta or iceberg"
        )
    if table.format == "delta":
        name = "delta.`" + str(table.location).replace("`", "``") + "`"
        target.keep(last)  # first: each of the others may let Delta forget it
        row = spark.sql(f"OPTIMIZE {name}").first()
        spark.sql(f"VACUUM {name}")
        return {"rewritten": row["metrics"]["numFilesRemoved"], "added": row["metrics"]["numFilesAdded"]}
    catalog, _, rest = str(table.name).partition(".")
    row = spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{rest}')").first()
    snapshots = retain + target.snapshots_since_commit()
    spark.sql(f"CALL {catalog}.system.expire_snapshots(table => '{rest}', retain_last => {snapshots})")
    return {"rewritten": row["rewritten_data_files_count"], "added": row["added_data_files_count"]}
