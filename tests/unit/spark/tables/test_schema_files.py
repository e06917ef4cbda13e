"""What a pipeline file says of schema files, buckets and accounts: each mistake is named with its line or its field."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spark.access import CREDENTIALS, TLS, TLS_CA
from spark.tables.column_types import written_schema
from spark.tables.documents import DocumentInvalid
from spark.tables.pipeline import Pipeline, parse_pipeline
from tests.support.order_protos import FILE, SET, file_set

HEAD = "namesrv: 127.0.0.1:9876\ntopic: Orders\n"
TABLE = "table: {format: parquet, location: orders}\n"
FIELDS = [{"name": "id", "type": "long"}]


class Place:
    """A directory with a pipeline and its files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.avro("orders.avsc", FIELDS)
        (directory / "orders.desc").write_bytes(SET)

    def avro(self, name: str, fields: Sequence[Any]) -> None:
        (self.directory / name).write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))

    def parsed(self, text: str, table: str = TABLE) -> Pipeline:
        return parse_pipeline(HEAD + table + textwrap.dedent(text), self.directory / "p.yaml")

    def refusal(self, text: str, table: str = TABLE) -> str:
        with pytest.raises(DocumentInvalid) as caught:
            self.parsed(text, table)
        return str(caught.value).replace(f"{self.directory}/", "")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_schema_file_path_is_relative_to_the_pipeline(place: Place) -> None:
    found = place.parsed("decode: {format: avro, schema_file: orders.avsc}")
    assert written_schema(found.decode.columns) == {"id": "bigint"}
    desc = place.parsed("decode: {format: protobuf, schema_file: orders.desc, message: shop.Old}")
    assert written_schema(desc.decode.columns) == {"id": "bigint"}
    alone = file_set('name: "a.proto" message_type { name: "A" field { name: "n" number: 1 type: TYPE_INT32 label: '
                     "LABEL_OPTIONAL } }")  # fmt: skip
    (place.directory / "one.desc").write_bytes(alone)
    one = place.parsed("decode: {format: protobuf, schema_file: one.desc}")
    assert written_schema(one.decode.columns) == {"n": "int"}
    place.parsed(
        "decode: {format: avro, schema_file: orders.avsc, header: confluent, writer_schemas: {'7': orders.avsc}}"
    )


@pytest.mark.parametrize(
    ("decode", "reason"),
    [
        ("{format: avro}", "p.yaml:4: decode.schema_file is missing"),
        (
            "{format: avro, schema_file: none.avsc}",
            "p.yaml:4: decode.schema_file names none.avsc, which cannot be read",
        ),
        (
            "{format: avro, schema_file: orders.avsc, schema: {id: int}}",
            "decode.schema is not for avro: set schema_file",
        ),
        ("{format: avro, schema_file: damaged.avsc}", "damaged.avsc: line 2: this is not JSON"),
        ("{format: avro, schema_file: orders.desc}", "orders.desc: line 2: this is not JSON"),
        ("{format: avro, schema_file: union.avsc}", "union.avsc: field id is a union of string and int"),
        ("{format: avro, schema_file: own.avsc}", "column _queue_id is the name of a column that the pipeline adds"),
        ("{format: avro, schema_file: orders.avsc, writer_schemas: {'7': orders.avsc}}", "needs header = confluent"),
        (
            "{format: avro, schema_file: orders.avsc, header: confluent, writer_schemas: {'-7': orders.avsc}}",
            "has '-7': expected the number of a schema",
        ),
        (
            "{format: avro, schema_file: orders.avsc, header: confluent, writer_schema: orders.avsc}",
            "is for bodies without a header",
        ),
        (
            "{format: avro, schema_file: newer.avsc, writer_schema: orders.avsc}",
            "orders.avsc: field note is not in it, and has no default in decode.schema_file",
        ),
        ("{format: protobuf, schema_file: orders.desc}", "message is missing: orders.desc has shop.Order, shop.Old"),
        (
            "{format: protobuf, schema_file: orders.desc, message: shop.Ordr}",
            "orders.desc: the descriptor set has no message shop.Ordr",
        ),
        ("{format: protobuf, schema_file: orders.avsc, message: A}", "orders.avsc: the file is not a descriptor set"),
        (
            "{format: protobuf, schema_file: orders.desc, message: shop.Old, new_fields: add}",
            "must be ignore or dead-letter",
        ),
    ],
)
def test_unsuitable_schema_files_are_refused_by_name(place: Place, decode: str, reason: str) -> None:
    (place.directory / "damaged.avsc").write_text('{"type":\n oops}')
    place.avro("union.avsc", [{"name": "id", "type": ["string", "int"]}])
    place.avro("own.avsc", [{"name": "_queue_id", "type": "int"}])
    place.avro("newer.avsc", [*FIELDS, {"name": "note", "type": "string"}])
    assert reason in place.refusal(f"decode: {decode}")


def test_proto_file_is_compiled_or_its_line_is_reported(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.directory / "orders.proto").write_text(FILE)
    decode = "decode: {format: protobuf, schema_file: orders.proto, message: shop.Old}"
    monkeypatch.setenv("PATH", str(place.directory))
    monkeypatch.setattr("spark.tables.schema_files.importlib.util.find_spec", lambda _: None)
    assert "protoc, which compiles .proto files, is not installed" in place.refusal(decode)
    tool = place.directory / "protoc"
    # Stands for protoc: it knows one file.
    tool.write_text(
        '#!/bin/sh\nfor each; do case $each in --descriptor_set_out=*) /bin/cp orders.desc "${each#*=}";; esac; done\n'
    )
    tool.chmod(0o755)
    assert list(place.parsed(decode).decode.columns) == ["id"]
    tool.write_text("#!/bin/sh\necho 'orders.proto:3:1: Expected \";\".' >&2\nexit 1\n")
    assert place.refusal(decode) == 'orders.proto:3:1: Expected ";".'


def test_changes_in_avro_need_the_shape_of_a_change(place: Place) -> None:
    row = {"type": "record", "name": "Value", "fields": FIELDS}
    change = [
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "op", "type": "string"},
    ]
    place.avro("change.avsc", change)
    place.avro("odd.avsc", change[:2])
    table = "table: {format: delta, location: t}\n"
    upsert = "upsert: {key: [id], envelope: debezium}\n"
    found = place.parsed(f"{upsert}decode: {{format: avro, schema_file: change.avsc}}", table)
    assert list(found.decode.columns) == ["id"]
    refused = place.refusal(f"{upsert}decode: {{format: avro, schema_file: odd.avsc}}", table)
    assert "needs a schema file with op, a string" in refused
    wrong = upsert.replace("[id]", "[number]")
    assert "key names number" in place.refusal(f"{wrong}decode: {{format: avro, schema_file: change.avsc}}", table)


def test_bucket_table_keeps_its_state_near_the_pipeline_file(place: Place) -> None:
    found = place.parsed(
        "", "table: {format: parquet, location: 's3://lake/orders/', endpoint_url: 'http://s3:9000'}\n"
    )
    assert (found.table.location, found.table.endpoint_url) == ("s3://lake/orders", "http://s3:9000")
    assert found.table.is_in_bucket
    assert found.state == place.directory / "p.state"
    assert not place.parsed("").table.is_in_bucket


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("location: 's3://lake'", "must be s3://BUCKET/PREFIX"),
        ("location: 's3a://lake/orders'", "must begin with s3://"),
        ("location: 's3://key:secret@lake/orders'", "must not have credentials"),
        ("location: 'gs://lake/orders'", "must be a directory that the driver and all executors see, or s3://"),
        ("location: orders, endpoint_url: 'http://s3:9000'", "is for Parquet in S3 storage"),
        ("location: 's3://lake/orders', endpoint_url: 's3:9000'", "must be a URL such as"),
    ],
)
def test_unusable_bucket_is_refused(place: Place, table: str, reason: str) -> None:
    assert reason in place.refusal("", f"table: {{format: parquet, {table}}}\n")


def test_account_is_named_by_files_and_never_by_keys(place: Place) -> None:
    found = place.parsed("account: {credentials: keys.toml, tls_ca: /etc/ca.pem}")
    assert found.account == {CREDENTIALS: str(place.directory / "keys.toml"), TLS_CA: "/etc/ca.pem", TLS: "on"}
    assert place.parsed("account: {tls: true}").account == {TLS: "on"}
    assert place.parsed("").account == {}
    refused = place.refusal("account: {access_key: reader, secret_key: hidden}")
    assert "account.access_key does not belong into this file" in refused
    assert "hidden" not in refused
    assert "must be true or false" in place.refusal("account: {tls: maybe}")
