"""Topics become tables of Iceberg and Delta: rows and position are one commit.

Needs a Spark for which there are builds of both, which is not the one of the other tests:

    pip install --target DIRECTORY --no-deps 'pyspark==4.1.1'
    PYTHONPATH=DIRECTORY python -m pytest tests/spark/test_lake_tables.py
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mq.client.message import Message
from spark.tables import lake_targets
from spark.tables.commits import Commit, CommitRefused, messages_between
from spark.tables.compaction import RETAIN_SNAPSHOTS, compact
from spark.tables.frames import Messages
from spark.tables.installed import PACKAGES, installed_spark
from spark.tables.job import run, target_of
from spark.tables.lake_targets import SPARK_ERRORS
from spark.tables.layout import SchemaInvalid
from spark.tables.loop import Loop, Stopped
from spark.tables.pipeline import Pipeline, parse_pipeline
from spark.tables.state_directory import StateDirectory
from spark.tables.topic import TopicSource
from spark.tables.verification import compare, kept_ranges, table_rows
from tests.spark.spark_cluster import standalone
from tests.spark.stage import Stage
from tests.spark.table_commands import TableCommand

RELEASE = ".".join(installed_spark().split(".")[:2])
FORMATS = [kind for kind in ("iceberg", "delta") if (kind, RELEASE) in PACKAGES]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not FORMATS, reason=f"there is no build of Iceberg or Delta for Spark {RELEASE}"),
]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="module")
def lake(warehouse: Path) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    extensions = {
        "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "delta": "io.delta.sql.DeltaSparkSessionExtension",
    }
    settings = {
        "spark.jars.packages": ",".join(each for kind in FORMATS for each in PACKAGES[kind, RELEASE]),  # type: ignore[index]
        # Iceberg last: its parser is asked first, and knows statements at which Delta's fails.
        "spark.sql.extensions": ",".join(extensions[kind] for kind in reversed(FORMATS)),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(warehouse / "iceberg"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",  # pipelines have 8, for each look at a log
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # and 64, for each VACUUM
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(warehouse / "spark"),
    }
    if "delta" in FORMATS:
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    from spark.source import RaftmqDataSource

    made.dataSource.register(RaftmqDataSource)
    yield made
    made.stop()


class Case:
    """A topic, a topic for dead letters, and a table."""

    def __init__(self, lake: Any, stage: Stage, kind: str, directory: Path) -> None:
        self.lake = lake
        self.stage = stage
        self.kind = kind
        self.topic = stage.topic("Orders", 2)
        self.dead = stage.topic("Dead", 2)
        self.directory = directory
        self.by = ""

    @property
    def table(self) -> str:
        if self.kind == "iceberg":
            return f"{{format: iceberg, name: lake.shop.{self.topic.lower()}{self.by}}}"
        return f"{{format: delta, location: {self.directory / self.topic}{self.by}}}"

    @property
    def sql_name(self) -> str:
        return f"lake.shop.{self.topic.lower()}" if self.kind == "iceberg" else f"delta.`{self.directory / self.topic}`"

    def pipeline(self, decode: str, more: str = "") -> Pipeline:
        text = (
            f"name: t\nnamesrv: {self.stage.namesrv}\ntopic: {self.topic}\ndecode: {decode}\ntable: {self.table}\n"
            f"state: {self.directory / 'state'}\n"
            f"dead_letters: {{topic: {self.dead}, stop_above_percent: 80}}\n{more}\n"
        )
        return parse_pipeline(text, Path("/p.yaml"))

    def run(self, of: Pipeline) -> None:
        state = StateDirectory(of.state)
        state.open()
        try:
            run(of, self.lake, state, threading.Event())
        finally:
            state.close()

    def send(self, *bodies: bytes | Message, queue: int = 0) -> None:
        """To one queue."""
        from mq.client.produce.producer import Producer

        async def main() -> None:
            async with Producer(self.stage.namesrv, timeout=60) as producer:
                route = await producer.queues(self.topic)
                for each in bodies:
                    message = each if isinstance(each, Message) else Message(self.topic, each)
                    await producer.send(message, queue=route[queue])

        self.stage.call(main)

    def rows(self, of: Pipeline) -> list[Any]:
        if self.kind == "iceberg":
            self.lake.sql(f"REFRESH TABLE {self.sql_name}")
        return list(table_rows(self.lake, of).collect())

    def reasons(self) -> set[str]:
        """Those of all dead letters."""
        reader = self.lake.read.format("raftmq").option("namesrv", self.stage.namesrv)
        found = reader.option("subscribe", self.dead).load().collect()
        return {row.properties["RAFTMQ_TABLE_REASON"] for row in found}

    def compact(self, of: Pipeline, retain: int = RETAIN_SNAPSHOTS) -> None:
        target = self.target(of)
        compact(self.lake, of, target, target.last(), retain)

    def target(self, of: Pipeline) -> Any:
        return target_of(of, self.lake, lambda _: None)


@pytest.fixture(params=FORMATS)
def case(request: pytest.FixtureRequest, lake: Any, stage: Stage, tmp_path: Path) -> Case:
    return Case(lake, stage, request.param, tmp_path)


EXPLICIT = "{format: json, schema: {id: bigint, name: string}}"


def body(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "name": f"n{number}", **more}).encode()


def ids(rows: list[Any]) -> Counter[int]:
    return Counter(row.id for row in rows)


def test_each_message_is_one_row_after_new_columns(case: Case) -> None:
    case.stage.send(case.topic, [body(number) for number in range(20)] + [b"bad"])
    pipeline = case.pipeline("{format: json, schema: inferred}", "max_messages_per_commit: 9")
    case.run(pipeline)
    assert ids(case.rows(pipeline)) == Counter(range(20))
    case.stage.send(case.topic, [body(20, city="x")])
    case.run(pipeline)
    case.run(pipeline)
    rows = case.rows(pipeline)
    assert ids(rows) == Counter(range(21))
    assert {row.city for row in rows} == {None, "x"}
    case.stage.send(case.topic, [body(21)])
    with pytest.raises(SchemaInvalid, match="column id: the table has bigint, the pipeline writes string"):
        case.run(case.pipeline("{format: json, schema: {id: string}}"))
    last = case.target(pipeline).last()
    ranges = messages_between(last.begin, last.end)
    assert all(each["equal"] for each in compare(case.lake, pipeline, last, ranges))
    assert kept_ranges(pipeline, last) == ranges
    case.compact(pipeline)
    case.run(pipeline)
    assert ids(case.rows(pipeline)) == Counter(range(22))


def age(log: Path) -> None:
    """Let the files of a Delta log be from last month."""
    month_ago = time.time() - 40 * 86_400
    for path in log.iterdir():
        os.utime(path, (month_ago, month_ago))


def test_compaction_never_deletes_the_topic_position(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_targets, "_FIRST_LOOK", 1)  # the commit is not among the first
    pipeline = case.pipeline(EXPLICIT)
    case.stage.send(case.topic, [body(1)])
    case.run(pipeline)
    last = case.target(pipeline).last()
    short = {
        "iceberg": "'history.expire.max-snapshot-age-ms'='1'",
        "delta": "'delta.logRetentionDuration'='interval 8 days', 'delta.checkpointInterval'='1'",
    }[case.kind]
    case.lake.sql(f"ALTER TABLE {case.sql_name} SET TBLPROPERTIES ({short})")
    for _ in range(3):  # somebody else writes, and the topic has nothing new for a long time
        if case.kind == "delta":
            age(case.directory / case.topic / "_delta_log")
        case.compact(pipeline, retain=1)
        case.lake.sql(f"INSERT INTO {case.sql_name} SELECT * FROM {case.sql_name} LIMIT 1")
    if case.kind == "iceberg":
        left = case.lake.sql(f"SELECT count(*) FROM {case.sql_name}.snapshots").first()[0]
        assert left == 4, "old snapshots have expired"
    else:
        oldest = min(path.name for path in (case.directory / case.topic / "_delta_log").glob("*.json"))
        assert oldest > f"{3:020}", "old versions have expired"
    assert case.target(pipeline).last() == last
    case.stage.send(case.topic, [body(2)])
    case.run(pipeline)
    assert ids(case.rows(pipeline)) == Counter({1: 4, 2: 1})


def test_dropped_table_stops_the_pipeline(case: Case) -> None:
    pipeline = case.pipeline(EXPLICIT)
    case.stage.send(case.topic, [body(1)])
    case.run(pipeline)
    case.stage.send(case.topic, [body(2)])
    target = case.target(pipeline)

    class Dropped:
        """A table that is dropped between our look and our commit."""

        def __getattr__(self, name: str) -> Any:
            return getattr(target, name)

        def commit(self, batch: Any, commit: Commit) -> None:
            if case.kind == "iceberg":
                case.lake.sql(f"DROP TABLE {case.sql_name} PURGE")
            else:
                shutil.rmtree(case.directory / case.topic)
            target.commit(batch, commit)

    source = TopicSource(pipeline, is_once=True)
    loop = Loop(
        pipeline,
        source,
        Dropped(),
        StateDirectory(pipeline.state),
        lambda ranges, known: Messages(case.lake, pipeline, ranges, known),
        run="dropped",
        clock=time.monotonic,
        wall_clock_ms=lambda: 0,
    )
    loop.open()
    with pytest.raises((Stopped, *SPARK_ERRORS)):
        loop.step()
    source.close()
    assert not target._exists()


def test_commands_run_compact_and_verify_a_table(case: Case) -> None:
    catalog = ""
    if case.kind == "iceberg":
        name = "spark.sql.catalog.lake"
        catalog = (
            f"spark: {{{name}: org.apache.iceberg.spark.SparkCatalog, {name}.type: hadoop, "
            f"{name}.warehouse: {case.directory / 'warehouse'}}}\n"
        )
    file = case.directory / "t.yaml"
    file.write_text(
        f"namesrv: {case.stage.namesrv}\ntopic: {case.topic}\ndecode: {EXPLICIT}\ntable: {case.table}\n"
        f"max_messages_per_commit: 5\n{catalog}"
    )

    def ran(command: str, *more: str) -> list[str]:
        started = TableCommand(case.directory / "errors", command, file, "--master", "local[2]", *more)
        try:
            assert started.ended() == 0, started.errors()
        finally:
            started.close()
        return started.printed

    case.stage.send(case.topic, [body(number) for number in range(30)])
    assert ran("run")[-1].startswith("done: 30 messages")
    compacted = json.loads("".join(ran("compact", "--json")))
    assert compacted["rewritten"] >= 6
    assert 1 <= compacted["added"] < compacted["rewritten"]
    case.stage.send(case.topic, [body(30)])
    assert ran("run")[-1].startswith("done: 1 messages")
    assert ran("verify")[-1].startswith("the table and its topic are equal up to commit ")


def test_second_process_at_the_same_position_loses_the_commit(case: Case) -> None:
    pipeline = case.pipeline(EXPLICIT, "max_messages_per_commit: 6")
    case.stage.send(case.topic, [body(number) for number in range(10)])
    case.run(pipeline)
    case.stage.send(case.topic, [body(number) for number in range(10, 20)])
    raced: list[Commit] = []

    class Racing:
        """A table to which somebody else commits between our look and our commit."""

        def __init__(self, target: Any) -> None:
            self._target = target

        def __getattr__(self, name: str) -> Any:
            return getattr(self._target, name)

        def commit(self, batch: Any, commit: Commit) -> None:
            if not raced:
                raced.append(commit)
                case.run(pipeline)
            self._target.commit(batch, commit)

    source = TopicSource(pipeline, is_once=True)
    loop = Loop(
        pipeline,
        source,
        Racing(case.target(pipeline)),
        StateDirectory(pipeline.state),
        lambda ranges, known: Messages(case.lake, pipeline, ranges, known),
        run="second",
        clock=time.monotonic,
        wall_clock_ms=lambda: 0,
    )
    loop.open()
    while loop.step():
        pass
    source.close()
    assert loop.figures.overtaken == 1
    assert ids(case.rows(pipeline)) == Counter(range(20))


def test_table_that_was_rolled_back_has_its_position(case: Case) -> None:
    pipeline = case.pipeline(EXPLICIT)
    for number in range(3):
        case.stage.send(case.topic, [body(number)])
        case.run(pipeline)
    if case.kind == "iceberg":
        snapshot = case.lake.sql(
            f"SELECT snapshot_id FROM {case.sql_name}.history ORDER BY made_current_at LIMIT 1 OFFSET 2"
        ).first()[0]
        case.lake.sql(f"CALL lake.system.rollback_to_snapshot('shop.{case.topic.lower()}', {snapshot})")
    else:
        versions = [row["version"] for row in case.lake.sql(f"DESCRIBE HISTORY {case.sql_name}").collect()]
        case.lake.sql(f"RESTORE TABLE {case.sql_name} TO VERSION AS OF {max(versions) - 1}")
    assert ids(case.rows(pipeline)) == Counter(range(2))
    case.run(pipeline)
    assert ids(case.rows(pipeline)) == Counter(range(3))


def test_other_writers_of_a_table_stop_the_pipeline(case: Case) -> None:
    pipeline = case.pipeline(EXPLICIT)
    case.stage.send(case.topic, [body(1)])
    case.run(pipeline)
    case.lake.sql(f"INSERT INTO {case.sql_name} SELECT * FROM {case.sql_name}")
    last = case.target(pipeline).last()
    assert not all(each["equal"] for each in compare(case.lake, pipeline, last, messages_between(last.begin, last.end)))
    case.stage.send(case.topic, [body(2)])
    case.run(pipeline)
    assert ids(case.rows(pipeline)) == Counter({1: 2, 2: 1})
    with pytest.raises(CommitRefused, match="two pipelines cannot write one table"):
        case.run(dataclasses.replace(pipeline, name="other"))


def change(op: str, before: dict[str, Any] | None, after: dict[str, Any] | None, *, wrapped: bool = False) -> bytes:
    payload = {"op": op, "before": before, "after": after, "ts_ms": 1}
    return json.dumps({"schema": {}, "payload": payload} if wrapped else payload).encode()


def test_debezium_changes_leave_one_row_per_key(case: Case) -> None:
    pipeline = case.pipeline(EXPLICIT, "upsert: {key: [id], envelope: debezium}")
    row = [{"id": number, "name": "old"} for number in range(5)]
    new = [{"id": number, "name": "new"} for number in range(5)]
    case.send(change("r", None, row[0]), change("c", None, row[1]), change("c", None, row[2], wrapped=True))
    case.run(pipeline)
    case.send(
        change("u", row[0], new[0], wrapped=True),
        change("d", row[1], None),
        change("d", row[2], None),
        change("c", None, new[2]),  # deleted and created again in one commit
        change("c", None, row[3]),
        change("d", row[3], None),
        change("d", row[4], None),  # never was there
        change("t", None, None),
        change("u", None, {"id": None, "name": "x"}),
        b'{"id": 7}',
    )
    case.run(pipeline)
    assert {(each.id, each.name) for each in case.rows(pipeline)} == {(0, "new"), (2, "new")}
    reasons = case.reasons()
    assert reasons == {
        "its op is t; c, r, u and d are known",
        "its key id is null or missing",
        "it has no op: it is no change as Debezium writes it",
    }
    case.send(  # the changes that deleted these are not in the topic any more, since it is compacted
        Message(case.topic, b"", keys=['{"schema":{"type":"struct"},"payload":{"id":0}}']),
        Message(case.topic, b"", keys=['{"id":9}']),
        change("d", new[2], None),
        Message(case.topic, b"", keys=["2"]),
        change("c", None, new[0]),
    )
    case.run(pipeline)
    assert {(each.id, each.name) for each in case.rows(pipeline)} == {(0, "new")}
    case.send(Message(case.topic, b"", keys=["x"]))
    case.run(pipeline)
    assert case.reasons() == reasons | {"it has no body, and its keys do not say which id it deletes"}
    case.send(change("u", None, {"id": 0, "name": "here"}), queue=0)
    case.send(change("u", None, {"id": 0, "name": "there"}), queue=1)
    with pytest.raises(Stopped, match="changes of the key id 0 are in 2 queues"):
        case.run(pipeline)
    assert {(each.id, each.name) for each in case.rows(pipeline)} == {(0, "new")}


def test_upsert_keeps_the_latest_change_by_its_order_column(case: Case) -> None:
    schema = "{format: json, schema: {id: bigint, at: bigint, gone: boolean}}"
    pipeline = case.pipeline(schema, 'upsert: {key: [id], order: at, delete_when: {column: gone, value: "true"}}')

    def at(number: int, time: int, *, gone: bool = False) -> bytes:
        return json.dumps({"id": number, "at": time, "gone": gone}).encode()

    case.send(at(1, 5), at(1, 3), at(2, 1), at(3, 1), queue=0)
    case.send(at(1, 4), queue=1)
    case.run(pipeline)
    assert {(each.id, each.at) for each in case.rows(pipeline)} == {(1, 5), (2, 1), (3, 1)}
    case.send(at(1, 4), at(2, 2), at(3, 2, gone=True), queue=1)
    case.run(pipeline)
    assert {(each.id, each.at) for each in case.rows(pipeline)} == {(1, 5), (2, 2)}


def test_change_is_in_the_partition_of_its_day(case: Case) -> None:
    case.by = ", partition_by: {column: at, unit: day}"
    pipeline = case.pipeline("{format: json, schema: {id: bigint, at: timestamp}}", "upsert: {key: [id], order: at}")
    for day in (30, 31, 29):
        case.send(json.dumps({"id": day % 2, "at": f"2026-01-{day}T10:00:00Z"}).encode())
        case.run(pipeline)
    assert {(row.id, row["at"].day) for row in case.rows(pipeline)} == {(0, 30), (1, 31)}
    if case.kind == "delta":
        assert {(row.id, row.day) for row in case.rows(pipeline)} == {(0, "2026-01-30"), (1, "2026-01-31")}


def test_dropped_column_is_not_recreated(case: Case) -> None:
    pipeline = case.pipeline(EXPLICIT)
    case.stage.send(case.topic, [body(1)])
    case.run(pipeline)
    if case.kind == "delta":
        case.lake.sql(f"ALTER TABLE {case.sql_name} SET TBLPROPERTIES ('delta.columnMapping.mode'='name')")
    case.lake.sql(f"ALTER TABLE {case.sql_name} RENAME COLUMN name TO title")
    case.stage.send(case.topic, [body(2)])
    with pytest.raises(SchemaInvalid, match="no longer has column name of commit 1: it was dropped or renamed"):
        case.run(pipeline)
    last = case.target(pipeline).last()
    (found,) = (each for each in compare(case.lake, pipeline, last, kept_ranges(pipeline, last)) if each["messages"])
    assert [each["what"] for each in found["differences"]] == ["the row differs from the message"]
    case.lake.sql(f"ALTER TABLE {case.sql_name} RENAME COLUMN title TO name")
    case.run(pipeline)
    assert {(row.id, row.name) for row in case.rows(pipeline)} == {(1, "n1"), (2, "n2")}


@pytest.mark.skipif("delta" not in FORMATS, reason="there is no build of Delta for this Spark")
def test_delta_table_keeps_its_partitions(lake: Any, stage: Stage, tmp_path: Path) -> None:
    case = Case(lake, stage, "delta", tmp_path)
    case.by = ", partition_by: {column: _store_timestamp}"
    pipeline = case.pipeline(EXPLICIT)
    case.stage.send(case.topic, [body(1)])
    case.run(pipeline)
    case.by = ", partition_by: {column: _store_timestamp, unit: hour}"
    with pytest.raises(SchemaInvalid, match=r"is partitioned by day, and table\.partition_by has the unit hour"):
        case.run(case.pipeline(EXPLICIT))
    case.by = ""
    with pytest.raises(SchemaInvalid, match=r"is partitioned by day, and table\.partition_by is not set"):
        case.run(case.pipeline(EXPLICIT))
    case.run(pipeline)
    assert {row.day for row in case.rows(pipeline)} == {f"{case.rows(pipeline)[0]._store_timestamp:%Y-%m-%d}"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a process a directory of its own")
def test_pipeline_does_not_commit_to_a_location_that_executors_do_not_share(case: Case, tmp_path: Path) -> None:
    case.stage.send(case.topic, [body(number) for number in range(30)])
    shared = tmp_path / "shared"
    (shared / case.topic).mkdir(parents=True)
    table = f"{{format: delta, location: {shared / case.topic}}}"
    catalog = "spark.sql.catalog.lake"
    settings = ["spark.driver.host: 127.0.0.1", "spark.driver.bindAddress: 127.0.0.1", "spark.executor.memory: 512m"]
    if case.kind == "iceberg":
        table = case.table
        settings += [f"{catalog}: org.apache.iceberg.spark.SparkCatalog", f"{catalog}.type: hadoop"]
        settings += [f"{catalog}.warehouse: {shared}"]
    file = tmp_path / "t.yaml"
    file.write_text(
        f"namesrv: {case.stage.namesrv}\ntopic: {case.topic}\ndecode: {EXPLICIT}\ntable: {table}\n"
        f"spark: {{{', '.join(settings)}}}\n"
    )

    def ran(command: str, master: str) -> tuple[int, str, list[str]]:
        started = TableCommand(tmp_path / "errors", command, file, "--master", master, "--driver-memory", "1g")
        try:
            return started.ended(), started.errors(), started.printed
        finally:
            started.close()

    hidden = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(shared))
    with standalone(tmp_path, *hidden) as url:
        code, said, _ = ran("run", url)
    assert (code, "does not see what the driver writes into" in said) == (1, True), said
    code, said, printed = ran("run", "local[2]")
    assert (code, printed[-1].startswith("done: 30 messages")) == (0, True), said
    code, said, _ = ran("verify", "local[2]")
    assert code == 0, said


@pytest.mark.skipif("iceberg" not in FORMATS, reason="there is no build of Iceberg for this Spark")
def test_branch_of_a_killed_merge_does_not_stay_for_ever(lake: Any, stage: Stage, tmp_path: Path) -> None:
    case = Case(lake, stage, "iceberg", tmp_path)
    pipeline = case.pipeline(EXPLICIT, "upsert: {key: [id]}")
    case.send(body(1))
    case.run(pipeline)
    target = case.target(pipeline)
    last = target.last()

    class Killed(BaseException):
        """Not caught by anything."""

    class Dying:
        """A session that does nothing any more when it is to merge."""

        def __getattr__(self, name: str) -> Any:
            return getattr(lake, name)

        def sql(self, statement: str) -> Any:
            if "MERGE" in statement or "DROP BRANCH" in statement:
                raise Killed
            return lake.sql(statement)

    target._spark = Dying()
    with pytest.raises(Killed):
        target._merge(lambda table: f"MERGE INTO {table}", last)
    left = lake.sql(f"SELECT max_reference_age_in_ms FROM {case.sql_name}.refs WHERE name <> 'main'").collect()
    assert [row[0] for row in left] == [86_400_000]
    case.send(body(2))
    case.run(pipeline)
    assert ids(case.rows(pipeline)) == Counter({1: 1, 2: 1})
