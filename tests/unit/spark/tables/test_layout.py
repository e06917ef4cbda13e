"""A table or topic that somebody has changed stops the pipeline, by name and with what helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark.errors import DataLoss
from spark.micro_batches import ClusterChanged, Loss, LossKind, loss_text
from spark.tables.column_types import parse_schema, written_schema
from spark.tables.commits import Commit
from spark.tables.layout import SchemaInvalid, check_folder, check_kept, check_partition, table_columns
from spark.tables.loop import Stopped
from spark.tables.pipeline import Pipeline, parse_pipeline
from spark.tables.topic import TopicSource

BODY = parse_schema({"id": "bigint", "at": "timestamp"})


def pipeline(partition: str = "") -> Pipeline:
    by = f", partition_by: {partition}" if partition else ""
    text = f"namesrv: h:1\ntopic: T\ntable: {{format: delta, location: /t{by}}}\n"
    schema = ", ".join(f"{name}: {kind}" for name, kind in written_schema(BODY).items())
    return parse_pipeline(f"{text}decode: {{format: json, schema: {{{schema}}}}}\n", Path("/p.yaml"))


@pytest.mark.parametrize(
    ("found", "partition", "said"),
    [
        (None, "", None),
        ("day", "{column: at}", None),
        ("day", "{column: _store_timestamp}", None),
        (
            "day",
            "",
            "the table /t is partitioned by day, and table.partition_by is not set: a table cannot change that",
        ),
        ("day", "{column: at, unit: month}", "is partitioned by day, and table.partition_by has the unit month"),
        (None, "{column: at}", "has no partitions, and table.partition_by has the unit day"),
    ],
)
def test_partitions_that_a_table_does_not_have_are_refused(found: str | None, partition: str, said: str | None) -> None:
    if said is None:
        check_partition(found, pipeline(partition))
        return
    with pytest.raises(SchemaInvalid) as caught:
        check_partition(found, pipeline(partition))
    assert said in str(caught.value)


def test_partitioning_a_date_by_hour_is_refused() -> None:
    table = pipeline("{column: at, unit: hour}")
    table_columns(table, BODY)
    with pytest.raises(SchemaInvalid, match="column at is a date without hours"):
        table_columns(table, parse_schema({"at": "date"}))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"at": "string"}, "column at is string; it must be one of timestamp, timestamp_ntz, date"),
        ({"id": "bigint"}, "column is 'at'; there are "),
    ],
)
def test_partition_column_without_times_is_refused_with_a_remedy(schema: dict[str, str], said: str) -> None:
    with pytest.raises(SchemaInvalid) as caught:
        table_columns(pipeline("{column: at}"), parse_schema(schema))
    assert said in str(caught.value)
    assert str(caught.value).endswith("(inferred JSON has no times), or partition by _store_timestamp")


def test_folder_of_a_file_must_match_the_partitioning() -> None:
    check_folder(None, pipeline("{column: at}"))
    check_folder("day=2026-01-31", pipeline("{column: at}"))
    check_folder("", pipeline())
    for folder, of in (("", pipeline("{column: at}")), ("hour=2026-01-31-12", pipeline("{column: at}"))):
        with pytest.raises(SchemaInvalid, match="set partition_by back, or write to a new table"):
            check_folder(folder, of)


@pytest.mark.parametrize("lost", ["id", "_queue_offset"])
def test_dropped_column_is_refused_by_name(lost: str) -> None:
    position = {"v": 1, "cluster": "c", "topics": {}}
    last = Commit("p/T", 7, position, position, 0, 0, 0, "run", written_schema(BODY), position)
    wanted = table_columns(pipeline(), BODY)
    check_kept(wanted, {**wanted, **parse_schema({"new": "int"})}, last, "/t")
    with pytest.raises(SchemaInvalid, match=f"no longer has column {lost} of commit 7: it was dropped or renamed"):
        check_kept({name: kind for name, kind in wanted.items() if name != lost}, wanted, last, "/t")
    wanted.pop(lost)
    check_kept(wanted, wanted, last, "/t")  # nor does the pipeline write it any more


PIPELINE = parse_pipeline("namesrv: h:1\ntopic: T\ntable: {format: parquet, location: /t}\n", Path("/p.yaml"))


class Progress:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def end_here(self) -> None:
        pass

    def latest(self, start: dict[str, Any], *, is_limited: bool) -> dict[str, Any]:
        raise self._error


@pytest.mark.parametrize("kind", ["deleted", "cut", "gone", "recreated"])
def test_pipeline_stops_and_reports_the_offsets_of_deleted_messages(
    kind: LossKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TopicSource(PIPELINE, is_once=True)
    said = loss_text([Loss(kind, ("T", "a", 0), 3, 10, 10)])
    monkeypatch.setattr(source, "_progress", Progress(DataLoss(said)))
    with pytest.raises(Stopped) as caught:
        source.latest({})
    assert "offsets 3 to 9" in str(caught.value)
    assert "new table" in str(caught.value)
    assert "checkpoint" not in str(caught.value)
    assert "failOnDataLoss" not in str(caught.value)


def test_another_cluster_stops_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    source = TopicSource(PIPELINE, is_once=True)
    monkeypatch.setattr(source, "_progress", Progress(ClusterChanged("x")))
    with pytest.raises(Stopped, match="was written from another cluster than the one that namesrv h:1 leads to"):
        source.latest({})
