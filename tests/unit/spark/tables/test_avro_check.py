"""What is wrong in a body of Avro is found before it is read: fastavro reads over much of it."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pytest

from spark.tables.avro_bodies import NO_NUMBER, AvroBodies
from spark.tables.avro_check import AvroCheck
from spark.tables.bodies import BodyInvalid, SchemaUnusable


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def number(value: int) -> bytes:
    """As Avro writes it, of any size."""
    rest, written = value * 2 if value >= 0 else -value * 2 - 1, b""
    while rest > 0x7F:
        written += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return written + bytes([rest])


STATE = {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}
NUMBERS = {"type": "array", "items": "int"}
FLOATS = {"type": "array", "items": "float"}
WRONG: dict[str, tuple[Any, bytes, str]] = {
    "a symbol before the first": (STATE, number(-1), "column v is symbol -1, and there are 2 symbols"),
    "a symbol behind the last": (STATE, number(2), "column v is symbol 2, and there are 2 symbols"),
    "a type before the first": (["null", "string"], number(-2), "column v has type number -2 of a union"),
    "a type behind the last": (["null", "string"], number(2), "column v has type number 2 of a union"),
    "a long number": ("long", b"\x80" * 10 + b"\x01", "column v has a number that no long has"),
    "a large number": ("long", b"\xff" * 9 + b"\x02", "column v has a number that no long has"),
    "a large int": ("int", b"\xff" * 4 + b"\x10", "column v has a number that no int has"),
    "neither true nor false": ("boolean", b"\x02", "column v is 2, which is no boolean"),
    "text of negative length": ("string", number(-1) + b"abc", "column v has a length of -1 bytes"),
    "bytes of huge length": ("bytes", number(2**62) + b"abc", "it ends before its last field"),
    "a huge list": (NUMBERS, number(2**62) + b"\x02", "it ends before its last field"),
    "a huge list of fixed size": (FLOATS, number(2**62), "it ends before its last field"),
    "the most negative list": (NUMBERS, number(-(2**63)) + number(1) + b"\x02\x00", "it ends before its last field"),
    "a block of another size": (
        NUMBERS,
        number(-2) + number(3) + b"\x02\x04\x00",
        "a block of 2 bytes whose header says 3",
    ),
    "bytes behind the end": ("int", b"\x02\x00", "1 bytes are left after its last field"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_body_is_refused_with_its_reason(name: str) -> None:
    kind, body, reason = WRONG[name]
    with pytest.raises(BodyInvalid) as caught:
        AvroBodies(json.dumps(record(("v", kind)))).decoder()(body)
    assert reason in str(caught.value)


def test_largest_numbers_and_lists_in_blocks_are_read() -> None:
    decode = AvroBodies(json.dumps(record(("n", "long"), ("i", "int"), ("a", NUMBERS)))).decoder()
    blocks = number(-2) + number(2) + b"\x02\x04" + number(1) + b"\x06" + b"\x00"
    assert decode(number(-(2**63)) + number(2**31 - 1) + blocks) == {"n": -(2**63), "i": 2**31 - 1, "a": [1, 2, 3]}


def test_body_cut_within_a_field_the_table_lacks_is_refused() -> None:
    producers = record(("id", "int"), ("note", "string"))
    decode = AvroBodies(json.dumps(record(("id", "int"))), ((NO_NUMBER, json.dumps(producers)),)).decoder()
    assert decode(b"\x02\x06abc") == {"id": 1}
    for body in (b"\x02", b"\x02\x06ab", b"\x02\x05abc"):
        with pytest.raises(BodyInvalid):
            decode(body)


LEFT_OUT: dict[str, tuple[Any, Any]] = {
    "a union": (["string", "int"], 5),
    "null": ("null", None),
    "itself": (["null", "Order"], {"id": 2, "v": None}),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_table_schema_may_omit_unsupported_fields(name: str) -> None:
    kind, value = LEFT_OUT[name]
    producers = record(("id", "int"), ("v", kind))
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(producers), {"id": 1, "v": value})
    decode = AvroBodies(json.dumps(record(("id", "int"))), ((NO_NUMBER, json.dumps(producers)),)).decoder()
    assert decode(body.getvalue()) == {"id": 1}


def test_body_nested_without_end_is_refused() -> None:
    producers = record(("id", "int"), ("next", ["null", "Order"]))
    decode = AvroBodies(json.dumps(record(("id", "int"))), ((NO_NUMBER, json.dumps(producers)),)).decoder()
    with pytest.raises(BodyInvalid, match="it is nested too deeply"):
        decode(b"\x02\x02" * 100_000 + b"\x02\x00")


def test_lists_of_empty_items_are_refused() -> None:
    empty = {"type": "record", "name": "Nothing", "fields": [{"name": "n", "type": "null"}]}
    for kind in ("null", empty, {"type": "fixed", "name": "F", "size": 0}):
        with pytest.raises(SchemaUnusable, match=r"field v\[\] has no bytes"):
            AvroCheck(fastavro.parse_schema(record(("v", {"type": "array", "items": kind}))))


def test_changed_byte_is_never_an_error_of_another_kind() -> None:
    schema = record(("n", "long"), ("e", STATE), ("a", {"type": "map", "values": ["null", "double"]}), ("t", "string"))
    written = io.BytesIO()
    value = {"n": -9, "e": "PAID", "a": {"x": 0.5, "y": None}, "t": "Zürich"}
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    decode, rng = AvroBodies(json.dumps(schema)).decoder(), random.Random(7)
    refused = 0
    for _ in range(2000):
        body = bytearray(written.getvalue())
        body[rng.randrange(len(body))] = rng.randrange(256)
        try:
            decode(bytes(body[: rng.randrange(len(body) + 1)]))
        except BodyInvalid:
            refused += 1
    assert refused > 1000
