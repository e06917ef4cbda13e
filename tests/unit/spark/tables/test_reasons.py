"""A dead letter says why it does not decode, in words that its sender understands."""

from __future__ import annotations

import pytest

from spark.tables.column_types import parse_schema
from spark.tables.reasons import unknown_fields, why_not_csv, why_not_json

SCHEMA = parse_schema({
    "id": "int",
    "price": "decimal(10,2)",
    "at": "timestamp",
    "ok": "boolean",
    "lines": "array<struct<sku:string,n:tinyint>>",
    "more": "map<string,bigint>",
})  # fmt: skip


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"id": 1, "price": 1.5, "at": "2026-01-31T00:00:00Z", "ok": true, "unknown": []}', None),
        (b"{}", None),
        (b'{"id": null}', None),
        (b'{"id": 1', "it is not JSON: Expecting ',' delimiter: line 1 column 9 (char 8)"),
        (b'{"id": 1} {"id": 2}', "it is not JSON: Extra data: line 1 column 11 (char 10)"),
        (b"[1]", "it is not a JSON object but an array"),
        (b"null", "it is not a JSON object but null"),
        (b'{"a": "\xff"}', "it is not UTF-8: byte 7 is 0xff"),
        (b'{"id": "1"}', 'column id is "1", which is no int'),
        (b'{"id": true}', "column id is true, which is no int"),
        (b'{"id": 3000000000}', "column id is 3000000000, which is no int"),
        (b'{"at": "yesterday"}', 'column at is "yesterday", which is no timestamp'),
        (b'{"lines": [{"n": 1}, {"n": 200}]}', "column lines[1].n is 200, which is no tinyint"),
        (b'{"lines": {"n": 1}}', 'column lines is {"n": 1}, which is no array<struct<sku:string,n:tinyint>>'),
        (b'{"more": {"a": "b"}}', 'column more.a is "b", which is no bigint'),
        (b"[" * 200_000, "it is nested too deeply"),
        (b'{"id": 1e99999999999999999999}', "it has a number that is too large"),
        (rb'{"more": {"\ud800": "b"}}', r'column more.\ud800 is "b", which is no bigint'),
    ],
)
def test_json_that_does_not_fit_has_a_reason(body: bytes, reason: str | None) -> None:
    assert why_not_json(body, SCHEMA) == reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"1;x", None),
        (b"1;x\n", None),
        (b";", None),
        (b"1", "it has 1 values, and there are 2 columns"),
        (b"1;2;3", "it has 3 values, and there are 2 columns"),
        (b"1;x\n2;y", "it has 2 lines, not one"),
        (b"a;x", 'column id is "a", which is no int'),
        (b"9999999999;x", 'column id is "9999999999", which is no int'),
        (b"1;" + b"x" * 200_000, None),
        (b"1;a\rb", "it is not a line of CSV"),
    ],
)
def test_csv_that_does_not_fit_has_a_reason(body: bytes, reason: str | None) -> None:
    assert why_not_csv(body, parse_schema({"id": "int", "note": "string"}), ";") == reason


def test_unknown_fields_are_found() -> None:
    assert unknown_fields(b'{"ID": 1, "new": 2}', {"id": None}) == ["new"]
    assert unknown_fields(b"[]", {}) == []
