"""A pipeline file is read strictly: each mistake is named with its line and what is allowed."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from spark.tables.column_types import Primitive, written_schema
from spark.tables.documents import DocumentInvalid
from spark.tables.pipeline import Pipeline, Trigger, parse_pipeline, read_pipeline

WHOLE = """\
name: orders
namesrv: 127.0.0.1:9876
topic: Orders
start: 2026-01-31T00:00:00Z
trigger: every 10 minutes
max_messages_per_commit: 5000
table:
  format: parquet
  location: orders
  partition_by: {column: _store_timestamp, unit: hour}
decode:
  format: json
  schema: {id: bigint, note: string, lines: "array<struct<sku:string,price:decimal(10,2)>>"}
metadata: [keys, store_timestamp]
dead_letters: {topic: OrdersBad, stop_above_percent: 5}
read: {readMode: archive, onArchiveFailure: brokers}
spark: {spark.sql.shuffle.partitions: 4}
"""


def parsed(text: str) -> Pipeline:
    return parse_pipeline(textwrap.dedent(text), Path("/pipelines/p.yaml"))


def refusal(text: str) -> str:
    with pytest.raises(DocumentInvalid) as caught:
        parsed(text)
    return str(caught.value)


def test_whole_file_is_read() -> None:
    found = parsed(WHOLE)
    assert (found.name, found.topic, found.trigger) == ("orders", "Orders", Trigger(600))
    assert found.start == 1_769_817_600_000
    assert found.table.location == "/pipelines/orders"
    assert found.state == Path("/pipelines/orders/_raftmq")
    assert found.decode.schema is not None
    assert written_schema(found.decode.schema) == {
        "id": "bigint",
        "note": "string",
        "lines": "array<struct<sku:string,price:decimal(10,2)>>",
    }
    # The three that identify a message are always there.
    assert list(found.metadata_columns.values()) == [
        "_broker_name",
        "_queue_id",
        "_queue_offset",
        "_keys",
        "_store_timestamp",
    ]
    assert found.read_options()["readMode"] == "archive"


def test_short_file_has_defaults() -> None:
    found = parsed("namesrv: h:1\ntopic: T\ntable: {format: parquet, location: /data/t}")
    assert (found.name, found.trigger.is_once, found.start) == ("p", True, "earliest")
    assert found.decode.columns == {"body": Primitive("binary")}


def test_day_begins_a_table_at_its_midnight() -> None:
    assert parsed(WHOLE.replace("2026-01-31T00:00:00Z", "2026-01-31")).start == parsed(WHOLE).start


def test_pipeline_file_with_an_unusable_name_needs_a_name() -> None:
    with pytest.raises(DocumentInvalid, match=r"orders 2026\.yaml:1: name is missing, and the name of the file cannot"):
        parse_pipeline("namesrv: h:1\ntopic: T\ntable: {format: parquet, location: /t}", Path("/d/orders 2026.yaml"))


REPLACED = [
    ("format: parquet", "format: parket", "p.yaml:8: table.format must be parquet or delta or iceberg"),
    ("format: parquet", "format: parket", "did you mean 'parquet'?"),
    ("topic: Orders\n", "topik: Orders\n", "p.yaml:1: topic is missing"),
    ("start: 2026-01-31T00:00:00Z", "start: soon", "p.yaml:4: start must be earliest, latest, or a time"),
    ("every 10 minutes", "hourly", 'p.yaml:5: trigger must be once, continuous, or such as "every 10 minutes"'),
    ("every 10 minutes", "every 0 minutes", "p.yaml:5: trigger must be every 1 to"),
    ("start: 2026-01-31T00:00:00Z", "start: 0001-01-01T00:00:00Z", "p.yaml:4: start must be a time after 1970"),
    ("topic: Orders\n", "topic: no\n", 'p.yaml:3: topic must be text: write it in "..."'),
    ("note: string", "note: decimal(10,2)", 'column 2) has no type such as bigint: write a type with a comma in "..."'),
    ("5000", "0", "p.yaml:6: max_messages_per_commit must be a whole number from 1"),
    ("  location: orders", "  location: gs://bucket/t", "For other storage use format delta or iceberg"),
    ("  location: orders\n", "", "p.yaml:7: table.location is missing"),
    ("unit: hour", "unit: week", "p.yaml:10: table.partition_by.unit must be hour or day or month"),
    ("id: bigint", "id: bigit", "p.yaml:13: decode.schema column id: 'bigit' is not a type"),
    ("id: bigint", "ID: string, id: bigint", "only case differs"),
    ("id: bigint", "_queue_id: bigint", "is the name of a column that the pipeline adds"),
    ("[keys,", "[kys,", "did you mean 'keys'?"),
    ("topic: Orders\n", "topic: Orders,Returns\n", "p.yaml:3: topic has characters other than letters"),
    ("topic: OrdersBad", "topic: 'Orders Bad'", "p.yaml:15: dead_letters.topic has characters other than letters"),
    ("topic: OrdersBad", "topic: Orders", "p.yaml:15: dead_letters.topic is the topic that is read"),
    ("readMode: archive", "subscribe: Other", "p.yaml:16: read.subscribe is set by the pipeline itself"),
    ("readMode: archive", "readMde: archive", "did you mean 'readMode'?"),
    ("onArchiveFailure: brokers", "fetchBytes: many", "p.yaml:16: read.fetchBytes is refused"),
    ("spark.sql.shuffle.partitions", "shuffle.partitions", "settings of Spark begin with spark."),
    ("spark.sql.shuffle.partitions", "spark.hadoop.fs.s3a.secret.key", "process lists show settings of this file"),
    ("namesrv: 127.0.0.1:9876", "namesrv: localhost", "p.yaml:2: namesrv has 'localhost': expected HOST:PORT"),
    ("name: orders", "name: a/b", "p.yaml:1: name must be 1 to 64 letters"),
    ("name: orders", "name: orders\nstate: /x", "p.yaml:2: state is not for Parquet"),
    ("name: orders", "name: orders\nname: b", "p.yaml:2: name is set twice, first in line 1"),
    ("decode:", "upsert: {key: id}\ndecode:", "p.yaml:11: upsert needs table.format delta or iceberg"),
    ("dead_letters:", "dead_leters:", "p.yaml:15: dead_leters is unknown; did you mean 'dead_letters'?"),
    ("name: orders", "name: [orders", "this is not YAML"),
    ("name: orders", "7: orders", "p.yaml:1: a name of the file must be text"),
]


@pytest.mark.parametrize(("written", "instead", "said"), REPLACED)
def test_each_mistake_is_reported_with_its_line(written: str, instead: str, said: str) -> None:
    assert said in refusal(WHOLE.replace(written, instead, 1))


SECRETS = {
    "a key of S3": 'spark: {spark.a: b, spark.hadoop.fs.s3a.secret.key: "h1dden"}',
    "a key beside a wrong name": 'spark: {shuffle: 8, spark.hadoop.fs.s3a.secret.key: "h1dden"}',
    "a key of Azure": 'spark: {spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net: "h1dden"}',
    "a credential of a catalog": 'spark: {spark.sql.catalog.lake.credential: "shop:h1dden"}',
    "a password of a catalog": 'spark: {spark.sql.catalog.lake.uri: "jdbc:postgresql://shop:h1dden@db/lake"}',
    "a password in parameters": 'spark: {spark.sql.catalog.lake.uri: "jdbc:postgresql://db/lake?user=a&password=h1dden"}',
    "an option for Java": 'spark: {spark.driver.extraJavaOptions: "-Xmx1g -Daws.secretKey=h1dden"}',
    "an address of packages": 'packages: ["https://shop:h1dden@repo/x.jar"]',
    "a name server": "namesrv: shop:h1dden@host:9876",
    "a location": "table: {format: delta, location: 's3a://AKIA:h1dden@lake/orders'}",
    "an endpoint": "table: {format: parquet, location: s3://lake/orders, endpoint_url: 'http://a:h1dden@minio:9000'}",
}


@pytest.mark.parametrize("name", SECRETS)
def test_secret_is_refused_and_not_shown(name: str) -> None:
    table = "" if SECRETS[name].startswith("table") else "table: {format: delta, location: /data/t}\n"
    server = "" if SECRETS[name].startswith("namesrv") else "namesrv: h:1\n"
    said = refusal(f"{server}topic: T\n{table}{SECRETS[name]}\n")
    assert "h1dden" not in said
    assert "p.yaml:" in said


def test_settings_that_only_name_credentials_are_taken() -> None:
    provider = "spark.hadoop.fs.s3a.aws.credentials.provider: com.example.Provider"
    warehouse = "spark.sql.catalog.lake.warehouse: abfss://lake@shop.dfs.core.windows.net/w"
    table = "table: {format: delta, location: 'abfss://lake@shop.dfs.core.windows.net/t'}"
    more = "spark.sql.catalog.lake.token-refresh-enabled: true\n  spark.kubernetes.authenticate.oauthTokenFile: /run/t"
    found = parsed(f"namesrv: h:1\ntopic: T\n{table}\nspark:\n  {provider}\n  {warehouse}\n  {more}\n")
    assert len(found.spark) == 4


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 8)}]\n" for number in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("- a\n", "must be a mapping"),
        ("a: &x [*x]", "contain themselves"),
        (BOMB, "the file has more than 100,000 values"),
    ],
)
def test_documents_that_are_not_pipelines_are_refused(text: str, said: str) -> None:
    assert said in refusal(text)


LAKE = """\
namesrv: h:1
topic: T
table: {format: iceberg, name: lake.db.orders}
decode: {format: json, schema: {id: bigint, op: string, at: timestamp, tags: "map<string,string>"}}
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("upsert: {key: idd}", "which decode.schema does not have; did you mean 'id'?"),
        ("upsert: {key: id, order: when}", "order is when"),
        ("upsert: {key: id, delete_when: {column: gone, value: true}}", "column is gone"),
        ("upsert: {key: id, envelope: debezium, delete_when: {column: op, value: d}}", "its op says what is deleted"),
        ("upsert: {key: tags}", "names the column tags, which is a map"),
        ("upsert: {key: id, order: tags}", "names the column tags, which is a map"),
        ("upsert: {key: []}", "must name at least one"),
        ("upsert: {key: [id, id]}", "names id twice"),
    ],
)
def test_upsert_keys_name_existing_columns(line: str, said: str) -> None:
    assert said in refusal(LAKE + line)


def test_upserts_are_read() -> None:
    found = parsed(LAKE + "upsert: {key: id, order: at, delete_when: {column: op, value: d}}").upsert
    assert found is not None
    assert (found.key, found.order, found.delete_column, found.delete_value) == (("id",), "at", "op", "d")
    assert parsed(LAKE).state == Path("/pipelines/p.state")


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentInvalid, match="cannot be read"):
        read_pipeline(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DocumentInvalid, match="cannot be read"):
        read_pipeline(tmp_path / "binary.yaml")
