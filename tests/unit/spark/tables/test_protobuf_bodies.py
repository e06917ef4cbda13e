"""Bodies in Protobuf become rows, or are refused with a reason; schemas that no table can have are refused by field."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass

from spark.tables.arrow_rows import arrow_rows
from spark.tables.bodies import BodyInvalid, SchemaUnusable
from spark.tables.column_types import written_schema
from spark.tables.protobuf_bodies import ProtobufBodies, _pool, messages_in
from tests.support.order_protos import SET, file_set


def message(**values: Any) -> Any:
    return GetMessageClass(_pool(SET).FindMessageTypeByName("shop.Order"))(**values)


def rows(bodies: ProtobufBodies, *found: bytes) -> list[Any]:
    """For each body its row, or the reason."""
    result = arrow_rows(pa.array(found, pa.binary()), bodies.columns(), bodies.decoder()).to_pylist()
    assert all((each["row"] is None) != (each["reason"] is None) for each in result)
    return [each["row"] or each["reason"] for each in result]


ORDER = ProtobufBodies(SET, "shop.Order")


def test_each_type_becomes_a_column() -> None:
    assert written_schema(ORDER.columns()) == {
        "id": "bigint",
        "name": "string",
        "serial": "decimal(20,0)",
        "raw": "binary",
        "state": "string",
        "lines": "array<struct<sku:string,count:bigint>>",
        "by_name": "map<string,struct<sku:string,count:bigint>>",
        "at": "timestamp",
        "points": "int",
        "card": "string",
        "cash": "boolean",
        "more": "string",
        "took": "bigint",
        "weight": "double",
        "codes": "array<int>",
    }


def test_all_values_of_a_message_are_in_its_row() -> None:
    order = message(id=-5, name="Zürich", serial=2**64 - 1, raw=b"\xff", state=1, cash=False, weight=0.0, codes=[1, -1])
    order.lines.add(sku="a", count=2**32 - 1)
    order.by_name["b"].sku = "c"
    order.at.FromDatetime(dt.datetime(2026, 1, 31, 10, 15, 30, 123456, dt.UTC))
    order.points.value = 0
    order.more["k"] = 1
    order.took.seconds = 2
    assert rows(ORDER, order.SerializeToString()) == [
        {
            "id": -5,
            "name": "Zürich",
            "serial": Decimal(2**64 - 1),
            "raw": b"\xff",
            "state": "PAID",
            "lines": [{"sku": "a", "count": 2**32 - 1}],
            "by_name": [("b", {"sku": "c", "count": 0})],
            "at": dt.datetime(2026, 1, 31, 10, 15, 30, 123456, dt.UTC),
            "points": 0,
            "card": None,
            "cash": False,
            "more": '{"k": 1.0}',
            "took": 2_000_000,
            "weight": 0.0,
            "codes": [1, -1],
        }
    ]


def test_unset_protobuf_fields_are_default_or_null() -> None:
    (found,) = rows(ORDER, message(id=1).SerializeToString())
    assert (found["name"], found["serial"], found["state"], found["lines"]) == ("", Decimal(0), "NEW", [])
    nothing = ("at", "points", "card", "cash", "more", "weight")
    assert [found[name] for name in nothing] == [None] * len(nothing)


def test_value_of_an_enum_that_is_newer_is_its_number() -> None:
    (found,) = rows(ORDER, message(state=7).SerializeToString())
    assert found["state"] == "7"


def test_damaged_body_is_refused_with_a_reason() -> None:
    late = message(id=1)
    late.at.seconds = 10**12
    good = message(id=1, name="n").SerializeToString()
    found = rows(ORDER, b"", good[:-1], b"\x12\x01\xff", late.SerializeToString(), good)
    assert found[0] == "it is empty"
    assert all(each.startswith("it is not Protobuf of this message") for each in found[1:3])
    assert found[3] == "column at: 1000000000000 seconds and 0 nanoseconds are out of its range"
    assert found[4]["id"] == 1


def test_unknown_fields_are_left_out_or_refused() -> None:
    body = message(id=1, name="n").SerializeToString()
    assert rows(ProtobufBodies(SET, "shop.Old"), body) == [{"id": 1}]
    assert rows(ProtobufBodies(SET, "shop.Old", rejects_unknown=True), body) == [
        "it has a field 2; the message of decode.schema_file has no such field"
    ]
    inside = message(id=1)
    inside.lines.add().ParseFromString(message(id=1, name="n", serial=3).lines.add().SerializeToString() + b"\x18\x03")
    strict = ProtobufBodies(SET, "shop.Order", rejects_unknown=True)
    assert "a field lines.3" in rows(strict, inside.SerializeToString())[0]
    assert rows(strict, body)[0]["id"] == 1


def test_header_of_a_registry_names_the_message() -> None:
    body = message(id=1).SerializeToString()
    order = ProtobufBodies(SET, "shop.Order", has_header=True)
    start = b"\x00\x00\x00\x00\x01"
    found = rows(order, start + b"\x00" + body, start + b"\x02\x00" + body, start + b"\x02\x02" + body, start, body)
    assert [each if isinstance(each, str) else each["id"] for each in found] == [
        1,
        1,
        "it is message 1 of its file, counted from 0, and decode.message is message 0",
        "it ends within the header of a schema registry",
        "it has 2 bytes; expected a schema registry's header of 5",
    ]
    line = ProtobufBodies(SET, "shop.Order.Line", has_header=True)
    assert rows(line, start + b"\x04\x00\x00" + b"\x0a\x01a") == [{"sku": "a", "count": 0}]


def test_missing_required_field_is_refused() -> None:
    files = file_set("""
        name: "old.proto" syntax: "proto2" message_type { name: "Old"
          field { name: "id" number: 1 type: TYPE_INT32 label: LABEL_REQUIRED }
          field { name: "size" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL default_value: "3" } }
    """)
    bodies = ProtobufBodies(files, "Old")
    assert rows(bodies, b"\x10\x01", b"\x08\x01") == ["the required field id is missing", {"id": 1, "size": None}]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("shop.Ordr", "the descriptor set has no message shop.Ordr; it has shop.Order, shop.Old"),
        ("shop.Node", "field next contains itself (message shop.Node)"),
        ("shop.Empty", "message shop.Empty has no fields"),
        ("shop.Cases", "the message has columns a and A: engines cannot tell them apart, only case differs"),
    ],
)
def test_invalid_message_is_refused_by_field(name: str, reason: str) -> None:
    with pytest.raises(SchemaUnusable) as caught:
        ProtobufBodies(SET, name).columns()
    assert reason in str(caught.value)


def test_descriptor_set_without_its_imports_is_refused() -> None:
    files = file_set('name: "a.proto" dependency: "b.proto" message_type { name: "A" }')
    with pytest.raises(
        SchemaUnusable, match=r"a\.proto imports b\.proto, which the descriptor set lacks: make the set with protoc"
    ):
        ProtobufBodies(files, "A").columns()
    with pytest.raises(SchemaUnusable, match="the file is not a descriptor set"):
        ProtobufBodies(b"\xff\xff", "A").columns()
    assert messages_in(SET)[:2] == ["shop.Order", "shop.Old"]


def test_random_bytes_never_end_the_decoder() -> None:
    decode = ORDER.decoder()
    chance = random.Random(1)
    good = message(id=1, name="n" * 20, codes=range(20)).SerializeToString()
    refused = 0
    for _ in range(2000):
        body = bytearray(good)
        for _ in range(3):
            body[chance.randrange(len(body))] = chance.randrange(256)
        try:
            decode(bytes(body))
        except BodyInvalid:
            refused += 1
    assert refused > 300


def test_number_that_json_lacks_is_refused_with_its_column() -> None:
    order = message(id=1)
    order.more["ratio"] = float("nan")
    good = message(id=2).SerializeToString()
    refused, row = rows(ORDER, order.SerializeToString(), good)
    assert "column more cannot be JSON" in refused
    assert row["id"] == 2


def test_header_with_a_negative_path_is_refused() -> None:
    found = ProtobufBodies(SET, "shop.Order", has_header=True)
    assert "its header names a message path of -1 parts" in rows(found, b"\0\0\0\0\x07\x01\x08\x02")[0]


def test_unknown_protobuf_fields_become_dead_letters_on_request() -> None:
    closed = """name: "p2.proto" package: "p2" syntax: "proto2"
    enum_type { name: "State" value { name: "NEW" number: 0 } }
    message_type { name: "Order" field { name: "state" number: 1 type: TYPE_ENUM type_name: ".p2.State"
      label: LABEL_OPTIONAL } }"""
    for body in (b"\x08\x05", b"\x0a\x01a"):  # an unknown value, and text instead of a number
        assert rows(ProtobufBodies(file_set(closed), "p2.Order"), body) == [{"state": None}]
        strict = ProtobufBodies(file_set(closed), "p2.Order", rejects_unknown=True)
        assert "it has a field 1; the message" in rows(strict, body)[0]
