"""Bodies in Avro become rows, or are refused with a reason; schemas that no table can have are refused by field."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
import uuid
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from spark.tables.arrow_rows import arrow_rows
from spark.tables.avro_bodies import NO_NUMBER, AvroBodies
from spark.tables.bodies import BodyInvalid, SchemaUnusable
from spark.tables.column_types import written_schema


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Order",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
        **more,
    }


def written(schema: Any, value: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return body.getvalue()


def rows(bodies: AvroBodies, *found: bytes) -> list[Any]:
    """For each body its row, or the reason."""
    result = arrow_rows(pa.array(found, pa.binary()), bodies.columns(), bodies.decoder()).to_pylist()
    assert all((each["row"] is None) != (each["reason"] is None) for each in result)
    return [each["row"] or each["reason"] for each in result]


ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}
MOMENT = dt.datetime(2026, 1, 31, 10, 15, 30, 123000, dt.UTC)
NUMBER = uuid.UUID(int=7)
VALUES: dict[str, tuple[Any, str, Any, Any]] = {
    "boolean": ("boolean", "boolean", True, True),
    "int": ("int", "int", -(2**31), -(2**31)),
    "long": ("long", "bigint", 2**63 - 1, 2**63 - 1),
    "float": ("float", "float", 0.5, 0.5),
    "double": ("double", "double", 0.1, 0.1),
    "string": ("string", "string", "Zürich", "Zürich"),
    "bytes": ("bytes", "binary", b"\xff\x00", b"\xff\x00"),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, "binary", b"ab", b"ab"),
    "enum": ({"type": "enum", "name": "E", "symbols": ["NEW", "PAID"]}, "string", "PAID", "PAID"),
    "null or a string": (["null", "string"], "string", "x", "x"),
    "null": (["null", "string"], "string", None, None),
    "int or long": (["int", "long"], "bigint", 2**40, 2**40),
    "array": ({"type": "array", "items": ["null", "int"]}, "array<int>", [1, None], [1, None]),
    "map": ({"type": "map", "values": "long"}, "map<string,bigint>", {"a": 1}, [("a", 1)]),
    "record": (ADDRESS, "struct<city:string>", {"city": "Bern"}, {"city": "Bern"}),
    "map of records": ({"type": "map", "values": ADDRESS}, "map<string,struct<city:string>>", {"a": {"city": "B"}},
                       [("a", {"city": "B"})]),
    "date": ({"type": "int", "logicalType": "date"}, "date", dt.date(2026, 1, 31), dt.date(2026, 1, 31)),
    "time-millis": ({"type": "int", "logicalType": "time-millis"}, "string", dt.time(10, 15, 30, 5000),
                    "10:15:30.005000"),
    "time-micros": ({"type": "long", "logicalType": "time-micros"}, "string", dt.time(23, 59, 59, 999999),
                    "23:59:59.999999"),
    "timestamp-millis": ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp", MOMENT, MOMENT),
    "timestamp-micros": ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp", MOMENT, MOMENT),
    "local-timestamp-micros": ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp_ntz",
                               MOMENT.replace(tzinfo=None), MOMENT.replace(tzinfo=None)),
    "uuid": ({"type": "string", "logicalType": "uuid"}, "string", NUMBER, str(NUMBER)),
    "decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, "decimal(6,2)",
                Decimal("-1234.50"), Decimal("-1234.50")),
    "large decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}, "decimal(38,0)",
                      Decimal(10**38 - 1), Decimal(10**38 - 1)),
    "fixed decimal": ({"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 10, "scale": 3},
                      "decimal(10,3)", Decimal("1.005"), Decimal("1.005")),
    "an unknown logical type": ({"type": "int", "logicalType": "colour"}, "int", 3, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_each_type_becomes_a_column_with_its_value(name: str) -> None:
    kind, column, value, wanted = VALUES[name]
    schema = record(("id", "long"), ("value", kind))
    bodies = AvroBodies(json.dumps(schema))
    assert written_schema(bodies.columns()) == {"id": "bigint", "value": column}
    assert rows(bodies, written(schema, {"id": 1, "value": value})) == [{"id": 1, "value": wanted}]


REFUSED: dict[str, tuple[Any, str]] = {
    "no record": ("string", "it is not a record: only its fields can be columns"),
    "a union": (record(("a", ["null", "string", "int"])), "field a is a union of string and int"),
    "always null": (record(("a", record(("b", "null")) | {"name": "B"})), "field a.b is always null"),
    "itself": (record(("next", ["null", "Order"])), "field next contains itself (record Order)"),
    "no fields": (record(), "the record has no fields"),
    "an unknown type": (record(("a", "strin")), "there is no type 'strin' in it"),
    "no schema": ({"type": "record"}, "it is not a schema of Avro"),
    "two cases": (
        record(("a", "int"), ("A", "int")),
        "the record has columns a and A: engines cannot tell them apart, only case differs",
    ),
    "many digits": (
        record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2})),
        "field a is a decimal of 40 digits",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_schema_that_no_table_can_have_is_refused_by_field(name: str) -> None:
    schema, reason = REFUSED[name]
    with pytest.raises(SchemaUnusable) as caught:
        AvroBodies(json.dumps(schema)).columns()
    assert reason in str(caught.value)


def test_non_json_text_is_refused_with_its_line() -> None:
    with pytest.raises(SchemaUnusable, match="line 2: this is not JSON"):
        AvroBodies('{"type": "record",\n oops}').columns()


SIMPLE = record(("id", "long"), ("name", "string"))


def test_damaged_body_is_refused_with_a_reason() -> None:
    bodies = AvroBodies(json.dumps(SIMPLE))
    good = written(SIMPLE, {"id": 1, "name": "n"})
    reasons = rows(bodies, b"", good[:-1], good + b"x", b"\x02\x02\xff", good)
    assert reasons[0] == reasons[1] == "it ends before its last field, or was written with another schema"
    assert reasons[2] == "1 bytes are left after its last field: it was written with another schema"
    assert reasons[3].startswith("it is not Avro of this schema: UnicodeDecodeError")
    assert reasons[4] == {"id": 1, "name": "n"}


def test_value_out_of_range_refuses_only_its_own_row() -> None:
    kinds = {"at": "timestamp-millis", "time": "time-micros"}
    schema = record(*((name, {"type": "long", "logicalType": kind}) for name, kind in kinds.items()))
    plain = record(*((name, "long") for name in kinds))
    found = rows(
        AvroBodies(json.dumps(schema)),
        written(plain, {"at": 2**62, "time": 0}),
        written(plain, {"at": 0, "time": -1}),
        written(plain, {"at": 0, "time": 0}),
    )
    assert found[0].startswith("it has a value that its column cannot have")
    assert found[1] == "column time is -1, which is not a time of a day"
    assert found[2]["time"] == "00:00:00.000000"


def test_decimal_with_too_many_digits_is_refused() -> None:
    schema = record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}))
    body = written(record(("a", "bytes")), {"a": (10_000).to_bytes(2, "big")})
    assert rows(AvroBodies(json.dumps(schema)), body) == ["column a has more digits than decimal(4,2)"]


def test_field_that_the_writer_does_not_have_gets_its_default() -> None:
    reader = record(("id", "double"), ("name", "string"))
    reader["fields"] += [
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
         "default": "\u00ff"},
        {"name": "home", "type": ADDRESS, "default": {"city": "Bern"}},
    ]  # fmt: skip
    bodies = AvroBodies(json.dumps(reader), ((NO_NUMBER, json.dumps(SIMPLE)),))
    assert rows(bodies, written(SIMPLE, {"id": 1, "name": "n"})) == [
        {"id": 1.0, "name": "n", "note": None, "price": Decimal("-0.1"), "home": {"city": "Bern"}}
    ]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("string", "field id: expected long as in decode.schema_file, got string"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            "field id: expected long as in decode.schema_file, got timestamp-millis",
        ),
    ],
)
def test_incompatible_writer_schema_is_refused_by_field(kind: Any, reason: str) -> None:
    writer = record(("id", kind), ("name", "string"))
    with pytest.raises(SchemaUnusable) as caught:
        AvroBodies(json.dumps(SIMPLE), ((NO_NUMBER, json.dumps(writer)),)).columns()
    assert reason in str(caught.value)


def test_new_field_without_a_default_is_refused() -> None:
    reader = record(("id", "long"), ("name", "string"), ("note", "string"))
    with pytest.raises(SchemaUnusable, match="schema 3: field note is not in it, and has no default"):
        AvroBodies(json.dumps(reader), ((3, json.dumps(SIMPLE)),), has_header=True).columns()


def test_header_of_a_registry_selects_the_schema_of_the_writer() -> None:
    newer = record(("name", "string"), ("id", "long"))
    bodies = AvroBodies(json.dumps(SIMPLE), ((1, json.dumps(SIMPLE)), (2, json.dumps(newer))), has_header=True)
    value = {"id": 1, "name": "n"}
    found = rows(
        bodies,
        b"\x00\x00\x00\x00\x01" + written(SIMPLE, value),
        b"\x00\x00\x00\x00\x02" + written(newer, value),
        b"\x00\x00\x00\x00\x03" + written(newer, value),
        b"\x02\x00\x00\x00\x01",
        b"\x00\x00",
    )
    assert found == [
        value,
        value,
        "it was written with schema 3, which decode.writer_schemas does not have",
        "it has no header of a schema registry: its first byte is 0x02, not 0x00",
        "it has 2 bytes; expected a schema registry's header of 5",
    ]
    alone = AvroBodies(json.dumps(SIMPLE), (), has_header=True)
    assert rows(alone, b"\x00\x00\x00\x00\x09" + written(SIMPLE, value)) == [value]


def test_random_bytes_never_end_the_decoder() -> None:
    schema = record(*((f"f{number}", kind) for number, (kind, *_) in enumerate(VALUES.values())
                      if not isinstance(kind, dict) or "name" not in kind))  # fmt: skip
    decode = AvroBodies(json.dumps(schema)).decoder()
    chance = random.Random(1)
    refused = 0
    for _ in range(2000):
        try:
            decode(chance.randbytes(chance.randrange(200)))
        except BodyInvalid:
            refused += 1
    assert refused > 1900
