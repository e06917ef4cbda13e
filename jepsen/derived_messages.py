"""Derives all parts of a message from a short value, so that a reader detects a change in any part.

A value is ``process.number.size``: unique in a run. Body, tag, key and property of its message are derived from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

PROPERTY = "jepsen"
DAMAGED = "damaged"


def new_value(process: int, number: int, size: int) -> str:
    """Return the value for message ``number`` of a process. ``size``: bytes of the body, at least the value's."""
    return f"{process}.{number}.{size}"


def body_of(value: str) -> bytes:
    """Return the body of a value's message: the value, and filler bytes that depend on the value."""
    head = value.encode() + b"/"
    size = int(value.rpartition(".")[2])
    return head + hashlib.shake_128(head).digest(max(0, size - len(head)))


def tag_of(value: str) -> str:
    """Return the tag of a value's message."""
    return f"t{int(value.split('.')[1]) % 4}"


def unique_key_of(value: str) -> str:
    """Return the unique key of a value's message: letters and digits, as clients make them."""
    return value.replace(".", "x")


def properties_of(value: str) -> dict[str, str]:
    """Return the properties that the sender sets on a value's message."""
    return {PROPERTY: value}


def value_of(body: bytes, properties: Mapping[str, str], tag: str | None) -> str:
    """Return the value of a received message, or a text that begins with `DAMAGED` if a part is not the sent one."""
    value = body.partition(b"/")[0].decode(errors="replace")
    try:
        whole = body == body_of(value) and tag == tag_of(value) and properties.get(PROPERTY) == value
    except (ValueError, IndexError):
        whole = False
    if whole:
        return value
    return f"{DAMAGED} {value[:40]!r}: {len(body)} bytes, tag {tag!r}, property {properties.get(PROPERTY)!r}"
