"""Errors and the schema registry's header, for the decoders of Avro and Protobuf. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

HEADER_BYTES: Final = 5
"""The length of Confluent's header: a byte 0, and the number of the schema in its registry."""
Values = Mapping[str, Any]
"""The values of a body by column, as Arrow keeps them: timestamps are microseconds since 1970, dates days since then,
maps lists of pairs. So no value has to pass through a type of Python that has other bounds.
"""
Decoder = Callable[[bytes], Values]
"""Raises BodyInvalid."""


class BodyInvalid(Exception):
    """A body does not decode; the message tells why, in words for its sender."""


class SchemaUnusable(ValueError):
    """A schema cannot be the columns of a table; the message names the field and the reason."""


def schema_number(body: bytes) -> int:
    """Return the schema number in Confluent's header. Raises BodyInvalid if there is no header."""
    if len(body) < HEADER_BYTES:
        raise BodyInvalid(f"it has {len(body)} bytes; expected a schema registry's header of {HEADER_BYTES}")
    if body[0]:
        raise BodyInvalid(f"it has no header of a schema registry: its first byte is 0x{body[0]:02x}, not 0x00")
    return int.from_bytes(body[1:HEADER_BYTES], "big")
