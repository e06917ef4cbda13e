"""Decodes bodies in Protobuf: the columns of a message type, and the values of a body. Needs protobuf, not Spark.

A field without presence, such as a plain ``int32`` of proto3, has its default when it was not sent; any other field,
such as one of a oneof, is null then.
"""

from __future__ import annotations

import decimal
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark.tables.bodies import HEADER_BYTES, BodyInvalid, Decoder, SchemaUnusable, Values, schema_number
from spark.tables.column_types import Array, ColumnType, Map, Primitive, Struct, check_names

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.descriptor_pool import DescriptorPool

_SECONDS_MIN: Final = -62_135_596_800
_SECONDS_MAX: Final = 253_402_300_799
"""The last second of a Timestamp, which has the years 1 to 9999."""
_DURATION_SECONDS_MAX: Final = 315_576_000_000
_WELL_KNOWN: Final = "google/protobuf/"
_WRAPPERS: Final = frozenset({
    "DoubleValue", "FloatValue", "Int64Value", "UInt64Value", "Int32Value", "UInt32Value", "BoolValue", "StringValue",
    "BytesValue",
})  # fmt: skip
_AS_JSON: Final = frozenset({"Struct", "Value", "ListValue"})
Take = Callable[[Any], Any]
"""Converts a value of protobuf to one of Arrow; None leaves it as it is."""


@dataclass(frozen=True, slots=True)
class ProtobufBodies:
    """Decodes bodies in Protobuf.

    Args:
        files: a serialized FileDescriptorSet, as protoc writes it.
        message: the full name of the message.
        has_header: whether bodies begin with Confluent's header: a byte 0, the number of the schema, and the path of
            the message in its file.
        rejects_unknown: whether a field that the message does not have makes a dead letter; else it is left out.
    """

    files: bytes
    message: str
    has_header: bool = False
    rejects_unknown: bool = False

    def columns(self) -> dict[str, ColumnType]:
        """Return the columns of bodies. Raises SchemaUnusable."""
        return _ProtobufReader(self).columns

    def decoder(self) -> Decoder:
        """Return a function that decodes bodies. Raises SchemaUnusable."""
        return _ProtobufReader(self).decode


def messages_in(files: bytes) -> list[str]:
    """Return the full names of the top-level messages in the last file of a set. Raises SchemaUnusable."""
    file_protos = _file_set(files).file
    if not file_protos:
        raise SchemaUnusable("the descriptor set contains no file")
    last = file_protos[-1]
    return [f"{last.package}.{each.name}" if last.package else each.name for each in last.message_type]


class _ProtobufReader:
    def __init__(self, bodies: ProtobufBodies) -> None:
        from google.protobuf.message_factory import GetMessageClass

        try:
            descriptor = _pool(bodies.files).FindMessageTypeByName(bodies.message)
        except KeyError:
            names = ", ".join(messages_in(bodies.files))
            raise SchemaUnusable(f"the descriptor set has no message {bodies.message}; it has {names}") from None
        self._class = GetMessageClass(descriptor)
        self._has_header = bodies.has_header
        self._rejects_unknown = bodies.rejects_unknown
        self._path = _path(descriptor)
        kind, self._take = _message(descriptor, "", ())
        self.columns: dict[str, ColumnType] = dict(kind.fields)

    def decode(self, body: bytes) -> Values:
        """The values of a body. Raises BodyInvalid."""
        from google.protobuf.message import DecodeError

        if self._has_header:
            schema_number(body)
            body = self._after_path(body)
        elif not body:
            raise BodyInvalid("it is empty")
        message: Any = self._class()
        try:
            message.ParseFromString(body)
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            absent = message.FindInitializationErrors()
            problem = f"the required field {absent[0]} is missing" if absent else " ".join(str(error).split())
            raise BodyInvalid(f"it is not Protobuf of this message: {problem}") from None
        if absent := message.FindInitializationErrors():
            raise BodyInvalid(f"the required field {absent[0]} is missing")
        if self._rejects_unknown and (unknown := next(_unknown(message, ""), None)) is not None:
            raise BodyInvalid(f"it has a field {unknown}; the message of decode.schema_file has no such field")
        values: Values = self._take(message)
        return values

    def _after_path(self, body: bytes) -> bytes:
        """The message behind the header. Raises BodyInvalid if it is another one."""
        count, at = _varint(body, HEADER_BYTES)
        if count < 0:
            raise BodyInvalid(f"its header names a message path of {count} parts")
        path: list[int] = []
        for _ in range(min(count, len(body))):
            number, at = _varint(body, at)
            path.append(number)
        indexes = tuple(path) or (0,)  # a single 0 stands for the first message of the file
        if indexes != self._path:
            raise BodyInvalid(
                f"it is message {'.'.join(map(str, indexes))} of its file, counted from 0, and decode.message is "
                f"message {'.'.join(map(str, self._path))}"
            )
        return body[at:]


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Read a number of Confluent's header; returns also the offset after it. Raises BodyInvalid."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(body):
            break
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise BodyInvalid("it ends within the header of a schema registry")


# -- a schema ----------------------------------------------------------------------------------------------------------


def _file_set(files: bytes) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorSet.FromString(files)
    except DecodeError:
        raise SchemaUnusable("the file is not a descriptor set such as protoc --descriptor_set_out writes") from None


def _pool(files: bytes) -> DescriptorPool:
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    files_by_name = {each.name: each for each in _file_set(files).file}
    names: set[str] = set()

    def add(name: str, by: str) -> None:
        if name in names:
            return
        file = files_by_name.get(name)
        names.add(name)
        if file is None and name.startswith(_WELL_KNOWN):
            module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
            return
        if file is None:
            raise SchemaUnusable(
                f"{by} imports {name}, which the descriptor set lacks: make the set with protoc --include_imports"
            )
        for dependency in file.dependency:
            add(dependency, name)
        pool.AddSerializedFile(file.SerializeToString())

    for name in files_by_name:
        try:
            add(name, name)
        except (TypeError, ModuleNotFoundError) as error:
            raise SchemaUnusable(f"{name}: {error}") from None
    return pool


def _path(descriptor: Descriptor) -> tuple[int, ...]:
    """The place of a message in its file, as Confluent's header has it."""
    if (outer := descriptor.containing_type) is not None:
        names = [each.name for each in outer.nested_types]
        return (*_path(outer), names.index(descriptor.name))
    return (list(descriptor.file.message_types_by_name).index(descriptor.name),)


def _message(descriptor: Descriptor, path: str, inside: tuple[str, ...]) -> tuple[Struct, Take]:
    if descriptor.full_name in inside:
        raise SchemaUnusable(
            f"field {path} contains itself (message {descriptor.full_name}): a column has a fixed depth"
        )
    if not descriptor.fields:
        subject = f"field {path}" if path else f"message {descriptor.full_name}"
        raise SchemaUnusable(f"{subject} has no fields: it cannot be a column")
    fields: list[tuple[str, ColumnType]] = []
    takes: list[tuple[str, Take]] = []
    for field in descriptor.fields:
        below = f"{path}.{field.name}" if path else field.name
        kind, take = _field(field, below, (*inside, descriptor.full_name))
        fields.append((field.name, kind))
        takes.append((field.name, take))
    try:
        check_names(dict(fields))
    except ValueError as error:
        raise SchemaUnusable(f"{f'field {path}' if path else 'the message'} {error}") from None
    return Struct(tuple(fields)), lambda message: {name: take(message) for name, take in takes}


def _field(field: FieldDescriptor, path: str, inside: tuple[str, ...]) -> tuple[ColumnType, Take]:
    """The type of a field, and a function from its message to its value."""
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, take_key = _value(field.message_type.fields_by_name["key"], f"{path}{{}}", inside)
        value_field = field.message_type.fields_by_name["value"]
        value, take_value = _value(value_field, f"{path}{{}}", inside)

        def pairs(message: Any) -> list[tuple[Any, Any]]:
            mapping = getattr(message, name)
            return [(take_key(each), take_value(mapping[each])) for each in mapping]

        return Map(key, value), pairs
    kind, take = _value(field, path, inside)
    if _is_repeated(field):
        return Array(kind), lambda message: [take(each) for each in getattr(message, name)]
    if field.has_presence:
        return kind, lambda message: take(getattr(message, name)) if message.HasField(name) else None
    return kind, lambda message: take(getattr(message, name))


def _is_repeated(field: FieldDescriptor) -> bool:
    newer = getattr(field, "is_repeated", None)  # `label` is on its way out
    return bool(getattr(field, "label", None) == field.LABEL_REPEATED if newer is None else newer)


def _value(field: FieldDescriptor, path: str, inside: tuple[str, ...]) -> tuple[ColumnType, Take]:
    """The type of one value of a field, and a function for it."""
    if field.message_type is not None:
        return _nested_type(field.message_type, path, inside)
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return Primitive("string"), lambda value: names.get(value) or str(value)  # a newer producer's value
    match field.cpp_type:
        case field.CPPTYPE_INT32:
            return Primitive("int"), _same
        case field.CPPTYPE_INT64 | field.CPPTYPE_UINT32:
            return Primitive("bigint"), _same
        case field.CPPTYPE_UINT64:
            return Primitive("decimal(20,0)"), decimal.Decimal
        case field.CPPTYPE_DOUBLE:
            return Primitive("double"), _same
        case field.CPPTYPE_FLOAT:
            return Primitive("float"), _same
        case field.CPPTYPE_BOOL:
            return Primitive("boolean"), _same
        case _:
            return Primitive("binary" if field.type == field.TYPE_BYTES else "string"), _same


def _nested_type(descriptor: Descriptor, path: str, inside: tuple[str, ...]) -> tuple[ColumnType, Take]:
    package, _, name = descriptor.full_name.rpartition(".")
    if package == "google.protobuf":
        if name == "Timestamp":
            return Primitive("timestamp"), lambda value: _microseconds(value, path, _SECONDS_MIN, _SECONDS_MAX)
        if name == "Duration":
            limit = _DURATION_SECONDS_MAX
            return Primitive("bigint"), lambda value: _microseconds(value, path, -limit, limit)
        if name in _WRAPPERS:
            kind, take = _value(descriptor.fields_by_name["value"], path, inside)
            return kind, lambda value: take(value.value)
        if name in _AS_JSON:
            return Primitive("string"), lambda value: _json(value, path)
    return _message(descriptor, path, inside)


def _json(value: Any, path: str) -> str:
    from google.protobuf.json_format import Error, MessageToJson

    try:
        return MessageToJson(value, indent=None, ensure_ascii=False)
    except (Error, ValueError) as error:  # NaN or Infinity
        raise BodyInvalid(f"column {path} cannot be JSON: {' '.join(str(error).split())}") from None


def _same(value: Any) -> Any:
    return value


def _microseconds(value: Any, path: str, low: int, high: int) -> int:
    seconds: int = value.seconds
    nanos: int = value.nanos
    if not low <= seconds <= high or not -1_000_000_000 < nanos < 1_000_000_000:
        raise BodyInvalid(f"column {path}: {seconds} seconds and {nanos} nanoseconds are out of its range")
    return seconds * 1_000_000 + nanos // 1000


def _unknown(message: Any, path: str) -> Iterator[str]:
    """Yield the numbers of fields that the descriptors lack, with the names of the messages around them."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown: Any = UnknownFieldSet(message)
    for each in unknown:
        yield f"{path}{each.field_number}"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        below = f"{path}{field.name}."
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for each in value.values():
                    yield from _unknown(each, below)
        elif _is_repeated(field):
            for each in value:
                yield from _unknown(each, below)
        else:
            yield from _unknown(value, below)
