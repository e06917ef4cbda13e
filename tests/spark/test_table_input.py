"""Odd topics and messages: each message is a row with its own value, or a dead letter with its reason."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from spark.tables.decoding import REASON, ROW, decode_bodies
from spark.tables.layout import SchemaInvalid
from spark.tables.parquet_directory import ParquetDirectory
from spark.tables.pipeline import Pipeline, Unit, parse_pipeline
from tests.spark.stage import Stage
from tests.spark.table_case import EXPLICIT, Case, body

COLUMNS = (
    's: string, t: tinyint, sm: "array<smallint>", id: bigint, price: "decimal(10,2)", at: timestamp, day: date, '
    'f: float, d: double, b: binary, m: "map<string,int>"'
)


@pytest.fixture
def case(session: Any, stage: Stage, tmp_path: Path) -> Case:
    return Case(session, stage, tmp_path)


def found(session: Any, decode: str, bodies: list[bytes]) -> list[tuple[Any, str | None]]:
    """The row and the reason of each body."""
    text = f"namesrv: h:1\ntopic: T\ntable: {{format: parquet, location: /t}}\ndecode: {decode}\n"
    pipeline = parse_pipeline(text, Path("/p.yaml"))
    messages = session.createDataFrame(list(enumerate(bodies)), "number int, body binary").repartition(1)
    row = f.when(f.col(REASON).isNull(), f.col(ROW)).alias(ROW)  # those of others go nowhere
    rows = decode_bodies(messages, pipeline, pipeline.decode.columns).orderBy("number").select(row, REASON).collect()
    return [tuple(each) for each in rows]


def test_value_that_spark_would_change_is_a_dead_letter(session: Any) -> None:
    bad = [
        b'{"price": 1.239}',
        b'{"price": 123456789012}',
        b'{"at": 1700000000000}',
        b'{"at": "12:00:00"}',
        b'{"day": "2026-01-31 and more"}',
        b'{"day": "99999-01-01"}',
        b'{"f": 1e300}',
        b'{"d": 1e999}',
        b'{"s": 1e400}',
        b'{"t": 128}',
        b'{"t": -129}',
        b'{"sm": [32768]}',
        b'{"d": NaN}',
        b'{"m": {"x": 1, "x": 2}}',
        b'{"id": 1, "id": 2}',
        b'{"b": "%%"}',
        b"\xef\xbb\xbf{}",
        b'{"id": ' + b"[" * 2000,
    ]
    good = [b'{"price": 123.450, "at": "2026-01-31T10:00:00Z"}', b'{"d": 1e308, "f": 3e38, "day": "2026-1-5"}']
    rows = found(session, f"{{format: json, schema: {{{COLUMNS}}}}}", bad + good)
    assert [reason for _, reason in rows[: len(bad)] if reason is None or "does not fit" in reason] == []
    assert [reason for _, reason in rows[len(bad) :]] == [None, None]
    first, second = (row for row, _ in rows[len(bad) :])
    assert (first.price, str(first["at"])) == (Decimal("123.45"), "2026-01-31 10:00:00")
    assert (second.d, str(second.day), second.f > 2.9e38) == (1e308, "2026-01-05", True)


def test_message_fields_may_have_any_name(session: Any) -> None:
    ((row, reason),) = found(
        session, "{format: json, schema: {raftmq_corrupt: string, id: int}}", [b'{"raftmq_corrupt": "x", "id": 1}']
    )
    assert (row.raftmq_corrupt, row.id, reason) == ("x", 1, None)


def test_line_with_its_end_is_a_row(session: Any) -> None:
    lines = [b"1;x", b"2;x\n", b"3;x\r\n", b"4;\n", b'8;"x\ny"', b"5;x\n\n", b"6;x\n7;y", b'9;"x', b'9;"x"y']
    rows = found(session, "{format: csv, separator: ';', schema: {id: int, note: string}}", lines)
    assert [(row.id, row.note) for row, reason in rows if reason is None] == [
        (1, "x"),
        (2, "x"),
        (3, "x"),
        (4, None),
        (8, "x\ny"),
    ]
    assert [reason for _, reason in rows[5:7]] == ["it has 2 lines, not one"] * 2
    assert [reason for _, reason in rows[7:]] == ["it is not a line of CSV"] * 2
    numbers = found(session, "{format: csv, schema: {id: int, n: int}}", [b"1,2\n", b" 1,2", b"1_0,2", b"+1,2"])
    assert [reason for _, reason in numbers] == [
        None,
        'column id is " 1", which is no int',
        'column id is "1_0", which is no int',
        None,
    ]


def test_empty_topic_becomes_a_table_without_rows(case: Case) -> None:
    pipeline = case.pipeline(EXPLICIT)
    case.run(pipeline)
    assert ParquetDirectory(case.location).files() == []
    case.stage.send(case.topic, [body(1)])
    case.run(pipeline)
    assert [row.id for row in case.rows()] == [1]


def test_inferred_fields_with_odd_names_are_columns_or_refused(case: Case) -> None:
    names = ["a.b", "with space", "back`tick", "ü", "日本", "select", 'quo"te', "x;y", "a,b", "(p)", "=", "#"]
    odd = {name: number for number, name in enumerate(names)}
    case.stage.send(case.topic, [body(1, **odd), b'{"id": 2, "": 5}'])
    pipeline = case.pipeline("{format: json, schema: inferred}")
    case.run(pipeline)
    rows = {row.id: row.asDict() for row in case.rows()}
    assert {name: rows[1][name] for name in names} == odd
    assert set(rows) == {1, 2}
    case.stage.send(case.topic, [b'{"id": 3, "_queue_id": 5}'])
    with pytest.raises(SchemaInvalid, match="the name '_queue_id' of a field is also the name of a column"):
        case.run(pipeline)
    assert len(case.rows()) == 2


def test_inferred_object_that_fits_no_column_becomes_its_text(case: Case) -> None:
    deep = json.loads('{"a":' * 40 + "1" + "}" * 40)
    case.stage.send(case.topic, [body(1, deep=deep, twins={"x": 1, "X": 2}), body(3, odd=[{"": 5, "a": 1}])])
    pipeline = case.pipeline("{format: json, schema: inferred}")
    case.run(pipeline)
    case.stage.send(case.topic, [body(2)])
    case.run(pipeline)  # its commits can be read again
    first, second = sorted(case.rows(), key=lambda row: row.id)
    assert json.loads(first.twins) == {"x": 1, "X": 2}
    found = first.deep
    while not isinstance(found, str):
        found, deep = found.a, deep["a"]
    assert json.loads(found) == deep
    assert (second.id, second.deep, second.twins) == (2, None, None)
    ((_, reason),) = case.dead_letters()  # Spark infers no field without a name
    assert reason == "it has the field 'odd.', which the column 'odd' does not have"


def test_field_in_other_case_becomes_a_dead_letter(case: Case) -> None:
    pipeline = case.pipeline("{format: json, schema: inferred}")
    case.stage.send(case.topic, [body(1)])
    case.run(pipeline)
    long = b'{"id": ' + b"1" * 1001 + b"}"
    case.stage.send(case.topic, [body(2), b'{"ID": 3, "other": 1}', long, body(4)])
    case.run(pipeline)
    assert [set(row.asDict()) - {"name"} for row in case.rows() if row.id] == [
        {"_broker_name", "_queue_id", "_queue_offset", "_store_timestamp", "id"}
    ] * 3
    ((letter, reason), _) = case.dead_letters()
    assert letter == b'{"ID": 3, "other": 1}'
    assert reason.startswith("it has the field 'ID', and the column is 'id'")


def test_new_field_inside_a_column_becomes_a_dead_letter(case: Case) -> None:
    pipeline = case.pipeline("{format: json, schema: inferred}")
    case.stage.send(case.topic, [body(1, more={"a": 1, "none": None})])
    case.run(pipeline)
    case.stage.send(case.topic, [body(2, more={"a": 2, "none": {}}), body(3, more={"a": 3, "b": 4})])
    case.run(pipeline)
    assert {row.id: row.more.a for row in case.rows()} == {1: 1, 2: 2}
    assert dict(case.dead_letters()) == {
        body(3, more={"a": 3, "b": 4}): "it has the field 'more.b', which the column 'more' does not have"
    }


@pytest.mark.parametrize("later", ["", "{column: _store_timestamp, unit: hour}"])
def test_directory_keeps_its_partitions(case: Case, later: str) -> None:
    def by(partition: str) -> Pipeline:
        pipeline = case.pipeline(EXPLICIT)
        column = "_store_timestamp" if partition else None
        unit: Unit = "hour" if "hour" in partition else "day"
        return replace(pipeline, table=replace(pipeline.table, partition_column=column, partition_unit=unit))

    case.stage.send(case.topic, [body(1)])
    case.run(by("{column: _store_timestamp}"))
    case.stage.send(case.topic, [body(2)])
    with pytest.raises(SchemaInvalid, match=r"is partitioned by day, and table\.partition_by"):
        case.run(by(later))
    case.run(by("{column: _store_timestamp}"))
    assert [row.id for row in case.rows()] == [1, 2]


@pytest.mark.nightly
def test_topic_of_a_thousand_queues_is_read_whole(case: Case) -> None:
    case.topic = case.stage.topic("Wide", 1000)
    case.stage.send(case.topic, [body(number) for number in range(3000)])
    pipeline = case.pipeline(EXPLICIT, "max_messages_per_commit: 2000")
    case.run(pipeline)
    assert Counter(row.id for row in case.rows()) == Counter(range(3000))
