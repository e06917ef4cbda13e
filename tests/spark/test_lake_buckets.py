"""Tables of Iceberg and Delta in S3 storage, as docs/tables.md sets them up: by commands, each with its own Spark.

Needs a Spark for which there are builds of both, as tests/spark/test_lake_tables.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.tables.installed import PACKAGES, installed_spark
from tests.spark.stage import Stage
from tests.spark.table_commands import TableCommand
from tests.support.object_storage import BUCKET, ENVIRONMENT, ObjectStorage, object_storage

RELEASE = ".".join(installed_spark().split(".")[:2])
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        ("iceberg", RELEASE) not in PACKAGES, reason=f"there is no build of Iceberg for Spark {RELEASE}"
    ),
]
ICEBERG, DELTA = (
    (PACKAGES[kind, RELEASE][0] for kind in ("iceberg", "delta")) if not pytestmark[1].args[0] else ("", "")
)
ATTEMPTS = "spark.hadoop.fs.s3a.attempts.maximum: 1, spark.hadoop.fs.s3a.retry.limit: 1"


@pytest.fixture
def storage() -> Iterator[ObjectStorage]:
    with object_storage() as found:
        yield found


def delta(url: str, _: Path) -> str:
    return f"""
table: {{format: delta, location: "s3a://{BUCKET}/orders"}}
packages: [{DELTA}, "org.apache.hadoop:hadoop-aws:3.4.2"]
spark: {{spark.hadoop.fs.s3a.endpoint: "{url}", spark.hadoop.fs.s3a.endpoint.region: us-east-1,
  spark.hadoop.fs.s3a.path.style.access: true, {ATTEMPTS}}}
"""


def iceberg(url: str, directory: Path) -> str:
    return f"""
table: {{format: iceberg, name: lake.shop.orders}}
packages: [{ICEBERG}, "org.apache.iceberg:iceberg-aws-bundle:1.12.0", "org.xerial:sqlite-jdbc:3.50.3.0"]
spark:
  spark.sql.catalog.lake: org.apache.iceberg.spark.SparkCatalog
  spark.sql.catalog.lake.type: jdbc
  spark.sql.catalog.lake.uri: "jdbc:sqlite:{directory / "catalog.db"}"
  spark.sql.catalog.lake.jdbc.schema-version: V1
  spark.sql.catalog.lake.warehouse: s3://{BUCKET}/lake
  spark.sql.catalog.lake.io-impl: org.apache.iceberg.aws.s3.S3FileIO
  spark.sql.catalog.lake.s3.endpoint: "{url}"
  spark.sql.catalog.lake.s3.path-style-access: true
"""


@pytest.mark.parametrize(("kind", "table"), [("delta", delta), ("iceberg", iceberg)], ids=["delta", "iceberg"])
def test_table_in_a_bucket_has_each_row_once(
    kind: str, table: object, stage: Stage, storage: ObjectStorage, tmp_path: Path
) -> None:
    assert callable(table)
    topic = stage.topic("Orders", 2)
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"namesrv: {stage.namesrv}\ntopic: {topic}\nmax_messages_per_commit: 5\n"
        f"decode: {{format: json, schema: {{id: bigint}}}}\n{table(storage.url, tmp_path)}"
    )

    def ran(command: str) -> tuple[int, str, str]:
        arguments = (command, file, "--json", "--master", "local[2]", "--driver-memory", "1g")
        log = tmp_path / f"{len(list(tmp_path.glob('*.log')))}.log"
        started = TableCommand(log, *arguments, environment={**ENVIRONMENT, "AWS_REGION": "us-east-1"})
        try:
            return started.ended(), "".join(started.printed), started.errors()
        finally:
            started.close()

    def sent(numbers: range) -> None:
        stage.send(topic, [b'{"id": %d}' % number for number in numbers])

    sent(range(8))
    code, said, errors = ran("run")
    assert code == 0, errors
    assert json.loads(said.splitlines()[-1])["messages"] == 8
    sent(range(8, 12))
    storage.fault = lambda method, _: 403 if method in ("PUT", "POST") else None
    code, _, errors = ran("run")
    where = f"s3a://{BUCKET}/orders" if kind == "delta" else f"lake.shop.orders in s3://{BUCKET}/lake"
    assert (code, f"the table {where} is not allowed" in errors) == (1, True), errors
    assert "The table has the messages before" in errors
    storage.come_back()
    code, said, errors = ran("run")
    assert code == 0, errors
    assert json.loads(said.splitlines()[-1])["messages"] == 4
    code, said, errors = ran("verify")
    assert code == 0, errors
    assert sum(queue["rows_found"] for queue in json.loads(said)["queues"]) == 12
    assert any(name.endswith(".parquet") for name in storage.names())
