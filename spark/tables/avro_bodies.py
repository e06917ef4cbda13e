"""Decodes bodies in Avro: the columns of a schema, and the values of a body. Needs fastavro, not Spark.

A body is written with one schema and read with another: the writer's, and the table's. Fields are matched by name as
Avro defines it; one that the writer does not have gets its default.

fastavro reads all values as the types that they are stored as. Logical types are applied here, so that a value outside
of the bounds of Python's types is still read, and one outside of its column's becomes a dead letter.
"""

from __future__ import annotations

import decimal
import io
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark.tables.avro_check import AvroCheck
from spark.tables.bodies import HEADER_BYTES, BodyInvalid, Decoder, SchemaUnusable, Values, schema_number
from spark.tables.column_types import DECIMAL_DIGITS_MAX, Array, ColumnType, Map, Primitive, Struct, check_names

NO_NUMBER: Final = -1
"""The number of the writer's schema of bodies without a header."""
_DEPTH_MAX: Final = 32
_PRIMITIVES: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_MICROSECONDS_PER_DAY: Final = 86_400_000_000
Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class AvroBodies:
    """Decodes bodies in Avro. Schemas are the JSON text of Avro.

    Args:
        schema: the table's.
        writers: by their numbers in the registry, if bodies have a header; else at most one, under `NO_NUMBER`.
            Without any: the table's schema is the writer's, too.
        has_header: whether bodies begin with Confluent's header.
    """

    schema: str
    writers: tuple[tuple[int, str], ...] = ()
    has_header: bool = False

    def columns(self) -> dict[str, ColumnType]:
        """Return the columns of bodies. Raises SchemaUnusable."""
        return _AvroReader(self).columns

    def decoder(self) -> Decoder:
        """Return a function that decodes bodies. Raises SchemaUnusable."""
        return _AvroReader(self).decode


def parse(text: str) -> Any:
    """Parse the JSON text of a schema, without checking its meaning. Raises ValueError with the line."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise SchemaUnusable(f"line {error.lineno}: this is not JSON: {error.msg}") from None
    except RecursionError:
        raise SchemaUnusable("it is nested too deeply") from None
    return value


class _AvroReader:
    def __init__(self, bodies: AvroBodies) -> None:
        from fastavro import parse_schema, schemaless_reader

        self._read = schemaless_reader
        self._has_header = bodies.has_header
        schema = parse(bodies.schema)
        kind, convert = _Schema(schema).root()
        self.columns: dict[str, ColumnType] = dict(kind.fields)
        self._convert = convert
        self._own = parse_schema(_without_logical_types(schema), _write_hint=False)
        self._own_check = AvroCheck(self._own)
        self._writers: dict[int, tuple[Any, AvroCheck]] = {}
        for number, text in bodies.writers:
            writer_schema = parse(text)
            prefix = f"schema {number}: " if bodies.has_header else ""
            try:
                # Fields that the table leaves out may be of any type.
                _check_readable(_record_of(_Schema(writer_schema).schema), _Schema(schema).schema, "")
                plain = parse_schema(_without_logical_types(writer_schema), _write_hint=False)
                self._writers[number] = plain, AvroCheck(plain)
            except SchemaUnusable as error:
                raise SchemaUnusable(f"{prefix}{error}") from None

    def decode(self, body: bytes) -> Values:
        """The values of a body. Raises BodyInvalid."""
        writer, check = self._writers.get(NO_NUMBER, (self._own, self._own_check))
        if self._has_header:
            number = schema_number(body)
            if self._writers:
                if number not in self._writers:
                    raise BodyInvalid(f"it was written with schema {number}, which decode.writer_schemas does not have")
                writer, check = self._writers[number]
            body = body[HEADER_BYTES:]
        check.check(body)
        try:
            record = self._read(io.BytesIO(body), writer, self._own)
        except Exception as error:
            raise BodyInvalid(f"it is not Avro of this schema: {_describe(error)}") from None
        values: Values = self._convert(record)
        return values


# -- a schema ----------------------------------------------------------------------------------------------------------


class _Schema:
    """A schema as fastavro understands it, with its names resolved. Raises SchemaUnusable."""

    def __init__(self, schema: Any) -> None:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType

        self._named_types: dict[str, Any] = {}
        try:
            self.schema = parse_schema(schema, named_schemas=self._named_types, _write_hint=False)
        except UnknownType as error:
            raise SchemaUnusable(f"there is no type {error.name!r} in it") from None
        except SchemaParseException as error:
            raise SchemaUnusable(f"it is not a schema of Avro: {error}") from None
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise SchemaUnusable(f"it is not a schema of Avro ({_describe(error)})") from None

    def root(self) -> tuple[Struct, Convert]:
        """The columns of the record, and the function that makes their values of a read one."""
        kind, convert = self._record(_record_of(self.schema), "", ())
        return kind, convert

    def _type(self, schema: Any, path: str, inside: tuple[str, ...]) -> tuple[ColumnType, Convert | None]:
        if len(inside) > _DEPTH_MAX:
            raise SchemaUnusable(f"field {path} is nested more than {_DEPTH_MAX} deep")
        if isinstance(schema, list):
            return self._union(schema, path, inside)
        if isinstance(schema, str):
            if schema in self._named_types:
                return self._type(self._named_types[schema], path, inside)
            schema = {"type": schema}
        name = schema["type"]
        match name:
            case "record" | "error":
                return self._record(schema, path, inside)
            case "array":
                element, convert = self._type(schema["items"], f"{path}[]", inside)
                return Array(element), None if convert is None else _list_converter(convert)
            case "map":
                value, convert = self._type(schema["values"], f"{path}{{}}", inside)
                return Map(Primitive("string"), value), _pairs if convert is None else _map_converter(convert)
            case "enum":
                return Primitive("string"), None
            case "null":
                raise SchemaUnusable(f"field {path} is always null: it cannot be a column")
            case "fixed" if not schema["size"]:
                raise SchemaUnusable(f"field {path} has no bytes: it cannot be a column")
            case str() if name in self._named_types:
                return self._type(self._named_types[name], path, inside)
            case str():
                return _logical(schema, path)
            case _:
                pass
        return self._type(name, path, inside)  # {"type": {"type": ...}}

    def _record(self, schema: Mapping[str, Any], path: str, inside: tuple[str, ...]) -> tuple[Struct, Convert]:
        name = schema["name"]
        if name in inside:
            raise SchemaUnusable(f"field {path} contains itself (record {name}): a column has a fixed depth")
        if not schema["fields"]:
            raise SchemaUnusable(f"{f'field {path}' if path else 'the record'} has no fields: it cannot be a column")
        fields: list[tuple[str, ColumnType]] = []
        converts: list[tuple[str, Any, Convert | None]] = []
        for field in schema["fields"]:
            below = f"{path}.{field['name']}" if path else field["name"]
            kind, convert = self._type(field["type"], below, (*inside, name))
            fields.append((field["name"], kind))
            converts.append((field["name"], field.get("default"), convert))
        try:
            check_names(dict(fields))
        except ValueError as error:
            raise SchemaUnusable(f"{f'field {path}' if path else 'the record'} {error}") from None
        return Struct(tuple(fields)), _record_converter(converts)

    def _union(self, schema: list[Any], path: str, inside: tuple[str, ...]) -> tuple[ColumnType, Convert | None]:
        there = [each for each in schema if each != "null" and not (isinstance(each, dict) and each["type"] == "null")]
        if not there:
            raise SchemaUnusable(f"field {path} is always null: it cannot be a column")
        if len(there) == 1:
            kind, convert = self._type(there[0], path, inside)
            return kind, None if convert is None else _unless_null(convert)
        if all(each in ("int", "long") for each in there):
            return Primitive("bigint"), None
        if all(each in ("float", "double") for each in there):
            return Primitive("double"), None
        types = [str(self._type(each, path, inside)[0]) for each in there]
        raise SchemaUnusable(
            f"field {path} is a union of {' and '.join(types)}: a column has one type. Leave the field out of the file "
            f"of the table (and name the producers' file in decode.writer_schema), or send it in two fields"
        )


def _record_of(schema: Any) -> Any:
    """Return the schema if it is a record's. Raises SchemaUnusable otherwise."""
    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        raise SchemaUnusable("it is not a record: only its fields can be columns")
    return schema


def _logical(schema: Mapping[str, Any], path: str) -> tuple[ColumnType, Convert | None]:
    name = schema["type"]
    match schema.get("logicalType"), name:
        case "decimal", "bytes" | "fixed":
            precision, scale = schema.get("precision", 0), schema.get("scale", 0)
            if not (1 <= precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
                raise SchemaUnusable(
                    f"field {path} is a decimal of {precision} digits, {scale} of them behind the point; allowed: 1 to "
                    f"{DECIMAL_DIGITS_MAX} digits, and at most all of them behind the point"
                )
            return Primitive(f"decimal({precision},{scale})"), _decimal(path, precision, scale)
        case "date", "int":
            return Primitive("date"), None
        case "time-millis", "int":
            return Primitive("string"), _time(path, 1000)
        case "time-micros", "long":
            return Primitive("string"), _time(path, 1)
        case "timestamp-millis" | "local-timestamp-millis" as kind, "long":
            return _timestamp(kind), lambda value: value * 1000
        case "timestamp-micros" | "local-timestamp-micros" as kind, "long":
            return _timestamp(kind), None
        case "timestamp-nanos" | "local-timestamp-nanos" as kind, "long":
            return _timestamp(kind), lambda value: value // 1000
        case "uuid", "fixed" if schema["size"] == 16:
            return Primitive("string"), lambda value: str(uuid.UUID(bytes=_bytes(value)))
        case _:
            pass
    if name in ("bytes", "fixed"):
        return Primitive("binary"), _bytes
    if name not in _PRIMITIVES:
        raise SchemaUnusable(f"field {path} has a type that is not known: {name!r}")
    return Primitive(_PRIMITIVES[name]), None


def _timestamp(kind: str) -> Primitive:
    return Primitive("timestamp_ntz" if kind.startswith("local") else "timestamp")


# -- values ------------------------------------------------------------------------------------------------------------


def _bytes(value: Any) -> bytes:
    """Encode a default of bytes, which is text in a schema: one character for each byte."""
    return value.encode("latin-1") if isinstance(value, str) else value


def _decimal(path: str, precision: int, scale: int) -> Convert:
    # Python's own context rounds to 28 digits.
    context = decimal.Context(prec=DECIMAL_DIGITS_MAX + 1)
    bound = 10**precision

    def convert(value: Any) -> decimal.Decimal:
        number = int.from_bytes(_bytes(value), "big", signed=True)
        if not -bound < number < bound:
            raise BodyInvalid(f"column {path} has more digits than decimal({precision},{scale})")
        return decimal.Decimal(number).scaleb(-scale, context)

    return convert


def _time(path: str, unit: int) -> Convert:
    def convert(value: int) -> str:
        microseconds = value * unit
        if not 0 <= microseconds < _MICROSECONDS_PER_DAY:
            raise BodyInvalid(f"column {path} is {value}, which is not a time of a day")
        seconds, rest = divmod(microseconds, 1_000_000)
        minutes, second = divmod(seconds, 60)
        hour, minute = divmod(minutes, 60)
        return f"{hour:02}:{minute:02}:{second:02}.{rest:06}"

    return convert


def _list_converter(convert: Convert) -> Convert:
    return lambda values: [convert(each) for each in values]


def _pairs(value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(value.items())


def _map_converter(convert: Convert) -> Convert:
    return lambda values: [(name, convert(each)) for name, each in values.items()]


def _unless_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _record_converter(fields: Sequence[tuple[str, Any, Convert | None]]) -> Convert:
    def convert(value: Mapping[str, Any]) -> dict[str, Any]:
        # The default of a record may leave out fields that have a default of their own.
        there = ((name, value.get(name, default), each) for name, default, each in fields)
        return {name: item if each is None else each(item) for name, item, each in there}

    return convert


# -- two schemas -------------------------------------------------------------------------------------------------------

_MEANING: Final = ("logicalType", "precision", "scale")
_EXACT: Final = frozenset({
    "decimal", "date", "time-millis", "time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos",
    "local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos",
})  # fmt: skip
_PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def _without_logical_types(schema: Any) -> Any:
    """Remove the logical types from a schema."""
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if isinstance(schema, dict):
        return {
            name: each if name == "default" else _without_logical_types(each)
            for name, each in schema.items()
            if name not in _MEANING
        }
    return schema


def _check_readable(writer: Any, reader: Any, path: str) -> None:
    """Raise SchemaUnusable where no body of one schema can be read with another.

    Also where the same bytes mean something else in the two: Avro forbids it, and a reader that does not look returns
    wrong values. Unions and names of types that were defined before are left to the reading of each body.
    """
    writer, reader = _alone(writer), _alone(reader)
    if writer is None or reader is None:
        return
    one, two = _meaning(writer), _meaning(reader)
    kind, other = writer["type"], reader["type"]
    is_promoted = other in _PROMOTED.get(kind, ()) and not {one[0], two[0]} & _EXACT
    if (kind != other and not is_promoted) or (one != two and {one[0], two[0]} & _EXACT):
        raise SchemaUnusable(
            f"field {path}: expected {_describe_type(reader)} as in decode.schema_file, got {_describe_type(writer)}"
        )
    if kind == "record":
        writer_types = {field["name"]: field["type"] for field in writer["fields"]}
        for field in reader["fields"]:
            below = f"{path}.{field['name']}" if path else field["name"]
            names = [each for each in (field["name"], *field.get("aliases", ())) if each in writer_types]
            if names:
                _check_readable(writer_types[names[0]], field["type"], below)
            elif "default" not in field:
                raise SchemaUnusable(f"field {below} is not in it, and has no default in decode.schema_file")
    for part in ("items", "values"):
        if part in writer:
            _check_readable(writer[part], reader[part], f"{path}[]" if part == "items" else f"{path}{{}}")


_KINDS: Final = frozenset({*_PRIMITIVES, "record", "array", "map", "enum", "fixed"})


def _alone(schema: Any) -> dict[str, Any] | None:
    """The one type that a schema has besides null; None for several types, or a name."""
    if isinstance(schema, list):
        there = [each for each in schema if each != "null"]
        return _alone(there[0]) if len(there) == 1 else None
    if isinstance(schema, str):
        schema = {"type": schema}
    if not isinstance(schema["type"], str):
        return _alone(schema["type"])
    return schema if schema["type"] in _KINDS else None


def _meaning(schema: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    logical = schema.get("logicalType")
    return (logical, schema.get("precision"), schema.get("scale", 0)) if logical == "decimal" else (logical, None, None)


def _describe_type(schema: Mapping[str, Any]) -> str:
    logical, precision, scale = _meaning(schema)
    return f"{logical}({precision},{scale})" if logical == "decimal" else str(logical or schema["type"])


def _describe(error: Exception) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:200]}" if message else type(error).__name__
