"""Tables from Avro and Protobuf, tables in a bucket, and tables from a cluster with accounts."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, text_format

from spark.tables.decoding import DELETED, REASON, decode_bodies
from spark.tables.job import run
from spark.tables.layout import SchemaInvalid
from spark.tables.pipeline import Pipeline, parse_pipeline
from spark.tables.state_directory import StateDirectory
from spark.tables.status import known_commit, table_status
from spark.tables.verification import compare, kept_ranges, table_rows
from tests.spark.stage import Stage
from tests.support.dev_clusters import short_lived
from tests.support.object_storage import BUCKET, ObjectStorage, object_storage


class Killed(BaseException):
    """Not caught by anything."""


class Case:
    """A topic, one for dead letters, and a pipeline beside its files."""

    def __init__(self, session: Any, stage: Stage, directory: Path) -> None:
        self.session = session
        self.stage = stage
        self.directory = directory
        self.topic = stage.topic("Orders", 2)
        self.dead = stage.topic("Dead", 1)
        self.table = f"{{format: parquet, location: {directory / 'table'}}}"

    def pipeline(self, decode: str, more: str = "") -> Pipeline:
        text = (
            f"name: t\nnamesrv: {self.stage.namesrv}\ntopic: {self.topic}\ndecode: {decode}\ntable: {self.table}\n"
            f"dead_letters: {{topic: {self.dead}, stop_above_percent: 80}}\n{more}\n"
        )
        return parse_pipeline(text, self.directory / "p.yaml")

    def run(self, of: Pipeline, step: Callable[[str], None] = lambda _: None) -> None:
        state = StateDirectory(of.state)
        state.open()
        try:
            run(of, self.session, state, threading.Event(), step)
        finally:
            state.close()

    def rows(self, of: Pipeline) -> list[Any]:
        return list(table_rows(self.session, of).collect())

    def dead_letters(self) -> list[str]:
        reader = self.session.read.format("raftmq").option("namesrv", self.stage.namesrv)
        found = reader.option("subscribe", self.dead).load().collect()
        return sorted(row.properties["RAFTMQ_TABLE_REASON"] for row in found)


@pytest.fixture
def case(session: Any, stage: Stage, tmp_path: Path) -> Case:
    return Case(session, stage, tmp_path)


LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}
FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}]},
    {"name": "lines", "type": {"type": "array", "items": LINE}},
    {"name": "more", "type": {"type": "map", "values": "int"}},
]


def avro(fields: list[dict[str, Any]], **values: Any) -> bytes:
    body = io.BytesIO()
    schema = fastavro.parse_schema({"type": "record", "name": "Order", "fields": fields})
    fastavro.schemaless_writer(body, schema, values)
    return body.getvalue()


def keep(path: Path, fields: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))


def test_avro_becomes_rows_and_a_changed_file_adds_its_columns(case: Case) -> None:
    keep(case.directory / "orders.avsc", FIELDS)
    plain = {"at": 1_700_000_000_123, "price": None, "lines": [{"sku": "a"}], "more": {"k": 1}}
    case.stage.send(case.topic, [avro(FIELDS, id=number, **plain) for number in range(6)] + [b"\xff\xff"])
    pipeline = case.pipeline("{format: avro, schema_file: orders.avsc}")
    case.run(pipeline)
    rows = case.rows(pipeline)
    assert Counter(row.id for row in rows) == Counter(range(6))
    assert {(row["at"].microsecond, row.price, row.lines[0].sku, row.more["k"]) for row in rows} == {
        (123000, None, "a", 1)
    }
    assert len(case.dead_letters()) == 1
    newer = [*FIELDS, {"name": "note", "type": ["null", "string"], "default": None}]
    keep(case.directory / "newer.avsc", newer)
    old = b"\x00\x00\x00\x00\x01" + avro(FIELDS, id=6, **plain)
    new = b"\x00\x00\x00\x00\x02" + avro(newer, id=7, note="n", **plain)
    case.stage.send(case.topic, [old, new, new[1:]])
    writers = '{"1": orders.avsc, "2": newer.avsc}'
    changed = case.pipeline(f"{{format: avro, schema_file: newer.avsc, header: confluent, writer_schemas: {writers}}}")
    case.run(changed)
    by_id = {row.id: row.note for row in case.rows(changed)}
    assert (by_id[0], by_id[6], by_id[7]) == (None, None, "n")
    assert len(case.dead_letters()) == 2
    keep(case.directory / "broken.avsc", [{"name": "id", "type": "string"}, *FIELDS[1:]])
    case.stage.send(case.topic, [avro([{"name": "id", "type": "string"}, *FIELDS[1:]], id="8", **plain)])
    with pytest.raises(SchemaInvalid, match="column id: the table has bigint, the pipeline writes string"):
        case.run(case.pipeline("{format: avro, schema_file: broken.avsc}"))
    assert len(case.rows(changed)) == 8


def test_changes_in_avro_set_and_delete_rows(session: Any, tmp_path: Path) -> None:
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}
    change: list[dict[str, Any]] = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
    ]
    keep(tmp_path / "change.avsc", change)
    text = (
        "namesrv: n:1\ntopic: T\ntable: {format: delta, location: t}\nupsert: {key: [id], envelope: debezium}\n"
        "decode: {format: avro, schema_file: change.avsc, header: confluent}\n"
    )
    pipeline = parse_pipeline(text, tmp_path / "p.yaml")
    assert list(pipeline.decode.columns) == ["id"]
    header = b"\x00\x00\x00\x00\x01"
    bodies = [
        header + avro(change, before=None, after={"id": 1}, op="c"),
        header + avro(change, before={"id": 2}, after=None, op="d"),
        header + avro(change, before=None, after=None, op="u"),
        header + avro(change, before=None, after={"id": 3}, op="t"),
    ]
    messages = [(each, None) for each in bodies] + [(b"", '{"id":4}'), (b"", "\0\0\0\0\x01\x08")]
    frame = session.createDataFrame(messages, "body binary, keys string")
    found = decode_bodies(frame, pipeline, pipeline.decode.columns).collect()
    assert [(each.raftmq_row.id, each[DELETED], each[REASON]) for each in found] == [
        (1, False, None),
        (2, True, None),
        (None, False, "its op is u, and it has no row for that"),
        (3, False, "its op is t; c, r, u and d are known"),
        (4, True, None),
        (None, True, "it has no body, and its keys do not say which id it deletes"),
    ]


def test_protobuf_becomes_rows(case: Case) -> None:
    files = descriptor_pb2.FileDescriptorSet()
    text = """
        name: "orders.proto" package: "shop" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
        message_type { name: "Order"
          field { name: "id" number: 1 type: TYPE_UINT64 label: LABEL_OPTIONAL }
          field { name: "at" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp"
                  label: LABEL_OPTIONAL }
          field { name: "tags" number: 3 type: TYPE_STRING label: LABEL_REPEATED } }
    """
    text_format.Parse(text, files.file.add())
    (case.directory / "orders.desc").write_bytes(files.SerializeToString())
    largest = b"\x08" + b"\xff" * 9 + b"\x01"  # id: 2**64 - 1
    case.stage.send(case.topic, [largest + b"\x12\x02\x08\x05\x1a\x01x", b"\x08\x01", b"\x08"])
    pipeline = case.pipeline("{format: protobuf, schema_file: orders.desc, message: shop.Order}")
    case.run(pipeline)
    rows = sorted(case.rows(pipeline), key=lambda row: row.id)
    assert [(int(row.id), row["at"] and row["at"].second, row.tags) for row in rows] == [
        (1, None, []),
        (2**64 - 1, 5, ["x"]),
    ]
    assert len(case.dead_letters()) == 1


@pytest.fixture
def storage(session: Any) -> Iterator[ObjectStorage]:
    with object_storage() as found:  # `session` has set the credentials
        yield found


JSON = "{format: json, schema: {id: bigint}}"


@pytest.mark.nightly
def test_table_in_a_bucket_has_each_row_once(case: Case, storage: ObjectStorage, session: Any) -> None:
    by_day = "partition_by: {column: _store_timestamp}"
    case.table = f"{{format: parquet, location: s3://{BUCKET}/orders, endpoint_url: {storage.url}, {by_day}}}"
    case.stage.send(case.topic, [b'{"id": %d}' % number for number in range(8)] + [b"bad"])
    pipeline = case.pipeline(JSON, "max_messages_per_commit: 5")
    case.run(pipeline)
    assert Counter(row.id for row in case.rows(pipeline)) == Counter(range(8))
    for at in ("create the commit", "copy an object", "remove a staged object"):
        number = len(case.rows(pipeline))
        case.stage.send(case.topic, [b'{"id": %d}' % number, b"bad too"])

        def die(step: str, at: str = at) -> None:
            if step == at:
                raise Killed

        with pytest.raises(Killed):
            case.run(pipeline, die)
        case.run(pipeline)
        assert Counter(row.id for row in case.rows(pipeline)) == Counter(range(number + 1))
    storage.fault = lambda method, path: 403 if method == "PUT" else None
    case.stage.send(case.topic, [b'{"id": 11}'])
    with pytest.raises(Exception, match="AccessDenied"):
        case.run(pipeline)
    storage.come_back()
    assert table_status(pipeline, 0)["lag_messages"] == 1
    case.run(pipeline)
    assert Counter(row.id for row in case.rows(pipeline)) == Counter([*range(11), 11])
    assert len(case.dead_letters()) == 4
    last = known_commit(pipeline)
    assert last is not None
    assert all(each["equal"] for each in compare(session, pipeline, last, kept_ranges(pipeline, last)))
    assert all(key.startswith(("orders/_raftmq/", "orders/day=")) for key in storage.names())


ACCOUNTS = """
accounts:
- {accessKey: operator1, secretKey: secret-of-operator, admin: true}
- {accessKey: reader001, secretKey: secret-of-reader, topicPerms: [Orders=SUB, Dead=PUB], defaultTopicPerm: DENY}
- {accessKey: stranger1, secretKey: secret-of-stranger, defaultTopicPerm: DENY}
"""


@pytest.mark.nightly
def test_pipeline_reads_and_writes_with_one_account(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    for name, secret in (("reader001", "reader"), ("stranger1", "stranger")):
        keys = tmp_path / f"{name}.toml"
        keys.write_text(f'access_key = "{name}"\nsecret_key = "secret-of-{secret}"\n')
        keys.chmod(0o600)
    operator = {"RAFTMQ_ACCESS_KEY": "operator1", "RAFTMQ_SECRET_KEY": "secret-of-operator"}
    with short_lived("--nodes", "1", "--set", f"acl_file={accounts}", env=operator) as said:
        where = ("--namesrv", said["namesrv"])
        for topic in ("Orders", "Dead"):
            assert raftmq("topic", "create", topic, *where, env=operator).returncode == 0
        sent = '{"id": 1}\n{"id": 2}\nbad\n'
        assert raftmq("produce", "Orders", *where, env=operator, stdin=sent).returncode == 0
        file = tmp_path / "p.yaml"

        def write(who: str) -> None:
            file.write_text(
                f"namesrv: {said['namesrv']}\ntopic: Orders\ndecode: {JSON}\ntable: {{format: parquet, location: t}}\n"
                f"dead_letters: {{topic: Dead}}\naccount: {{credentials: {who}.toml}}\n"
            )

        write("stranger1")
        refused = raftmq("table", "run", str(file), env={})
        assert refused.returncode in (1, 2)
        assert "stranger1" in refused.stderr
        assert "secret" not in refused.stderr + refused.stdout
        write("reader001")
        done = raftmq("table", "run", str(file), env=operator)  # the file's account wins
        assert (done.returncode, "1 of them dead letters" in done.stdout) == (0, True), done.stderr
        status = raftmq("table", "status", str(file), "--json", env={})
        assert json.loads(status.stdout)["lag_messages"] == 0, status.stderr


def raftmq(*arguments: str, env: dict[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mq.cli", *arguments],
        env={**os.environ, **env},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
