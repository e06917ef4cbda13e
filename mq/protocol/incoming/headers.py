"""The types of decoded headers, and the slow decoder for headers that the typed decoders do not accept.

Nearly every header is plain compact JSON, which one typed pass reads: `server_decoding` has the pass of servers, which
get any request, and `client_decoding` the pass of clients. Whatever that pass refuses (the binary encoding, numbers
with leading zeros, nulls, unknown codes) is read again without types and then fitted to the request's fields; only what
fails there as well is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from mq.protocol.errors import HeaderError
from mq.protocol.frames import BINARY
from mq.protocol.wire.fields import I32
from mq.protocol.wire.loose_header import LooseHeader, java_integer, read_binary, read_json
from mq.protocol.wire.request import Ext, Request

RESPONSE: Final = 1
"""The bit of the flag that responses have."""
_STRICT: Final = "mq.protocol.requests.bulk"
"""The module of our own bulk requests. They have no older clients, so they are always read without types first, which
is strict for them: a typed pass takes ``1e3`` for a number, and Java takes ``maybe`` for false.
"""


class UnknownRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose code has no class here. Its fields are as received, with the names on the wire."""

    code: int
    opaque: int
    flag: int = 0
    version: int = 0
    language: str | None = None
    ext: dict[str, str] = {}


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response. ``remark`` is text for people, mostly of errors."""

    code: I32
    opaque: I32
    flag: I32
    version: I32 = 0
    language: str | None = None
    remark: str | None = None
    ext: dict[str, str] = msgspec.field(name="extFields", default_factory=dict)


decode_response: Final = msgspec.json.Decoder(Response).decode
"""The typed pass for responses: also reads most requests, whose flag tells. Raises MsgspecError, UnicodeDecodeError."""


def read_loosely(
    serialization: int, header: memoryview, class_of: Callable[[int], type[Request] | None]
) -> Request | UnknownRequest | Response:
    """Decode the header of one frame field by field. `class_of` returns the class for a request's code.

    Raises:
        FrameError: these bytes are not a header at all.
        HeaderError: a required field is missing, or a field is not of its type.
    """
    loose = read_binary(header) if serialization == BINARY else read_json(header)
    if loose.flag & RESPONSE:
        return Response(
            code=loose.code,
            opaque=loose.opaque,
            flag=loose.flag,
            version=loose.version,
            language=loose.language,
            remark=loose.remark,
            ext=loose.ext,
        )
    kind = class_of(loose.code)
    if kind is None:
        return UnknownRequest(
            code=loose.code,
            opaque=loose.opaque,
            flag=loose.flag,
            version=loose.version,
            language=loose.language,
            ext=loose.ext,
        )
    return _fit(loose, kind)


def is_strict(request: type[Request]) -> bool:
    """Whether every header of this kind of request must be decoded field by field, never directly into the struct."""
    return request.__module__ == _STRICT


class _HeaderField(NamedTuple):
    name: str
    wire_name: str
    required: bool
    read: Callable[[str], object]


class _HeaderShape(NamedTuple):
    request: type[Request]
    ext: type[Ext] | None
    fields: tuple[_HeaderField, ...]


def _fit(loose: LooseHeader, kind: type[Request]) -> Request:
    shape = _shape(kind)
    arguments: dict[str, Any] = {}
    if shape.ext is not None:
        arguments["ext"] = shape.ext(**_values(shape, loose))
    return shape.request(
        opaque=loose.opaque, flag=loose.flag, version=loose.version, language=loose.language, **arguments
    )


def _values(shape: _HeaderShape, loose: LooseHeader) -> dict[str, object]:
    values: dict[str, object] = {}
    for field in shape.fields:
        text = loose.ext.get(field.wire_name)
        if text is None:
            if field.required:
                raise HeaderError(loose.code, loose.opaque, f"the field {field.wire_name} is missing")
            continue
        try:
            values[field.name] = field.read(text)
        except ValueError as error:
            raise HeaderError(loose.code, loose.opaque, f"the field {field.wire_name}: {error}") from error
    return values


def _as_i32(text: str) -> int:
    return java_integer(text, 32)


def _as_i64(text: str) -> int:
    return java_integer(text, 64)


def _as_bool(text: str) -> bool:
    # Java takes "true" in any case and everything else for false; "1" is what the typed pass takes, too.
    return text.lower() in ("true", "1")


def _as_strict_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return text == "true"


def _reader(kind: msgspec.inspect.Type, *, strict: bool) -> Callable[[str], object]:
    match kind:
        case msgspec.inspect.UnionType(types=types):
            (inner,) = (each for each in types if not isinstance(each, msgspec.inspect.NoneType))
            return _reader(inner, strict=strict)
        case msgspec.inspect.IntType(le=bound):
            return _as_i32 if bound == 2**31 - 1 else _as_i64
        case msgspec.inspect.BoolType():
            return _as_strict_bool if strict else _as_bool
        case msgspec.inspect.StrType():
            return str
        case _:
            raise TypeError(f"header fields are text, integers and booleans, not {kind}")


@cache
def _shape(request: type[Request]) -> _HeaderShape:
    ext: type[Ext] | None = request.__annotations__.get("ext") and _ext_class(request)
    if ext is None:
        return _HeaderShape(request, None, ())
    struct_type = msgspec.inspect.type_info(ext)
    assert isinstance(struct_type, msgspec.inspect.StructType)
    return _HeaderShape(
        request,
        ext,
        tuple(
            _HeaderField(each.name, each.encode_name, each.required, _reader(each.type, strict=is_strict(request)))
            for each in struct_type.fields
        ),
    )


def _ext_class(request: type[Request]) -> type[Ext]:
    (kind,) = (each.type for each in msgspec.structs.fields(request) if each.name == "ext")
    assert isinstance(kind, type), f"{request.__name__}.ext is of type {kind}"
    assert issubclass(kind, Ext), f"{request.__name__}.ext is of type {kind}"
    return kind
