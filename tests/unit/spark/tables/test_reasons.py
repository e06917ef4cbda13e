"""A dead letter says why it does not decode, in words that its sender understands."""

from __future__ import annotations

from typing import Any

import pytest

from spark.tables.column_types import parse_schema
from spark.tables.json_syntax import json_check
from spark.tables.pipeline import NewFields
from spark.tables.reasons import why_not_csv, why_not_json

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
        (b'{"price": 1000000000}', "column price is 1000000000, which is no decimal(10,2)"),
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


EXACT = parse_schema({
    "id": "bigint",
    "price": "decimal(5,2)",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "day": "date",
    "d": "double",
    "f": "float",
    "lines": "array<struct<sku:string,price:decimal(3,1)>>",
    "by_day": "map<string,date>",
    "note": "string",
})  # fmt: skip
NO_UNIT = "but a number, which has no unit: make the column a bigint"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"price": 123.450, "at": "2026-01-31 10:00:00 Europe/Berlin", "day": "2026-1-5", "f": 3e38}', None),
        ('{"price": "1.5", "at": "2026-01", "local": "2026", "by_day": {"a": "2026-01-31"}}', None),
        ('{"lines": [{"price": 1}], "d": 1e308}', None),
        ('{"price": 999.99}', None),
        ('{"price": 0.000}', None),
        ('{"price": 1e2, "d": 12345678901234567890123}', None),
        ('{"price": 1.239}', "column price is 1.239, which is no decimal(5,2)"),
        ('{"price": "1.239"}', 'column price is "1.239", which is no decimal(5,2)'),
        ('{"price": 1000}', "column price is 1000, which is no decimal(5,2)"),
        ('{"price": 1e3}', "column price is 1E+3, which is no decimal(5,2)"),
        ('{"price": 1e-900}', "column price is 1E-900, which is no decimal(5,2)"),
        ('{"lines": [{"price": 1}, {"price": 1.25}]}', "column lines[1].price is 1.25, which is no decimal(3,1)"),
        ('{"at": 1700000000000}', f"column at is 1700000000000, which is no timestamp {NO_UNIT}"),
        ('{"at": "12:00:00"}', 'column at is "12:00:00", which is no timestamp'),
        ('{"at": "T12:00"}', 'column at is "T12:00", which is no timestamp'),
        ('{"at": "99999-01-01T00:00:00Z"}', 'column at is "99999-01-01T00:00:00Z", which is no timestamp'),
        ('{"at": "0000-01-01"}', 'column at is "0000-01-01", which is no timestamp'),
        ('{"local": "-0044-03-15T00:00:00"}', 'column local is "-0044-03-15T00:00:00", which is no timestamp_ntz'),
        ('{"day": "2026-01-31 garbage"}', 'column day is "2026-01-31 garbage", which is no date'),
        ('{"day": "2026-01-31T12:00:00"}', 'column day is "2026-01-31T12:00:00", which is no date'),
        ('{"by_day": {"a": "10000-01-01"}}', 'column by_day.a is "10000-01-01", which is no date'),
        ('{"f": 1e300}', "column f is 1E+300, which is no float"),
        ('{"d": 1e999}', "column d is 1E+999, which is no double"),
        ('{"d": 1' + "0" * 400 + "}", f"column d is 1{'0' * 59}..., which is no double"),
        ('{"d": NaN}', "it is not JSON: it has NaN or Infinity"),
        ('{"note": 1e400}', "it has a number that is too large"),
        ('{"note": 1e99999999}', "it has a number that is too large"),
        (r'{"note": "\ud800"}', "it is not JSON: Input data was truncated"),
        ('\ufeff{"id": 1}', "it is not JSON: it begins with a byte order mark"),
        ('{"id": 1, "id": 2}', "it has the field 'id' twice"),
        (r'{"id" :1,"\u0069d":2}', "it has the field 'id' twice"),
        ('{"x": [{"note": 1, "other": 2, "note": 1}]}', "it has the field 'note' twice"),
        (r'{"note": "\"id\": 1, \"id\": 2", "x": {"note": 2}}', None),
    ],
)  # fmt: skip
def test_value_that_its_column_would_change_is_refused(body: str, reason: str | None) -> None:
    assert json_check("ignore", EXACT)(body.encode()) == reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1.239,,", 'column price is "1.239", which is no decimal(5,2)'),
        ("1000,,", 'column price is "1000", which is no decimal(5,2)'),
        (",1e999,", 'column d is "1e999", which is no double'),
        (",,1e300", 'column f is "1e300", which is no float'),
        ("999.990,Infinity,NaN", None),
    ],
)
def test_value_of_csv_that_its_column_would_change_is_refused(line: str, reason: str | None) -> None:
    schema = {name: EXACT[name] for name in ("price", "d", "f")}
    assert why_not_csv(line.encode(), schema, ",") == reason


def test_json_numbers_beyond_a_double_are_refused() -> None:
    check = json_check("add", {})
    assert check(b'{"x": 1e999}') == "it has a number that is too large"
    assert check(b'{"x": 1e308, "y": {"x": 1}}') is None
    assert check(b'{"a":' * 900 + b"1" + b"}" * 900) is None
    assert check(b'{"a" :' * 900 + b'{"b": 1, "b": 2}' + b"}" * 900) in (
        "it has the field 'b' twice",
        "it is nested too deeply",
    )


@pytest.mark.parametrize("new_fields", ["add", "dead-letter"])
def test_field_that_differs_from_a_column_in_case_is_refused(new_fields: Any) -> None:
    check = json_check(new_fields, EXACT)
    said = "it has the field 'ID', and the column is 'id': names that differ only in case are one column"
    assert check(b'{"ID": 1}') == check(b'{"id": 1, "ID": 2}') == said
    assert json_check("ignore", EXACT)(b'{"ID": 1}') is None  # ignored, as other fields


def test_option_makes_unknown_fields_dead_letters() -> None:
    check = json_check("dead-letter", EXACT)
    assert check(b'{"id": 1, "new": 2}') == "it has the field 'new', which decode.schema does not have"
    assert check(b"[]") == "it is not a JSON object but an array"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"lines": [{"sku": "a"}, {"sku": "b", "n": 1}], "id": 1}', None),
        (b'{"lines": [{"sku": "a"}, {"sku": "b", "size": 1}]}', "lines.size"),
        (b'{"lines": [{"SKU": "a"}]}', "lines.SKU"),
        (b'{"more": {"any": 1}}', None),
        (b'{"lines": [{"size": null, "box": {"a": {}}}]}', None),
        (b'{"lines": [{"size": []}]}', "lines.size"),
    ],
)
@pytest.mark.parametrize("new_fields", ["add", "dead-letter"])
def test_field_inside_a_column_that_lacks_it_is_reported(new_fields: NewFields, body: bytes, field: str | None) -> None:
    wanted = None if field is None else f"it has the field {field!r}, which the column 'lines' does not have"
    assert json_check(new_fields, SCHEMA)(body) == wanted
    assert json_check("ignore", SCHEMA)(body) is None
