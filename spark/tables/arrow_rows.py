"""Decodes bodies of a binary format to Arrow: for each a row, or the reason for none. Pure; needs pyarrow."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from spark.tables.bodies import BodyInvalid, Decoder, Values
from spark.tables.column_types import Array, ColumnType, Map, Primitive, Schema, Struct

ROW: Final = "row"
REASON: Final = "reason"

_TYPES: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the type of Arrow that Spark exchanges for a column type."""
    match kind:
        case Array(element):
            return pa.list_(arrow_type(element))
        case Map(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case Struct(fields):
            return pa.struct([(name, arrow_type(inner)) for name, inner in fields])
        case Primitive(name):
            if name.startswith("decimal"):
                precision, scale = (int(each) for each in re.findall(r"\d+", name))
                return pa.decimal128(precision, scale)
            return _TYPES[name]


def rows_type(schema: Schema) -> Struct:
    """Return the type of the result of `arrow_rows`."""
    return Struct(((ROW, Struct(tuple(schema.items()))), (REASON, Primitive("string"))))


def arrow_rows(bodies: pa.Array, schema: Schema, decode: Decoder) -> pa.StructArray:
    """Make for each body a struct of `ROW`, a struct of the columns, and `REASON`; one of the two is null."""
    kind = arrow_type(Struct(tuple(schema.items())))
    values: list[Values | None] = []
    reasons: list[str | None] = []
    for body in bodies.to_pylist():
        try:
            values.append(decode(b"" if body is None else body))
            reasons.append(None)
        except BodyInvalid as error:
            values.append(None)
            reasons.append(str(error).encode(errors="backslashreplace").decode())
    try:
        rows = pa.array(values, kind)
    except _MISFITS:
        # Some value is of its column's type and out of its range: only its own row is refused.
        for number, each in enumerate(values):
            try:
                pa.array([each], kind)
            except _MISFITS as error:
                values[number], reasons[number] = None, f"it has a value that its column cannot have: {error}"
        rows = pa.array(values, kind)
    # Rows without a body are null as a whole: a struct of nulls would be a row.
    return pa.StructArray.from_arrays([rows, pa.array(reasons, pa.string())], [ROW, REASON])


_MISFITS: Final = (pa.ArrowException, OverflowError, ValueError, TypeError)
