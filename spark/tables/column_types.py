"""Types of table columns, as Spark writes them: parsed, compared and written, without Spark.

A schema is an ordered mapping of column names to types. Types are written as in Spark's DDL, such as ``bigint``,
``decimal(10,2)``, ``array<string>`` and ``struct<city:string,zip:string>``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark.option_table import nearest

_SYNONYMS: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "numeric": "decimal(10,0)",
    "decimal": "decimal(10,0)",
    "bool": "boolean",
    "text": "string",
}
PRIMITIVES: Final = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
)
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*|\d+|[<>(),:])")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEPTH_MAX: Final = 32
DECIMAL_DIGITS_MAX: Final = 38

_WIDER: Final = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}
"""The wider types that a column may become with every value still fitting, in every table format that can do it."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts. ``name`` is Spark's, such as ``decimal(10,2)``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Array:
    """A list of values of one type."""

    element: ColumnType

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True)
class Map:
    """A map from keys of one type to values of one type."""

    key: ColumnType
    value: ColumnType

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct with named fields in order."""

    fields: tuple[tuple[str, ColumnType], ...]

    def __str__(self) -> str:
        return f"struct<{','.join(f'{quote_name(name)}:{kind}' for name, kind in self.fields)}>"


ColumnType = Primitive | Array | Map | Struct
Schema = Mapping[str, ColumnType]


def quote_name(name: str) -> str:
    """Quote a name for SQL if it needs quotes."""
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def parse_type(text: str) -> ColumnType:
    """Parse a type. Raises ValueError with the reason."""
    tokens = _tokens(text)
    kind = _parse(tokens, 0)
    if tokens:
        raise ValueError(f"is not a type: {tokens[0]!r} is left over at its end")
    return kind


def parse_schema(types: Mapping[str, str]) -> dict[str, ColumnType]:
    """Parse the types of columns by name. Raises ValueError, also for two names that differ only in case."""
    schema: dict[str, ColumnType] = {}
    for name, kind in types.items():
        if not name.strip():
            raise ValueError("has a column without a name")
        try:
            schema[name] = parse_type(kind)
        except ValueError as error:
            raise ValueError(f"column {name}: {kind!r} {error}") from None
    check_names(schema)
    return schema


def written_schema(schema: Schema) -> dict[str, str]:
    """Write the types of columns as text; the inverse of `parse_schema`."""
    return {name: str(kind) for name, kind in schema.items()}


def ddl(schema: Schema) -> str:
    """Write a schema as DDL, which Spark's decoders accept."""
    return ", ".join(f"{quote_name(name)} {kind}" for name, kind in schema.items())


def check_names(schema: Mapping[str, object]) -> None:
    """Raise ValueError if two columns have names that Spark and most engines cannot tell apart."""
    spellings: dict[str, str] = {}
    for name in schema:
        if (other := spellings.setdefault(name.lower(), name)) != name:
            raise ValueError(f"has columns {other} and {name}: engines cannot tell them apart, only case differs")


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"is not a type: {text[at:].strip()[:20]!r} is not understood")
        tokens.append(match[1])
        at = match.end()
    return tokens


def _parse(tokens: list[str], depth: int) -> ColumnType:
    if depth > _DEPTH_MAX:
        raise ValueError(f"is nested more than {_DEPTH_MAX} deep")
    word = _next(tokens, "a type").lower()
    match word:
        case "array":
            _expect(tokens, "<")
            element = _parse(tokens, depth + 1)
            _expect(tokens, ">")
            return Array(element)
        case "map":
            _expect(tokens, "<")
            key = _parse(tokens, depth + 1)
            _expect(tokens, ",")
            value = _parse(tokens, depth + 1)
            _expect(tokens, ">")
            return Map(key, value)
        case "struct":
            return _struct(tokens, depth)
        case "decimal" | "numeric" if tokens and tokens[0] == "(":
            return _decimal(tokens)
    name = _SYNONYMS.get(word, word)
    if name not in PRIMITIVES and not name.startswith("decimal"):
        words = [*PRIMITIVES, "decimal", "array", "map", "struct"]
        raise ValueError(f"is not a type: there is no {word!r}{nearest(word, words)}")
    return Primitive(name)


def _struct(tokens: list[str], depth: int) -> Struct:
    _expect(tokens, "<")
    fields: list[tuple[str, ColumnType]] = []
    while True:
        name = _next(tokens, "the name of a field")
        if name[0] in "<>(),:":
            raise ValueError(f"is not a type: expected a field name, found {name!r}")
        if tokens and tokens[0] == ":":
            tokens.pop(0)
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        fields.append((name, _parse(tokens, depth + 1)))
        mark = _next(tokens, "'>'")
        if mark == ">":
            break
        if mark != ",":
            raise ValueError(f"is not a type: {mark!r} is where ',' or '>' must be")
    check_names(dict(fields))
    if len({name for name, _ in fields}) != len(fields):
        raise ValueError("has a field twice")
    return Struct(tuple(fields))


def _decimal(tokens: list[str]) -> Primitive:
    _expect(tokens, "(")
    precision, scale = _parse_int(_next(tokens, "the number of digits")), 0
    if tokens and tokens[0] == ",":
        tokens.pop(0)
        scale = _parse_int(_next(tokens, "the digits behind the point"))
    _expect(tokens, ")")
    if not (1 <= precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
        raise ValueError(f"is not a type: expected 1 to {DECIMAL_DIGITS_MAX} digits, no more behind the point")
    return Primitive(f"decimal({precision},{scale})")


def _parse_int(token: str) -> int:
    if not token.isdigit():
        raise ValueError(f"is not a type: {token!r} is where a number must be")
    return int(token)


def _next(tokens: list[str], what: str) -> str:
    if not tokens:
        raise ValueError(f"is not a type: {what} is missing at its end")
    return tokens.pop(0)


def _expect(tokens: list[str], mark: str) -> None:
    token = _next(tokens, repr(mark))
    if token != mark:
        raise ValueError(f"is not a type: {token!r} is where {mark!r} must be")


# -- change ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """The changes that a table needs before it can hold rows of a new schema.

    ``new_columns`` are to be added. ``reasons`` has the columns that cannot change, each with the reason. Fields inside
    a struct are not added: their change is refused.
    """

    new_columns: dict[str, ColumnType]
    reasons: dict[str, str]


def compare(table: Schema, schema: Schema) -> Change:
    """Compare the columns of a table with the columns that a pipeline wants to write.

    A column that is only in the table stays, and is null in new rows. Integers that the table has wider are fine.
    """
    by_lower = {name.lower(): name for name in table}
    new_columns: dict[str, ColumnType] = {}
    reasons: dict[str, str] = {}
    for name, kind in schema.items():
        column = by_lower.get(name.lower())
        if column is None:
            new_columns[name] = kind
        elif column != name:
            reasons[name] = f"the table has it as {column}: names that differ only in case are one column"
        elif not fits(kind, table[column]):
            reasons[name] = f"the table has {table[column]}, the pipeline writes {kind}"
    return Change(new_columns, reasons)


def fits(value: ColumnType, column: ColumnType) -> bool:
    """Whether every value of a type can be written into a column without being changed."""
    match value, column:
        case Primitive(name), Primitive(other):
            return name == other or other in _WIDER.get(name, ()) or _decimal_fits(name, other)
        case Array(element), Array(other_element):
            return fits(element, other_element)
        case Map(key, item), Map(other_key, other_item):
            return key == other_key and fits(item, other_item)
        case Struct(fields), Struct(other_fields):
            return len(fields) == len(other_fields) and all(
                name == other_name and fits(kind, other_kind)
                for (name, kind), (other_name, other_kind) in zip(fields, other_fields, strict=True)
            )
        case _:
            pass
    return False


def _decimal_fits(name: str, other: str) -> bool:
    digits, others = (re.findall(r"\d+", each) for each in (name, other))
    if not (name.startswith("decimal") and other.startswith("decimal")):
        return False
    return int(others[0]) - int(others[1]) >= int(digits[0]) - int(digits[1]) and int(others[1]) >= int(digits[1])


# -- inference ---------------------------------------------------------------------------------------------------------


def merge_schemas(pinned: Schema, schema: Schema) -> dict[str, ColumnType]:
    """Add the new columns of an inferred schema to a pinned one, whose columns stay as they are.

    A column that differs only in case from a known one is not new. A column that was only ever null has no type yet,
    and is left out until it has a value.
    """
    names = {name.lower() for name in pinned}
    new: dict[str, ColumnType] = {}
    for name, kind in schema.items():
        if name.lower() not in names and name.strip():
            names.add(name.lower())
            new[name] = kind
    return {**pinned, **new}


def inferred_type(kind: ColumnType, depth: int = 0) -> ColumnType:
    """Turn an inferred type into one that tables support. An object that cannot be a column becomes its JSON text.

    That is one with a name that is empty, with names that differ only in case, or nested too deeply.
    """
    if depth == _DEPTH_MAX and not isinstance(kind, Primitive):
        return Primitive("string")
    match kind:
        case Array(element):
            return Array(inferred_type(element, depth + 1))
        case Struct(fields):
            names = {name.lower() for name, _ in fields}
            if len(names) < len(fields) or not all(name.strip() for name in names):
                return Primitive("string")
            return Struct(tuple((name, inferred_type(inner, depth + 1)) for name, inner in fields))
        case _:  # Spark infers no maps
            return kind


def from_spark(kind: Any) -> ColumnType | None:
    """Read a type from Spark's JSON form; None for the type without values (void).

    Raises:
        ValueError: a type that tables of all formats do not have, such as an interval.
    """
    if isinstance(kind, str):
        return None if kind in ("void", "null") else parse_type("string" if kind.startswith("varchar") else kind)
    match kind["type"]:
        case "array":
            element = from_spark(kind["elementType"])
            return Array(element or Primitive("string"))
        case "map":
            key, value = from_spark(kind["keyType"]), from_spark(kind["valueType"])
            return Map(key or Primitive("string"), value or Primitive("string"))
        case "struct":
            fields = [(each["name"], from_spark(each["type"])) for each in kind["fields"]]
            there = tuple((name, inner) for name, inner in fields if inner is not None)
            return Struct(there) if there else None
        case other:
            raise ValueError(f"{other} is not a type of columns")


def columns_from_spark(struct: Mapping[str, Any]) -> dict[str, ColumnType]:
    """Read columns from a schema in Spark's JSON form, without columns that have no value. Raises ValueError."""
    types = {each["name"]: from_spark(each["type"]) for each in struct["fields"]}
    return {name: kind for name, kind in types.items() if kind is not None}
