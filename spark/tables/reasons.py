"""Finds the reason that a body does not decode, in words for its sender. Pure; runs on executors for bad rows only."""

from __future__ import annotations

import base64
import csv
import datetime as dt
import decimal
import io
import json
from collections.abc import Callable
from typing import Any, Final

from spark.tables.column_types import Array, ColumnType, Map, Primitive, Schema, Struct
from spark.tables.exact_values import is_time, would_change

SHOWN_MAX: Final = 60
_INTEGERS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def why_not_text(body: bytes) -> str | None:
    """Return the reason that a body is not text; None if it is text."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}"
    return None


def why_not_json(body: bytes, schema: Schema) -> str | None:
    """Return the reason that a body is not a JSON object that fits the columns; None without one."""
    if (reason := why_not_text(body)) is not None:
        return reason
    try:
        document = json.loads(body, parse_float=decimal.Decimal)
    except RecursionError:
        return "it is nested too deeply"
    except decimal.InvalidOperation:
        return "it has a number that is too large"
    except ValueError as error:
        return f"it is not JSON: {error}"
    if not isinstance(document, dict):
        return f"it is not a JSON object but {_kind(document)}"
    for name, kind in schema.items():
        if (reason := misfit(name, document.get(name), kind)) is not None:
            return reason.encode(errors="backslashreplace").decode()  # names of a map may have half characters
    return None


def why_not_csv(body: bytes, schema: Schema, separator: str) -> str | None:
    """Return the reason that a body is not a line of CSV that fits the columns; None without one."""
    if (reason := why_not_text(body)) is not None:
        return reason
    csv.field_size_limit(max(csv.field_size_limit(), len(body)))  # of this process; Spark has no limit
    try:
        rows = list(csv.reader(io.StringIO(body.decode()), delimiter=separator, strict=True))
    except csv.Error:
        return "it is not a line of CSV"
    if len(rows) != 1:
        return f"it has {len(rows)} lines, not one"
    if len(rows[0]) != len(schema):
        return f"it has {len(rows[0])} values, and there are {len(schema)} columns"
    for value, (name, kind) in zip(rows[0], schema.items(), strict=True):
        if value and (reason := _text_misfit(name, value, str(kind))) is not None:
            return reason
    return None


def misfit(path: str, value: Any, kind: ColumnType, is_of: Callable[[Any, str], bool] | None = None) -> str | None:
    """Return the reason that a value of JSON does not fit a column; None if it fits.

    Args:
        path: the column, for people.
        is_of: whether a value is of a primitive type, by its name; None for whether Spark would take it.
    """
    if value is None:
        return None
    match kind:
        case Array(element):
            if not isinstance(value, list):
                return _wrong(path, value, kind)
            return _first_reason(misfit(f"{path}[{number}]", each, element, is_of) for number, each in enumerate(value))
        case Map(_, item):
            if not isinstance(value, dict):
                return _wrong(path, value, kind)
            return _first_reason(misfit(f"{path}.{name}", each, item, is_of) for name, each in value.items())
        case Struct(fields):
            if not isinstance(value, dict):
                return _wrong(path, value, kind)
            return _first_reason(misfit(f"{path}.{name}", value.get(name), inner, is_of) for name, inner in fields)
        case Primitive(name):
            return None if (is_of or _is_of)(value, name) else _wrong(path, value, kind)


def _is_of(value: Any, name: str) -> bool:
    if name == "string":
        return True
    if would_change(value, name):
        return False
    if name in _INTEGERS:
        bound = 1 << (_INTEGERS[name] - 1)
        return type(value) is int and -bound <= value < bound
    if name in ("float", "double") or name.startswith("decimal"):
        return isinstance(value, int | decimal.Decimal) and not isinstance(value, bool)
    if name == "boolean":
        return isinstance(value, bool)
    if name in ("date", "timestamp", "timestamp_ntz"):
        return isinstance(value, str) and is_time(value, name)
    return isinstance(value, str) and _parses(_from_base64, value)


def _from_base64(value: str) -> bytes:
    return base64.b64decode(value, validate=True)


def _text_misfit(name: str, value: str, kind: str) -> str | None:
    checks: dict[str, Callable[[str], Any]] = {
        **dict.fromkeys(_INTEGERS, _whole),
        "float": float,
        "double": float,
        "date": dt.date.fromisoformat,
        "timestamp": dt.datetime.fromisoformat,
        "timestamp_ntz": dt.datetime.fromisoformat,
    }
    check = checks.get(kind, decimal.Decimal if kind.startswith("decimal") else None)
    if check is not None and not _parses(check, value):
        return f"column {name} is {_format(value)}, which is no {kind}"
    is_out = kind in _INTEGERS and not -(1 << (_INTEGERS[kind] - 1)) <= int(value) < 1 << (_INTEGERS[kind] - 1)
    is_infinite = kind in ("float", "double") and "inf" not in value.lower() and would_change(float(value), kind)
    is_cut = kind.startswith("decimal") and would_change(value, kind)
    if is_out or (is_infinite and "nan" not in value.lower()) or is_cut:
        return f"column {name} is {_format(value)}, which is no {kind}"
    if kind == "boolean" and value.lower() not in ("true", "false"):
        return f"column {name} is {_format(value)}, which is no boolean"
    return None


def _whole(value: str) -> int:
    if " " in value or "_" in value:  # which Python takes
        raise ValueError(value)
    return int(value)


def _parses(parse: Callable[[str], Any], value: str) -> bool:
    try:
        parse(value)
    except (ValueError, decimal.InvalidOperation):
        return False
    return True


def _first_reason(reasons: Any) -> str | None:
    return next((each for each in reasons if each is not None), None)


def _wrong(path: str, value: Any, kind: ColumnType) -> str:
    text = f"column {path} is {_format(value)}, which is no {kind}"
    if str(kind) == "timestamp" and type(value) is int:
        text += " but a number, which has no unit: make the column a bigint"
    return text


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {list: "an array", str: "text", bool: "a boolean"}.get(type(value), "a number")


def _format(value: Any) -> str:
    try:
        text = str(value) if isinstance(value, decimal.Decimal) else json.dumps(value, default=str)
    except RecursionError:
        return "nested too deeply"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
