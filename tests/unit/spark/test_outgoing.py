"""Which columns a sink takes, and what messages its rows become."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from mq.protocol import properties as props
from mq.protocol.messages.batch import BatchedMessage, encode_batch, split_batch
from mq.protocol.messages.compression import inflate
from spark.errors import RowInvalid
from spark.numbering import Destination
from spark.options import OptionInvalid
from spark.outgoing import LEFT_OUT, Codec, Message, encode_messages, messages_of, sink_columns

TYPES: dict[str, pa.DataType] = {
    "body": pa.binary(),
    "topic": pa.string(),
    "broker_name": pa.string(),
    "queue_id": pa.int32(),
    "keys": pa.string(),
    "tags": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
}
SPARK_TYPES = {"body": "binary", "queue_id": "int", "properties": "map<string,string>"}


def messages(
    *, option: str | None = "T", body_type: pa.DataType = TYPES["body"], **columns: list[Any]
) -> list[Message]:
    known = TYPES | {"body": body_type}
    batch = pa.record_batch([pa.array(values, known[name]) for name, values in columns.items()], list(columns))
    fields = [(name, SPARK_TYPES.get(name, "string")) for name in columns]
    return list(messages_of(batch, sink_columns(fields, option)))


def properties(message: Message) -> dict[str, str]:
    return props.decode(message.properties.decode())


@pytest.mark.parametrize(
    ("fields", "topic", "told"),
    [
        (
            [("body", "binary"), ("queue_offset", "bigint")],
            "T",
            "the sink takes no column 'queue_offset'; it takes body, topic, broker_name, queue_id, keys, tags, "
            "properties: select only these; did you mean 'queue_id'?",
        ),
        ([("Body", "binary")], "T", "select only these; did you mean 'body'?"),
        ([("zzz", "binary")], "T", "the sink takes no column 'zzz'; it takes body"),
        ([("topic", "string")], "T", "the sink needs a column body, binary or string"),
        ([("body", "string")], None, "the sink needs the option topic, or a column topic"),
        ([("body", "int")], "T", "column body of the sink is binary or string, not int"),
        (
            [("body", "string"), ("properties", "string")],
            "T",
            "the sink is map<string,string>, not string",
        ),
        (
            [("body", "string"), ("queue_id", "string")],
            "T",
            "the sink is tinyint or smallint or int or bigint",
        ),
        ([("body", "string"), ("keys", "string"), ("key", "string")], "T", "columns keys and key are the same column"),
        ([("value", "string"), ("body", "string")], "T", "columns value and body are the same column of the sink"),
    ],
)
def test_unaccepted_column_is_reported_by_name(fields: list[tuple[str, str]], topic: str | None, told: str) -> None:
    with pytest.raises(OptionInvalid) as refused:
        sink_columns(fields, topic)
    assert told in str(refused.value)


def test_rows_become_messages() -> None:
    found = messages(
        body=[b"one", b"two", b"\x00\xff"],
        topic=["A", None, "A"],
        queue_id=[3, None, None],
        keys=["k1 k2", None, ""],
        tags=[None, "t", "é"],
        properties=[[("own", "x"), ("empty", ""), ("gone", None)], None, []],
    )
    assert [each.destination for each in found] == [Destination("A", None, 3), Destination("T"), Destination("A")]
    assert [each.body for each in found] == [b"one", b"two", b"\x00\xff"]
    assert [properties(each) for each in found] == [{"own": "x", "KEYS": "k1 k2"}, {"TAGS": "t"}, {"TAGS": "é"}]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_bodies_are_bytes_or_text(kind: pa.DataType) -> None:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    [found] = messages(body_type=kind, body=["grün" if text else "grün".encode()])
    assert found == Message(Destination("T"), "grün".encode(), b"")


def test_column_names_of_kafka_are_accepted() -> None:
    batch = pa.record_batch([pa.array(["k"]), pa.array(["v"]), pa.array(["t"])], ["key", "value", "tag"])
    columns = sink_columns([("key", "string"), ("value", "string"), ("tag", "string")], "T")
    [found] = messages_of(batch, columns)
    assert (found.body, properties(found)) == (b"v", {"KEYS": "k", "TAGS": "t"})


def test_properties_of_a_message_read_do_not_describe_the_one_written() -> None:
    read = {"UNIQ_KEY": "K", "CLUSTER": "c", "DELAY": "3", "RAFTMQ_SEQUENCE": "5", "RAFTMQ_PRODUCER": "p"}
    read |= {"__RMQ.TRANSIENT.x": "1", "KEYS": "k", "TAGS": "old", "own": "x"}
    [found] = messages(body=[b"x"], tags=["new"], properties=[list(read.items())])
    assert properties(found) == {"KEYS": "k", "TAGS": "new", "own": "x"}
    assert props.RESERVED - {"KEYS", "TAGS"} | {"RAFTMQ_PRODUCER", "RAFTMQ_SEQUENCE"} == LEFT_OUT


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"body": None}, "its body is null"),
        ({"body": b""}, "its body is empty"),
        ({"topic": None}, "it has no topic, and option topic is not set"),
        ({"queue_id": -1}, "its queue_id is -1"),
        ({"tags": "a || b"}, "its tag 'a || b' is a filter for several tags"),
        ({"keys": "a\x01b"}, "the property 'KEYS' has no name, or contains a separator"),
        ({"properties": [("", "x")]}, "the property '' has no name"),
        ({"properties": [("a\x02", "x")]}, "contains a separator, 0x01 or 0x02"),
        ({"properties": [("a", "x" * 33_000)]}, "its properties have 33003 bytes; 29696 are allowed"),
    ],
)
def test_invalid_row_is_reported(row: dict[str, Any], told: str) -> None:
    good = {"body": b"x", "topic": "T", "queue_id": 0, "keys": None, "tags": None, "properties": None}
    columns = {name: [good[name], (good | row)[name]] for name in good}
    with pytest.raises(RowInvalid) as refused:
        messages(option=None, **columns)
    assert refused.value.row == 1
    assert told in str(refused.value)


def test_sink_batches_equal_those_of_the_broker_protocol() -> None:
    found = messages(body=[b"one", b"two"], tags=["a", None])
    flag, body = encode_messages(found, "zlib")
    assert flag == 0
    assert body == encode_batch([BatchedMessage(b"one", "TAGS\x01a\x02"), BatchedMessage(b"two", "")])


@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd"])
def test_bodies_of_a_batch_are_compressed_all_or_none(codec: Codec) -> None:
    large = [Message(Destination("T"), text * 5000, b"") for text in (b"a", b"b")]
    small = Message(Destination("T"), b"small", b"")
    flag, body = encode_messages([*large, small], "none")
    assert (flag, len(split_batch(body)[0][1])) == (0, 5000)
    assert encode_messages([small, small], codec)[0] == 0
    assert encode_messages([large[0], *[small] * 9], codec)[0] == 0
    flag, body = encode_messages(large, codec)
    bodies = [each for _, each, _ in split_batch(body)]
    assert all(len(each) < 1000 for each in bodies)
    assert [inflate(flag, each, 10_000) for each in bodies] == [b"a" * 5000, b"b" * 5000]


def test_bodies_that_would_not_shrink_stay_uncompressed() -> None:
    import random

    noise = Message(Destination("T"), random.Random(1).randbytes(5000), b"")
    flag, body = encode_messages([noise], "zlib")
    assert (flag, split_batch(body)[0][1]) == (0, noise.body)


def test_executors_import_nothing_but_pyarrow() -> None:
    strange = "{'msgspec', 'trio', 'anyio', 'lz4', 'zstandard', 'pyspark', 'pandas'}"
    program = f"import sys; import spark.writer; print(sorted(sys.modules.keys() & {strange}))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
