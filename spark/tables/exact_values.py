"""Finds values that Spark would change when it stores them: round them, make them infinite or another time. Pure."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from typing import Any, Final

from spark.tables.column_types import Array, ColumnType, Map, Primitive, Schema, Struct

_LARGEST: Final[dict[str, float]] = {"float": 3.4028234663852886e38, "double": 1.7976931348623157e308}
LARGEST: Final = _LARGEST["double"]
_ENDS: Final = {"tinyint": 128, "smallint": 32_768}
"""Spark takes 128 for -128."""
_DATE: Final = re.compile(r"(?!0000)\d{4}(-\d{1,2}(-\d{1,2})?)?", re.ASCII)
_TIME: Final = re.compile(r"(?!0000)\d{4}(-\d{1,2}(-\d{1,2}([ T].*)?)?)?", re.ASCII)
"""Spark also takes 12:00, which is then of today, what follows a date, and years that no engine but it can read."""
_TIMES: Final = {"date": _DATE, "timestamp": _TIME, "timestamp_ntz": _TIME}
_CHANGED: Final = frozenset({*_LARGEST, *_ENDS, *_TIMES})


def would_change(value: Any, name: str) -> bool:
    """Whether Spark would accept a value of JSON or CSV and change it.

    Args:
        value: as it is in JSON; numbers with a point may be Decimal. In CSV a text.
        name: of a primitive type.
    """
    if value is None or isinstance(value, bool):
        return False
    if name.startswith("decimal"):
        precision, scale = (int(each) for each in re.findall(r"\d+", name))
        return _is_cut(value, precision, scale)
    if (end := _ENDS.get(name)) is not None:
        return type(value) is int and not -end <= value < end
    if (largest := _LARGEST.get(name)) is not None:
        return isinstance(value, int | float | decimal.Decimal) and not -largest <= value <= largest
    if (pattern := _TIMES.get(name)) is not None:
        return not isinstance(value, str) or pattern.fullmatch(value.strip()) is None
    return False


def _is_cut(value: Any, precision: int, scale: int) -> bool:
    """Whether a number has more digits than fit."""
    if not isinstance(value, str | int | float | decimal.Decimal):
        return False
    try:
        number = decimal.Decimal(str(value) if isinstance(value, float) else value)
    except decimal.InvalidOperation:
        return False  # no number, which Spark refuses itself
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or not number:
        return False
    behind = -exponent - scale
    return number.adjusted() >= precision - scale or (behind > 0 and any(digits[-behind:]))


def exact_part(schema: Schema) -> dict[str, ColumnType]:
    """Return the columns with values that Spark may change; of structs only the fields that it may change."""
    return {name: part for name, kind in schema.items() if (part := _part(kind)) is not None}


def has_decimals(kind: ColumnType) -> bool:
    """Whether a type contains a decimal."""
    return "decimal" in str(kind)


def _part(kind: ColumnType) -> ColumnType | None:
    match kind:
        case Array(element):
            inner = _part(element)
            return None if inner is None else Array(inner)
        case Map(key, value):
            inner = _part(value)
            return None if inner is None else Map(key, inner)
        case Struct(fields):
            exact_fields = exact_part(dict(fields))
            return Struct(tuple(exact_fields.items())) if exact_fields else None
        case Primitive(name):
            return kind if name.startswith("decimal") or name in _CHANGED else None


def is_time(value: str, name: str) -> bool:
    """Whether a text is a date or a time of that type."""
    try:
        time = dt.datetime.fromisoformat(value)
    except ValueError:
        return False
    return name != "timestamp_ntz" or time.tzinfo is None
