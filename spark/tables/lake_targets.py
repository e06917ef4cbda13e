"""Writes tables of Apache Iceberg and Delta Lake. Rows and the position in the topic are one commit of the table.

The commit is in the table's own metadata: with Iceberg in the summary of the snapshot, with Delta in the user metadata
of the version. So a table that is rolled back or restored has the position that fits its rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark.tables.column_types import ColumnType, Schema, columns_from_spark, ddl, quote_name
from spark.tables.commits import Commit, CommitRefused, Overtaken, lineage, parse_commit
from spark.tables.decoding import DELETED
from spark.tables.frames import Messages, partition_rows
from spark.tables.layout import added_columns, check_kept, check_partition, table_columns
from spark.tables.parquet_directory import DirectoryUnusable
from spark.tables.pipeline import UNITS, Pipeline
from spark.tables.shared_location import check_shared
from spark.tables.upserts import CHANGES, latest_changes, merge_statement

PROPERTY: Final = "raftmq.commit"
SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""The errors of a statement: PySpark translates only errors of Spark itself, and none of a table format."""
_FIRST_LOOK: Final = 20
_CONFLICTS: Final = (
    "Found conflicting files",
    "CommitFailedException",
    "ConcurrentTransactionException",
    "ConcurrentAppendException",
    "ConcurrentWriteException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "MetadataChangedException",
    "not an ancestor of",
)
_DENIED: Final = (
    "Permission denied",
    "AccessDenied",
    "Access Denied",
    "AccessControlException",
    "Forbidden",
    "Status Code: 403",
)


class LakeTarget:
    """The common part of the Iceberg and Delta targets; implements `loop.Target`."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._last: Commit | None = None

    @property
    def _sql_name(self) -> str:
        raise AssertionError("the table format must define _sql_name")

    @property
    def _where(self) -> str:
        """The table, and where its files are, as far as the pipeline's file says so."""
        return self._pipeline.table.where

    def _exists(self) -> bool:
        raise AssertionError("the table format must define _exists")

    def _load_last(self) -> Commit | None:
        raise AssertionError("the table format must define _found")

    def _make(self, columns: Schema) -> None:
        raise AssertionError("the table format must define _make")

    def _append(self, rows: DataFrame, commit: Commit) -> None:
        raise AssertionError("the table format must define _append")

    def _merge(self, statement: Callable[[str], str], commit: Commit) -> None:
        raise AssertionError("the table format must define _merge")

    def _check(self, last: Commit | None) -> None:
        """Raises SchemaInvalid for a table that cannot be the pipeline's."""

    def _location_of_files(self) -> str:
        raise AssertionError("the table format must define _location_of_files")

    def _has_rows(self) -> bool:
        return bool(self._spark.table(self._sql_name).limit(1).count())

    def open(self) -> Commit | None:
        """Find the last commit. Raises CommitRefused for a table with rows that no pipeline wrote."""
        with self._translated_errors("reading"):
            if not self._exists():
                return None
            last = self._load_last()
            if last is None and self._has_rows():
                raise CommitRefused(
                    f"the table {self._pipeline.table.where} has rows but no commit of a pipeline: it belongs to "
                    f"another program, or the snapshot with the position was expired. Nothing was written; choose a "
                    f"new table, or an empty one"
                )
            self._check(last)
        self._last = last
        return last

    def last(self) -> Commit | None:
        """Return the last commit."""
        with self._translated_errors("reading"):
            self._last = self._load_last() if self._exists() else None
        return self._last

    def create(self, schema: Schema, commit: Commit) -> None:
        """Create the table if it does not exist, with the first commit."""
        columns = table_columns(self._pipeline, schema)
        with self._translated_errors("creating"):
            if not self._exists():
                self._make(columns)
            else:
                self.prepare(schema)
            self._load_last()
            self._append(self._spark.createDataFrame([], ddl(self._columns())), commit)
            self._last = self._load_last()  # the next commit is checked against this one

    def prepare(self, schema: Schema) -> None:
        """Add new columns. Raises SchemaInvalid."""
        columns, there = table_columns(self._pipeline, schema), self._columns()
        if self._last is not None:
            check_kept(there, columns, self._last, self._pipeline.table.where)
        new_columns = added_columns(there, columns, self._pipeline.table.where)
        if new_columns:
            with self._translated_errors("changing the columns of"):
                self._spark.sql(f"ALTER TABLE {self._sql_name} ADD COLUMNS ({ddl(new_columns)})")

    def commit(self, batch: Messages, commit: Commit) -> None:
        """Append or merge the rows, together with the commit. Raises Overtaken."""
        try:
            with self._translated_errors("writing"):
                check_shared(self._spark.sparkContext, self._location_of_files)
                if self._pipeline.upsert is None:
                    self._append(self._complete(batch.good()), commit)
                else:
                    upsert, columns = self._pipeline.upsert, list(self._columns())
                    changes = self._complete(latest_changes(batch.frame, self._pipeline), DELETED)
                    changes.createOrReplaceTempView(CHANGES)
                    self._merge(lambda table: merge_statement(table, columns, upsert), commit)
        except (*SPARK_ERRORS, DirectoryUnusable):
            # The answer may have been lost after a success.
            if self._is_last(commit):
                return
            raise
        if not self._is_last(commit):
            raise Overtaken(f"commit {commit.number} of {self._pipeline.table.where} was made by another process")

    def close(self) -> None:
        """Do nothing: the target holds no resources."""

    def _is_last(self, commit: Commit) -> bool:
        last = self.last()
        return last is not None and (last.run, last.number) == (commit.run, commit.number)

    def _columns(self) -> dict[str, ColumnType]:
        return columns_from_spark(json.loads(self._spark.table(self._sql_name).schema.json()))

    def _complete(self, rows: DataFrame, *more: str) -> DataFrame:
        """Rows with all columns of the table, in its order, and ``more``."""
        there = {name.lower(): name for name in rows.columns}
        return rows.select(*[
            f.col(quote_name(there[name.lower()])).alias(name)
            if name.lower() in there
            else f.lit(None).cast(str(kind)).alias(name)
            for name, kind in self._columns().items()
        ], *more)  # fmt: skip

    @contextmanager
    def _translated_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except SPARK_ERRORS as error:
            message = str(error)
            if any(each in message for each in _CONFLICTS):
                raise Overtaken(message.splitlines()[0]) from error
            if any(each in message for each in _DENIED):
                line = next(line.strip() for line in message.splitlines() if any(each in line for each in _DENIED))
                raise DirectoryUnusable(
                    f"{action} the table {self._where} is not allowed: {line.removeprefix('Caused by: ')}; nothing of "
                    f"this commit is in the table"
                ) from error
            raise

    @contextmanager
    def _set(self, settings: dict[str, str]) -> Iterator[None]:
        for name, value in settings.items():
            self._spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                self._spark.conf.unset(name)


class IcebergTarget(LakeTarget):
    """A table of an Iceberg catalog.

    An append is validated against the snapshot in which the last commit was found: data that any program added since
    then is a conflict. A merge is made in a branch, to which the table is then moved forward, which fails if it has
    moved meanwhile.
    """

    _snapshot: int | None = None

    @property
    def _sql_name(self) -> str:
        assert self._pipeline.table.name is not None
        return self._pipeline.table.name

    @property
    def _where(self) -> str:
        warehouse = self._pipeline.spark.get(f"spark.sql.catalog.{self._sql_name.partition('.')[0]}.warehouse")
        return self._sql_name + (f" in {warehouse}" if warehouse else "")

    def _exists(self) -> bool:
        catalog, *rest = self._sql_name.split(".")
        setting = f"spark.sql.catalog.{catalog}"
        if len(rest) > 1 and self._spark.conf.get(setting, None) is None:
            raise CommitRefused(
                f"Spark does not know the catalog {catalog} of the table {self._sql_name}: set spark: {{{setting}: "
                f"org.apache.iceberg.spark.SparkCatalog, {setting}.type: ...}}"
            )
        return bool(self._spark.catalog.tableExists(self._sql_name))

    def _load_last(self) -> Commit | None:
        rows = self._history()
        self._snapshot = rows[0]["snapshot_id"] if rows else None
        text = next((row["told"] for row in rows if row["told"]), None)
        return None if text is None else parse_commit(text, f"a snapshot of {self._sql_name}")

    def _location_of_files(self) -> str:
        name = self._sql_name
        row = self._spark.sql(f"SELECT max_by(file, timestamp) FROM {name}.metadata_log_entries").first()  # noqa: S608
        assert row is not None, "an aggregate has a row"
        file = row[0] or ""
        return file.rpartition("/metadata/")[0] or file.rpartition("/")[0]  # write.metadata.path names another folder

    def snapshots_since_commit(self) -> int:
        """Count the snapshots since the last commit that have no position: other programs' and compactions'."""
        rows = self._history()
        return sum(not row["told"] for row in rows)

    def _history(self) -> list[Any]:
        """The snapshots that make up the table, the newest first, back to the last commit or, without one, to the
        oldest.
        """
        name = self._sql_name  # which has only letters, digits, '_' and '.'
        self._spark.sql(f"REFRESH TABLE {name}")
        main = self._spark.sql(f"SELECT snapshot_id FROM {name}.refs WHERE name = 'main'").first()  # noqa: S608
        snapshots = self._spark.sql(
            f"SELECT snapshot_id, parent_id, summary['{PROPERTY}'] AS told FROM {name}.snapshots "  # noqa: S608
            f"ORDER BY committed_at DESC"
        )
        rows_newest_first: list[Any] = []
        for rows in _newest(lambda limit: snapshots.limit(limit).collect()):
            by_id = {row["snapshot_id"]: row for row in rows}
            chain = lineage(main and main[0], {number: row["parent_id"] for number, row in by_id.items()})
            rows_newest_first = [by_id[each] for each in chain]
            index_of_commit = next((index for index, row in enumerate(rows_newest_first) if row["told"]), None)
            if index_of_commit is not None:
                return rows_newest_first[: index_of_commit + 1]
        return rows_newest_first

    def _make(self, columns: Schema) -> None:
        table = self._pipeline.table
        by = ""
        if table.partition_column is not None:
            by = f" PARTITIONED BY ({table.partition_unit}s({quote_name(table.partition_column)}))"
        properties = {"format-version": "2", **table.properties}
        pairs = ", ".join(f"{_text(name)}={_text(value)}" for name, value in properties.items())
        self._spark.sql(f"CREATE TABLE {self._sql_name} ({ddl(columns)}) USING iceberg{by} TBLPROPERTIES ({pairs})")

    def _append(self, rows: DataFrame, commit: Commit) -> None:
        writer = self._spark_writer(rows, commit)
        if self._snapshot is None:
            writer.append()
        else:
            serializable = writer.option("isolation-level", "serializable")
            serializable.option("validate-from-snapshot-id", str(self._snapshot)).overwrite(f.lit(False))

    def _spark_writer(self, rows: DataFrame, commit: Commit) -> Any:
        return rows.writeTo(self._sql_name).option(f"snapshot-property.{PROPERTY}", commit.to_json())

    def _merge(self, statement: Callable[[str], str], commit: Commit) -> None:
        branch = f"raftmq_{commit.run}"
        # If this process is killed the branch stays; then the next expiry of snapshots removes it after a day.
        branch_clause = f"BRANCH {branch} AS OF VERSION {self._snapshot} RETAIN 1 DAYS"
        self._spark.sql(f"ALTER TABLE {self._sql_name} CREATE OR REPLACE {branch_clause}")
        try:
            with self._set({f"spark.sql.iceberg.snapshot-property.{PROPERTY}": commit.to_json()}):
                self._spark.sql(statement(f"{self._sql_name}.branch_{branch}"))
            catalog, _, name = self._sql_name.partition(".")
            self._spark.sql(f"CALL {catalog}.system.fast_forward('{name}', 'main', '{branch}')")
        finally:
            self._spark.sql(f"ALTER TABLE {self._sql_name} DROP BRANCH IF EXISTS {branch}")


class DeltaTarget(LakeTarget):
    """A Delta table at a location.

    A commit is a transaction of the pipeline's name whose version follows the one in which the last commit was found: a
    second process that found the same commits has the same version, and Delta takes a version once.
    """

    _version = 0

    @property
    def _location(self) -> str:
        assert self._pipeline.table.location is not None
        return self._pipeline.table.location

    @property
    def _sql_name(self) -> str:
        return f"delta.{'`' + self._location.replace('`', '``') + '`'}"

    def _exists(self) -> bool:
        # By Java: the Python package of Delta fixes the version of PySpark.
        tables = self._spark._jvm.io.delta.tables.DeltaTable
        return bool(tables.isDeltaTable(self._spark._jsparkSession, self._location))

    def open(self) -> Commit | None:
        """Open as `LakeTarget.open`. Also raises DirectoryUnusable: Delta's error then names a file of its log."""
        check_shared(self._spark.sparkContext, self._location_of_files)
        return super().open()

    def _check(self, last: Commit | None) -> None:
        detail = self._spark.sql(f"DESCRIBE DETAIL {self._sql_name}").first()
        assert detail is not None, "each table has its details"
        bodies = self._pipeline.decode.columns if last is None else last.schema
        partitions = (name for name in detail["partitionColumns"] if name in UNITS and name not in bodies)
        check_partition(next(partitions, None), self._pipeline)

    def _location_of_files(self) -> str:
        return self._location

    def _load_last(self) -> Commit | None:
        history = f"DESCRIBE HISTORY {self._sql_name} LIMIT "
        for rows in _newest(lambda limit: self._spark.sql(f"{history}{limit}").collect()):
            commit = self._newest_of(sorted(rows, key=lambda row: -row["version"]))
            if commit is not None:
                return commit
        return None

    def _newest_of(self, rows: list[Any]) -> Commit | None:
        """The last commit among these versions, the newest first."""
        self._version = 0
        below: int | None = None
        for row in rows:
            if below is not None and row["version"] > below:
                continue
            if row["operation"] == "RESTORE":
                # Commits in between are no longer in the table.
                self._version = max(self._version, row["version"])
                below = _restored_to(row, rows)
            elif (row["userMetadata"] or "").startswith('{"v":'):
                self._version = max(self._version, row["version"])
                return parse_commit(row["userMetadata"], f"version {row['version']} of {self._location}")
        return None

    def _make(self, columns: Schema) -> None:
        table = self._pipeline.table
        by = ""
        if table.partition_column is not None:
            columns = {**columns, table.partition_unit: _STRING}
            by = f" PARTITIONED BY ({table.partition_unit})"
        pairs = ", ".join(f"{_text(name)}={_text(value)}" for name, value in table.properties.items())
        properties = f" TBLPROPERTIES ({pairs})" if pairs else ""
        self._spark.sql(f"CREATE TABLE {self._sql_name} ({ddl(columns)}) USING delta{by}{properties}")

    def keep(self, commit: Commit) -> None:
        """Write the last commit once more, without rows: Delta forgets the user metadata of versions that are older
        than its log. If the pipeline commits meanwhile, one of the two is left out.
        """
        with suppress(Overtaken), self._translated_errors("keeping the position of"):
            self._append(self._spark.createDataFrame([], ddl(self._columns())), commit)

    def _complete(self, rows: DataFrame, *more: str) -> DataFrame:
        return super()._complete(partition_rows(rows, self._pipeline)[0], *more)

    def _transaction(self, commit: Commit) -> tuple[str, str]:
        return f"raftmq/{commit.pipeline}", str(self._version + 1)

    def _append(self, rows: DataFrame, commit: Commit) -> None:
        name, version = self._transaction(commit)
        writer = rows.write.format("delta").mode("append").option("userMetadata", commit.to_json())
        writer.option("txnAppId", name).option("txnVersion", version).save(self._location)

    def _merge(self, statement: Callable[[str], str], commit: Commit) -> None:
        name, version = self._transaction(commit)
        settings = {
            "spark.databricks.delta.write.txnAppId": name,
            "spark.databricks.delta.write.txnVersion": version,
            "spark.databricks.delta.commitInfo.userMetadata": commit.to_json(),
        }
        with self._set(settings):
            self._spark.sql(statement(self._sql_name))


def _newest(rows_of: Callable[[int], list[Any]]) -> Iterator[list[Any]]:
    """Yield a table's history, the newest entries first and more of them each time, until it has no more: a continuous
    pipeline has many, and its last commit is among the first.
    """
    limit = _FIRST_LOOK
    while True:
        rows = rows_of(limit)
        yield rows
        if len(rows) < limit:
            return
        limit *= 20


_STRING: Final = columns_from_spark({"fields": [{"name": "unit", "type": "string"}]})["unit"]


def _restored_to(row: Any, rows: list[Any]) -> int:
    parameters = row["operationParameters"]
    if parameters.get("version") not in (None, ""):
        return int(parameters["version"])
    at = parameters["timestamp"]
    return max((each["version"] for each in rows if str(each["timestamp"]) <= str(at)), default=0)


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
