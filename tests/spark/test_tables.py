"""Topics become directories of Parquet files: each message is a row or a dead letter, whatever is killed."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from spark.tables import job
from spark.tables.commits import CommitRefused, Overtaken, shown_position
from spark.tables.decoding import DELETED, REASON, decode_bodies
from spark.tables.frames import Messages
from spark.tables.job import REFUSED, STOPPED, main, text_of
from spark.tables.lake_targets import DeltaTarget, IcebergTarget
from spark.tables.layout import SchemaInvalid
from spark.tables.loop import Stopped
from spark.tables.parquet_directory import DirectoryUnusable, Locked, ParquetDirectory, directory_pattern
from spark.tables.pipeline import Pipeline, parse_pipeline
from spark.tables.state_directory import StateDirectory
from spark.tables.status import table_status
from spark.tables.upserts import latest_changes
from spark.tables.verification import compare, kept_ranges
from tests.spark.stage import Stage
from tests.spark.table_case import EXPLICIT, Case, body


class Killed(BaseException):
    """Not caught by anything."""


@pytest.fixture
def case(session: Any, stage: Stage, tmp_path: Path) -> Case:
    return Case(session, stage, tmp_path)


@pytest.mark.parametrize("name", ["a b%20c", "t[1]{x,y}"])
def test_table_in_a_directory_with_special_characters_has_its_rows(case: Case, session: Any, name: str) -> None:
    case.location = case.location.parent / name
    case.stage.send(case.topic, [body(number) for number in range(20)])
    pipeline = case.pipeline(EXPLICIT)
    case.run(pipeline)
    assert [row.id for row in session.read.parquet(directory_pattern(case.location)).orderBy("id").collect()] == list(
        range(20)
    )
    last = ParquetDirectory(case.location).last()
    assert last is not None
    assert all(each["equal"] for each in compare(session, pipeline, last, kept_ranges(pipeline, last)))


def test_closing_a_batch_of_a_stopped_spark_raises_nothing() -> None:
    class Frame:
        def unpersist(self) -> None:
            raise Py4JError("An error occurred while calling o295.unpersist")

    batch: Any = object.__new__(Messages)
    batch.frame, batch._is_kept = Frame(), False
    batch.close()


def test_rows_that_executors_wrote_elsewhere_are_not_committed(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.stage.send(case.topic, [body(number) for number in range(20)])
    pipeline = case.pipeline(EXPLICIT)
    with monkeypatch.context() as patched:
        # As if executors were on another machine, whose directory of this name is another one.
        patched.setattr("spark.tables.parquet_target.directory_url", lambda _: f"file://{tmp_path}/elsewhere")
        with pytest.raises(DirectoryUnusable, match=r"has 0 of the 20 rows that tasks wrote: nothing of this commit"):
            case.run(pipeline)
    last = ParquetDirectory(case.location).last()
    assert last is not None
    assert last.number == 0
    case.run(pipeline)
    assert Counter(row.id for row in case.rows()) == Counter(range(20))


def test_every_message_is_a_row_or_an_explained_dead_letter(case: Case) -> None:
    bad = [b"no json", b'{"id": "x"}', b'{"id": 1} {"id": 2}', b"[1]", b"\xff"]
    case.stage.send(case.topic, [body(number) for number in range(20)] + bad)
    pipeline = case.pipeline(EXPLICIT, "max_messages_per_commit: 10")
    case.run(pipeline)
    assert Counter(row.id for row in case.rows()) == Counter(range(20))
    reasons = dict(case.dead_letters())
    assert reasons[b"no json"].startswith("it is not JSON: Expecting value")
    assert reasons[b'{"id": "x"}'] == 'column id is "x", which is no bigint'
    assert reasons[b'{"id": 1} {"id": 2}'].startswith("it is not JSON: Extra data")
    assert (reasons[b"[1]"], reasons[b"\xff"]) == (
        "it is not a JSON object but an array",
        "it is not UTF-8: byte 0 is 0xff",
    )
    case.stage.send(case.topic, [body(20)])
    case.run(pipeline)  # once more, for what came meanwhile
    case.run(pipeline)  # and for nothing
    assert Counter(row.id for row in case.rows()) == Counter(range(21))
    assert len(case.dead_letters()) == len(bad)
    case.stage.send(case.topic, [body(21)])
    status = table_status(pipeline, int(time.time() * 1000))
    assert (status["running"], status["lag_messages"], len(status["queues"])) == (False, 1, 1)
    assert 0 <= status["lag_seconds"] < 600


@pytest.mark.nightly
def test_rows_that_differ_from_the_topic_are_reported(case: Case, session: Any) -> None:
    case.stage.send(case.topic, [body(number) for number in range(12)] + [b"bad"])
    pipeline = case.pipeline(EXPLICIT)
    case.run(pipeline)
    directory = ParquetDirectory(case.location)
    last = directory.last()
    assert last is not None
    ranges = kept_ranges(pipeline, last)
    assert all(each["equal"] and not each["differences"] for each in compare(session, pipeline, last, ranges))
    places = {row.id: (row._queue_id, row._queue_offset) for row in case.rows()}
    (path,) = directory.files()
    rows = session.read.parquet(str(path)).toPandas()
    rows.loc[rows.id == 2, "name"] = "x"  # changed, lost, and twice
    rows = rows[rows.id != 5]
    rows.loc[len(rows) + 7] = rows[rows.id == 9].iloc[0]
    rows.to_parquet(path, coerce_timestamps="us")
    found = compare(session, pipeline, last, ranges)
    assert {
        (queue["queue_id"], each["queue_offset"]): each["what"] for queue in found for each in queue["differences"]
    } == {
        places[2]: "the row differs from the message",
        places[5]: "the row is missing",
        places[9]: "the row is there 2 times",
    }
    assert [each["equal"] for each in found] == [not each["differences"] for each in found]


@pytest.mark.nightly
def test_table_that_began_late_is_filled_backward(case: Case) -> None:
    case.stage.send(case.topic, [body(number) for number in range(6)] + [b"bad"])
    pipeline = case.pipeline(EXPLICIT, "start: latest\nmax_messages_per_commit: 4")
    case.run(pipeline)
    case.stage.send(case.topic, [body(6)])
    case.run(pipeline)
    assert [row.id for row in case.rows()] == [6]
    seen = []

    def die(step: str) -> None:
        seen.append(step)
        if step == "move a file" and seen.count("create the commit") == 2:
            raise Killed

    with pytest.raises(Killed):
        case.run(pipeline, die, backward=True)
    case.stage.send(case.topic, [body(7)])
    case.run(pipeline)  # forward, between
    case.run(pipeline, backward=True)
    case.run(pipeline, backward=True)  # nothing is older
    assert Counter(row.id for row in case.rows()) == Counter(range(8))
    assert [letter for letter, _ in case.dead_letters()] == [b"bad"]


@pytest.mark.nightly
@pytest.mark.parametrize("at", ["create the commit", "move a file", "remove staging"])
def test_killed_pipeline_has_each_row_once(case: Case, at: str) -> None:
    case.stage.send(case.topic, [body(number) for number in range(8)] + [b"bad"])
    pipeline = case.pipeline(EXPLICIT)
    seen = []

    def die(step: str) -> None:
        seen.append(step)
        if step == at and seen.count("create the commit") > 1:
            raise Killed

    with pytest.raises(Killed):
        case.run(pipeline, die)
    case.stage.send(case.topic, [body(8)])
    case.run(pipeline)
    assert Counter(row.id for row in case.rows()) == Counter(range(9))
    assert [letter for letter, _ in case.dead_letters()] == [b"bad"]


def test_inferred_columns_are_kept_and_new_ones_are_added(case: Case) -> None:
    pipeline = case.pipeline("{format: json, schema: inferred}")
    case.stage.send(case.topic, [b"no json"])
    case.run(pipeline)  # no column is known yet
    case.stage.send(case.topic, [body(1), body(2)])
    case.run(pipeline)
    case.stage.send(case.topic, [body(3, city="x", more={"a": [1]}), b'{"id": "four"}'])
    case.run(pipeline)
    rows = case.rows()
    assert sorted((row.id, row.city) for row in rows) == [(1, None), (2, None), (3, "x")]
    assert [row.more.a for row in rows if row.id == 3] == [[1]]
    letters = dict(case.dead_letters())
    assert letters.keys() == {b"no json", b'{"id": "four"}'}
    assert letters[b'{"id": "four"}'] == 'column id is "four", which is no bigint'


def test_dead_letter_that_the_sink_would_refuse_is_sent(case: Case, session: Any) -> None:
    batch = object.__new__(Messages)
    batch._pipeline = case.pipeline(EXPLICIT)
    long = b"x" * 10_000_000  # which its producer has compressed
    found = [(b"", {"KEYS": "k"}), (b"large", {"note": "x" * 28_000}), (b"tag", {"TAGS": "a||b"}), (b"mark", None)]
    found.append((long, None))
    batch.frame = session.createDataFrame(
        [("T", "a", 0, number, body, properties, "\x01bad") for number, (body, properties) in enumerate(found)],
        "topic string, broker_name string, queue_id int, queue_offset bigint, body binary, "
        "properties map<string,string>, raftmq_reason string",
    )
    batch.send_dead("app", 1)
    assert case.dead_letters() == [(body, "?bad") for body in (b" ", b"large", b"mark", b"tag", long)]


def test_change_without_its_order_is_a_dead_letter(session: Any) -> None:
    text = "namesrv: h:1\ntopic: T\ntable: {format: delta, location: /t}\nupsert: {key: [id], order: at}\n"
    pipeline = parse_pipeline(f"{text}decode: {{format: json, schema: {{id: int, at: int}}}}\n", Path("/p.yaml"))
    bodies = [b'{"id": 1, "at": 2}', b'{"id": 1}', b'{"at": 2}']
    messages = session.createDataFrame([(body, None) for body in bodies], "body binary, keys string")
    reasons = [row[REASON] for row in decode_bodies(messages, pipeline, pipeline.decode.columns).collect()]
    assert reasons == [None, "its order at is null or missing", "its key id is null or missing"]


def test_equal_orders_in_two_queues_give_the_same_change(session: Any) -> None:
    text = "namesrv: h:1\ntopic: T\ntable: {format: delta, location: /t}\nupsert: {key: [id], order: at}\n"
    more = "metadata: []\ndecode: {format: json, schema: {id: int, at: int, name: string}}\n"
    pipeline = parse_pipeline(text + more, Path("/p.yaml"))
    found = [
        ("a", 0, 0, b'{"id": 1, "at": 5, "name": "first"}', None),
        ("a", 0, 1, b'{"id": 1, "at": 5, "name": "second"}', None),
        ("a", 1, 0, b'{"id": 1, "at": 5, "name": "other queue"}', None),
    ]
    columns = "broker_name string, queue_id int, queue_offset bigint, body binary, keys string"

    def latest(messages: list[tuple[Any, ...]]) -> list[str]:
        frame = session.createDataFrame(messages, columns).coalesce(1)
        rows = decode_bodies(frame, pipeline, pipeline.decode.columns)
        return [row.name for row in latest_changes(rows, pipeline).collect()]

    assert latest(found[:2]) == latest(found[1::-1]) == ["second"]
    assert latest(found) == latest(found[::-1]) == ["other queue"]


def test_message_without_a_body_deletes_the_key_in_its_keys(session: Any) -> None:
    def found(upsert: str, schema: str, *messages: tuple[bytes, str | None]) -> list[tuple[Any, bool, str | None]]:
        text = f"namesrv: h:1\ntopic: T\ntable: {{format: delta, location: /t}}\nupsert: {upsert}\n"
        pipeline = parse_pipeline(f"{text}decode: {{format: json, schema: {schema}}}\n", Path("/p.yaml"))
        frame = session.createDataFrame(messages, "body binary, keys string")
        rows = decode_bodies(frame, pipeline, pipeline.decode.columns)
        return [(row.raftmq_row.id, row[DELETED], row[REASON]) for row in rows.collect()]

    nobody = "it has no body, and its keys do not say which id it deletes"
    keys = ['{"id":7}', '{"schema":{"type":"struct"},"payload":{"id":8}}', "9", "x", '{"other":1}', None]
    debezium = found("{key: [id], envelope: debezium}", "{id: int, name: string}", *[(b"", each) for each in keys])
    assert debezium == [(7, True, None), (8, True, None), (9, True, None)] + [(None, True, nobody)] * 3
    by_text = found("{key: [id]}", "{id: string}", (b"null", "a b"), (b"", '{"id":"c"}'), (b'{"id":"d"}', "e"))
    assert by_text == [("a b", True, None), ("c", True, None), ("d", False, None)]
    of_two = found("{key: [id, n]}", "{id: int, n: int}", (b"", '{"id":1,"n":2}'), (b"", '{"n":2}'))
    assert of_two == [(1, True, None), (None, True, nobody)]
    schema = "{id: int, at: int}"
    late = "its order at is null or missing"
    assert found("{key: [id], order: at}", schema, (b"", "1")) == [(1, True, late)]
    assert found("{key: [id], order: at, envelope: debezium}", schema, (b"", "1")) == [(1, True, None)]


def test_only_writing_commands_handle_termination_signals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[int] = []
    monkeypatch.setattr(signal, "signal", lambda number, _: handled.append(number))
    assert main(["verify", str(tmp_path / "none.yaml")]) == main(["compact", str(tmp_path / "none.yaml")]) == 2
    assert handled == []
    assert main(["run", str(tmp_path / "none.yaml")]) == 2
    assert handled == [signal.SIGTERM, signal.SIGINT]


def test_topic_that_vanishes_stops_the_pipeline_at_its_offset(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.stage.send(case.topic, [body(number) for number in range(4)])
    pipeline = case.pipeline(EXPLICIT, "read: {readDeadline: 5s}")
    case.run(pipeline)
    last = ParquetDirectory(case.location).last()
    assert last is not None
    case.stage.send(case.topic, [body(4)])

    def delete_first(*arguments: Any) -> Messages:
        case.stage.delete(case.topic)
        return Messages(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(job, "Messages", delete_first)
        with pytest.raises((PySparkException, *STOPPED, *REFUSED)) as caught:
            case.run(pipeline)
    assert shown_position(last.end) in text_of(caught.value)
    with pytest.raises(Stopped, match=r"(?s)Nothing was skipped or committed") as gone:
        case.run(pipeline)
    assert f"queue {case.stage.group}:0" in str(gone.value)
    case.stage.create(case.topic, 2)
    case.stage.send(case.topic, [body(5)])
    with pytest.raises(Stopped, match="Write to a new table"):
        case.run(pipeline)
    assert ParquetDirectory(case.location).last() == last
    assert Counter(row.id for row in case.rows()) == Counter(range(4))


def test_refusing_store_is_reported_with_the_remedy() -> None:
    text = "namesrv: h:1\ntopic: T\ntable: {format: delta, location: s3a://bucket/t}\n"
    target = DeltaTarget(parse_pipeline(text, Path("/p.yaml")), None)
    said = "o103.save.\njava.nio.file.AccessDeniedException: s3a://bucket/t: getFileStatus: 403 Forbidden\n\tat a.b"
    named = r"writing the table s3a://bucket/t is not allowed: java.*Forbidden"
    with pytest.raises(DirectoryUnusable, match=named), target._translated_errors("writing"):
        raise Py4JError(said)
    with pytest.raises(Overtaken), target._translated_errors("writing"):
        raise Py4JError("io.delta.exceptions.ConcurrentAppendException: Files were added")


def test_catalog_that_spark_does_not_know_is_refused(session: Any) -> None:
    text = "namesrv: h:1\ntopic: T\ntable: {format: iceberg, name: lake.shop.t}\n"
    target = IcebergTarget(parse_pipeline(text, Path("/p.yaml")), session)
    with pytest.raises(
        CommitRefused, match=r"does not know the catalog lake .*: set spark: \{spark\.sql\.catalog\.lake"
    ):
        target.open()


def test_failed_start_of_spark_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def session(_: Pipeline) -> None:
        raise Py4JError("An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.")

    monkeypatch.setattr(job, "session", session)
    file = tmp_path / "p.yaml"
    file.write_text("namesrv: h:1\ntopic: T\ntable: {format: parquet, location: t}\n")
    assert main(["verify", str(file)]) == 1
    said = json.loads(capsys.readouterr().out)["error"]
    assert said.startswith("Spark did not start, and nothing was compared: a package that cannot be fetched")


@pytest.mark.nightly
def test_change_that_would_break_the_table_is_refused_and_named(case: Case) -> None:
    case.stage.send(case.topic, [body(1)])
    case.run(case.pipeline(EXPLICIT))
    case.stage.send(case.topic, [body(2)])
    with pytest.raises(SchemaInvalid, match="column id: the table has bigint, the pipeline writes string"):
        case.run(case.pipeline("{format: json, schema: {id: string}}"))
    case.run(case.pipeline("{format: json, schema: {id: int}}"))  # fits, and stays bigint
    assert {row.id for row in case.rows()} == {1, 2}


@pytest.mark.nightly
def test_csv_and_text_have_their_columns(case: Case, session: Any, stage: Stage, tmp_path: Path) -> None:
    case.stage.send(case.topic, [b'1;"a;b"', b"2;", b"3", b"4;x\n5;y", b'6;"say ""hi"""', rb'7;"a\b"'])
    case.run(case.pipeline("{format: csv, separator: ';', schema: {id: int, note: string}}"))
    assert sorted((row.id, row.note) for row in case.rows()) == [
        (1, "a;b"),
        (2, None),
        (6, 'say "hi"'),
        (7, r"a\b"),
    ]
    assert [letter for letter, _ in case.dead_letters()] == [b"3", b"4;x\n5;y"]
    text = Case(session, stage, tmp_path / "text")
    text.stage.send(text.topic, ["grün".encode(), b"\xfc"])
    text.run(text.pipeline("{format: text}"))
    assert [row.body for row in text.rows()] == ["grün"]
    assert text.dead_letters() == [(b"\xfc", "it is not UTF-8: byte 0 is 0xfc")]


@pytest.mark.nightly
def test_days_are_directories(case: Case, session: Any) -> None:
    case.stage.send(case.topic, [body(1)])
    by_day = f"{{format: parquet, location: {case.location}, partition_by: {{column: _store_timestamp}}}}"
    pipeline = case.pipeline(EXPLICIT)
    text = f"name: t\nnamesrv: {case.stage.namesrv}\ntopic: {case.topic}\ndecode: {EXPLICIT}\ntable: {by_day}\n"
    case.run(parse_pipeline(text, Path("/p.yaml")))
    (day,) = {path.parent.name for path in case.location.rglob("*.parquet")}
    row = session.read.parquet(str(case.location)).first()
    assert day == f"day={row._store_timestamp:%Y-%m-%d}"
    assert pipeline.name == "t"
    days = parse_pipeline(text, Path("/p.yaml"))
    last = ParquetDirectory(case.location).last()
    assert last is not None
    assert all(each["equal"] for each in compare(session, days, last, kept_ranges(days, last)))
    (case.location / day).rename(case.location / "day=2001-01-01")
    assert not all(each["equal"] for each in compare(session, days, last, kept_ranges(days, last)))


@pytest.mark.nightly
def test_second_runs_other_topics_and_bad_schemas_are_refused(case: Case) -> None:
    case.stage.send(case.topic, [body(1)])
    pipeline = case.pipeline(EXPLICIT)
    case.run(pipeline)
    other = case.pipeline(EXPLICIT, "max_messages_per_commit: 5")
    state = StateDirectory(pipeline.state)
    state.open()
    with pytest.raises(Locked, match="this pipeline is already running"):
        case.run(other)
    state.close()
    topic, case.topic = case.topic, case.stage.topic("Other", 1)
    with pytest.raises(CommitRefused, match="two pipelines cannot write one table"):
        case.run(case.pipeline(EXPLICIT))
    case.topic = topic
    case.stage.send(topic, [b"bad"] * 20)
    with pytest.raises(Stopped, match=r"20 of 20 messages do not decode; the first is .* offset"):
        case.run(pipeline)
    assert case.dead_letters() == []
    assert len(case.rows()) == 1
