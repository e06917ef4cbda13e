"""Encodes and decodes all JSON bodies.

We write compact JSON with sorted keys, every field present and numbers as quoted keys: some clients parse the text by
hand or know no defaults. Input may omit fields, and may be in the dialect of `mq.protocol.wire.fastjson`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, Self, TypeVar

import msgspec

from mq.protocol.errors import BodyError
from mq.protocol.wire import fastjson

T = TypeVar("T")

CLIENT_VALUES_MAX: Final = 2_000
"""`Body.dialect_values_max` for bodies from clients to brokers. All known clients send plain JSON there."""

_encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder(order="sorted").encode


class Body(msgspec.Struct):
    """Base of all JSON bodies.

    ``dialect_values_max``: maximum values in a text that is not plain JSON; parsing a thousand takes about 4 ms, which
    blocks everything else.
    """

    dialect_values_max: ClassVar[int] = fastjson.VALUES_MAX

    def encode(self) -> bytes:
        """Encode the body as JSON."""
        try:
            return _encode(self)
        except TypeError:
            return _encode(msgspec.to_builtins(self, str_keys=True))  # tables may have numbers as keys

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Decode the JSON text. Raises BodyError."""
        return decode_as(cls, data, values_max=cls.dialect_values_max)


def decode_as(kind: type[T], data: bytes | memoryview, *, values_max: int = fastjson.VALUES_MAX) -> T:
    """Decode ``data`` to a value of type ``kind``: as plain JSON, else in Java's dialect. Raises BodyError."""
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return msgspec.convert(_without_nulls(fastjson.parse(data, values_max=values_max)), type=kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BodyError(f"body of {len(data)} bytes is not a {kind.__name__}: {error}") from error


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value
