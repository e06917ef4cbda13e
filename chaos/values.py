"""Derives message bodies from a value, so that a changed body is detected."""

from __future__ import annotations

from chaos.violation import Violation

_VALUE_BYTES = 8


def body_of(value: int, nbytes: int) -> bytes:
    """Return a body of ``nbytes`` bytes, all derived from ``value``."""
    return value.to_bytes(_VALUE_BYTES).ljust(nbytes, bytes((value % 251,)))


def value_of(body: bytes) -> int:
    """Return the value of a body. Raises `Violation` if a byte of it is wrong."""
    value = int.from_bytes(body[:_VALUE_BYTES])
    if body != body_of(value, len(body)):
        raise Violation(f"the body of value {value} was changed: {body[:40]!r}")
    return value
