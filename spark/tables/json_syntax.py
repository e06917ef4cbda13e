"""Finds JSON that Spark would skip or change, so that the body is refused before. Pure; runs for all bodies."""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from spark.tables.column_types import Array, ColumnType, Map, Schema, Struct
from spark.tables.exact_values import LARGEST, exact_part, has_decimals, would_change
from spark.tables.reasons import misfit, why_not_json

if TYPE_CHECKING:  # executors import this module, and need no YAML
    from spark.tables.pipeline import NewFields

_TOO_LARGE: Final = "it has a number that is too large"
_PAIR: Final = b'":'
"""Once for each name, and text may have it, too; if nothing is between a name and its colon."""
_SPACED_PAIR: Final = re.compile(rb'"[ \t\r\n]+:')


def json_check(new_fields: NewFields, schema: Schema) -> Callable[[bytes], str | None]:
    """Return a function that returns the reason to refuse a body, or None.

    Args:
        schema: the columns of bodies, as far as they are known.
    """
    exact = exact_part(schema)
    # Other numbers may be rounded on the way to this check; these must not be.
    hook = _exact if any(map(has_decimals, exact.values())) else None
    decoders: list[Callable[[bytes], Any]] = []  # made where it is used: it cannot be sent to executors
    by_lower = {name.lower(): name for name in schema}

    struct_columns = {name: kind for name, kind in schema.items() if "struct<" in str(kind)}

    def unknown(document: dict[str, Any]) -> str | None:
        for name in document:
            if name in schema:
                if (
                    name in struct_columns
                    and (field := unknown_field(name, document[name], struct_columns[name])) is not None
                ):
                    return f"it has the field {field!r}, which the column {name!r} does not have"
                continue
            if (column := by_lower.get(name.lower())) is not None:
                return (
                    f"it has the field {name!r}, and the column is {column!r}: names that differ only in case are one "
                    f"column"
                )
            if new_fields == "dead-letter":
                return f"it has the field {name!r}, which decode.schema does not have"
        return None

    def check(body: bytes) -> str | None:
        import msgspec

        if not decoders:
            decoders.append(msgspec.json.Decoder(float_hook=hook).decode)
        try:
            document = decoders[0](body)
        except msgspec.ValidationError:
            return why_not_json(body, schema) or _TOO_LARGE
        except (msgspec.DecodeError, ValueError, RecursionError, decimal.InvalidOperation) as error:
            return why_not_json(body, {}) or f"it is not JSON: {_reason(body, error)}"
        if not isinstance(document, dict):
            return why_not_json(body, {})
        if (name := _twice(body, document)) is not None:
            return name
        if new_fields != "ignore" and (reason := unknown(document)) is not None:
            return reason
        for name, kind in exact.items():
            if (value := document.get(name)) is not None and (
                reason := misfit(name, value, kind, _is_exact)
            ) is not None:
                return reason
        return None

    return check


def unknown_field(path: str, value: Any, kind: ColumnType) -> str | None:
    """Return the path of a field that the value has and its column does not; None without one that is not empty."""
    match kind:
        case Array(element) if isinstance(value, list):
            inside = ((path, each, element) for each in value)
        case Map(_, item) if isinstance(value, dict):
            inside = ((path, each, item) for each in value.values())
        case Struct(fields) if isinstance(value, dict):
            types = dict(fields)
            for name, each in value.items():
                if name not in types and not _is_nothing(each):
                    return f"{path}.{name}"
            inside = ((f"{path}.{name}", value.get(name), inner) for name, inner in fields)
        case _:
            return None
    return next((field for each in inside if (field := unknown_field(*each)) is not None), None)


def _is_nothing(value: Any) -> bool:
    """Whether Spark infers no column from a value."""
    return value is None or (isinstance(value, dict) and all(map(_is_nothing, value.values())))


def _exact(text: str) -> decimal.Decimal:
    """Parse a decimal. Raises ValueError for a number that no column has; as text, too, it would be infinity."""
    number = decimal.Decimal(text)
    if not -LARGEST <= number <= LARGEST:
        raise ValueError(_TOO_LARGE)
    return number


def _is_exact(value: Any, name: str) -> bool:
    return not would_change(value, name)


def _reason(body: bytes, error: Exception) -> str:
    """The reason why a body is not JSON, as Python's parser accepts more than that."""
    if body.startswith(b"\xef\xbb\xbf"):
        return "it begins with a byte order mark"
    try:
        json.loads(body, parse_constant=_no_constant)
    except _NoConstant:
        return "it has NaN or Infinity"
    except (ValueError, RecursionError):
        pass
    return str(error)


class _NoConstant(Exception):
    """A body has NaN or Infinity."""


def _no_constant(_: str) -> Any:
    raise _NoConstant


class _Twice(Exception):
    """An object has a name twice."""


def _twice(body: bytes, pairs: dict[str, Any]) -> str | None:
    """Return a reason if an object has a name twice: all but one of its values would be lost."""
    with suppress(RecursionError):
        if body.count(_PAIR) == _names(pairs) and not _SPACED_PAIR.search(body):
            return None
    try:
        json.loads(body, object_pairs_hook=_object)
    except _Twice as error:
        return f"it has the field {error.args[0]!r} twice"
    except RecursionError:
        return "it is nested too deeply"
    return None


def _object(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _Twice(name)
        seen.add(name)


def _names(document: dict[str, Any]) -> int:
    return len(document) + sum(_names_inside(each) for each in document.values() if each.__class__ in _CONTAINERS)


def _names_inside(value: Any) -> int:
    if value.__class__ is dict:
        return _names(value)
    return sum(_names_inside(each) for each in value if each.__class__ in _CONTAINERS)


_CONTAINERS: Final = (dict, list)
