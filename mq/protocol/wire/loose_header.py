"""Decodes headers without types: in the binary encoding, and in JSON that only Java's lenient parser accepts.

The result is the same for both: numbers as ints, all ext fields as text.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

import msgspec

from mq.protocol.codes import LANGUAGE_NAMES, LANGUAGES
from mq.protocol.errors import FrameError, HeaderError

EXT_FIELDS_MAX: Final = 256

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_BINARY_FIXED: Final = struct.Struct(">hBhiii")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")


class LooseHeader(NamedTuple):
    """The header of any request or response. ``language`` is None if its number or name is unknown."""

    code: int
    opaque: int
    flag: int
    version: int
    language: str | None
    remark: str | None
    ext: dict[str, str]


Scalar = str | int | float | bool | None


class _LooseJsonHeader(msgspec.Struct, frozen=True):
    code: Scalar = None
    opaque: Scalar = 0
    flag: Scalar = 0
    version: Scalar = 0
    language: Scalar = None
    remark: Scalar = None
    extFields: dict[str, Scalar] | None = None


class _JsonBasics(msgspec.Struct, frozen=True):
    code: Scalar = None
    opaque: Scalar = 0


_decode_json = msgspec.json.Decoder(_LooseJsonHeader).decode
_decode_basics = msgspec.json.Decoder(_JsonBasics).decode


def java_integer(text: str, bits: int) -> int:
    """Parse ``text`` like Java's parseInt or parseLong: sign and leading zeros allowed. Raises ValueError."""
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not an integer")
    number = int(text)
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ValueError(f"{text[:40]} does not fit into {bits} bits")
    return number


def read_json(header: memoryview) -> LooseHeader:
    """Parse a JSON header in which numbers may be strings, ext values any scalar, and nulls anywhere.

    Raises:
        FrameError: it is not a JSON object.
        HeaderError: it is one, but not a header.
    """
    # As in Java, invalid UTF-8 becomes replacement characters.
    data = bytes(header).decode("utf-8", "replace")
    try:
        loose = _decode_json(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _refusal(data, str(error)) from error
    code: int | None = None
    opaque = 0
    try:
        opaque = _parse_int(loose.opaque, "opaque")
        code = _parse_int(loose.code, "code")
        flag = _parse_int(loose.flag, "flag")
        version = _parse_int(loose.version, "version")
    except ValueError as error:
        raise HeaderError(code, opaque, str(error)) from error
    fields = loose.extFields or {}
    if len(fields) > EXT_FIELDS_MAX:
        raise HeaderError(code, opaque, f"the header has {len(fields)} ext fields; maximum: {EXT_FIELDS_MAX}")
    return LooseHeader(
        code=code,
        opaque=opaque,
        flag=flag,
        version=version,
        language=_language(loose.language),
        remark=None if loose.remark is None else _text(loose.remark),
        ext={name: _text(value) for name, value in fields.items() if value is not None},
    )


def read_binary(header: memoryview) -> LooseHeader:
    """Parse a header in the encoding that clients call ROCKETMQ.

    Raises:
        FrameError: it is shorter than its fixed part.
        HeaderError: a length in it exceeds the header.
    """
    if len(header) < _BINARY_FIXED.size + _I32.size:
        raise FrameError(f"binary header of {len(header)} bytes, at least {_BINARY_FIXED.size + _I32.size} are needed")
    code, language, version, opaque, flag, remark_length = _BINARY_FIXED.unpack_from(header)
    at = _BINARY_FIXED.size
    if not 0 <= remark_length <= len(header) - at - _I32.size:
        raise HeaderError(code, opaque, f"a remark of {remark_length} bytes exceeds the header of {len(header)}")
    remark = str(header[at : at + remark_length], "utf-8", "replace") if remark_length else None
    at += remark_length
    (ext_length,) = _I32.unpack_from(header, at)
    at += _I32.size
    if not 0 <= ext_length <= len(header) - at:
        raise HeaderError(code, opaque, f"ext fields of {ext_length} bytes, the header has {len(header) - at}")
    return LooseHeader(
        code=code,
        opaque=opaque,
        flag=flag,
        version=version,
        language=LANGUAGE_NAMES.get(language),
        remark=remark,
        ext=_binary_ext(header[at : at + ext_length], code, opaque),
    )


def _binary_ext(data: memoryview, code: int, opaque: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    at = 0
    while at < len(data):
        name, at = _binary_text(data, at, _I16, code, opaque)
        value, at = _binary_text(data, at, _I32, code, opaque)
        if name and value:
            fields[name] = value
        if len(fields) > EXT_FIELDS_MAX:
            raise HeaderError(code, opaque, f"the header has more than {EXT_FIELDS_MAX} ext fields")
    return fields


def _binary_text(data: memoryview, at: int, length: struct.Struct, code: int, opaque: int) -> tuple[str, int]:
    start = at + length.size
    if start > len(data):
        raise HeaderError(code, opaque, f"ext fields end within a length, at byte {at} of {len(data)}")
    (size,) = length.unpack_from(data, at)
    if not 0 <= size <= len(data) - start:
        raise HeaderError(
            code, opaque, f"ext text has {size} bytes at byte {start}, but the ext fields end at {len(data)}"
        )
    return str(data[start : start + size], "utf-8", "replace"), start + size


def _refusal(data: str, fault: str) -> FrameError | HeaderError:
    try:
        basics = _decode_basics(data)
        opaque = _parse_int(basics.opaque, "opaque")
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        return FrameError(f"header of {len(data)} characters is not a JSON header: {error}")
    try:
        return HeaderError(_parse_int(basics.code, "code"), opaque, fault)
    except ValueError:
        return HeaderError(None, opaque, fault)


def _parse_int(value: Scalar, name: str) -> int:
    if value is None:
        raise ValueError(f"the header has no {name}")
    try:
        return java_integer(_text(value), 32)
    except ValueError as error:
        raise ValueError(f"header {name}: {error}") from error


def _text(value: Scalar) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _language(value: Scalar) -> str | None:
    if isinstance(value, str):
        return value if value in LANGUAGES else None
    return LANGUAGE_NAMES.get(value) if isinstance(value, int) else None
