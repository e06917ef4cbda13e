"""Messages whose every part is told by a short value, so that a reader notices when any part was changed.

A value is ``process.number.size``: unique in a run. Body, tag, key and property of its message are derived from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

PROPERTY = "jepsen"
DAMAGED = "damaged"


def new_value(process: int, number: int, size: int) -> str:
    """The value of a process's message with this number; ``size``: bytes of its body, at least those of the value."""
    return f"{process}.{number}.{size}"


def body_of(value: str) -> bytes:
    """The body of a value's message: the value, and bytes that nobody else would write behind it."""
    head = value.encode() + b"/"
    size = int(value.rpartition(".")[2])
    return head + hashlib.shake_128(head).digest(max(0, size - len(head)))


def tag_of(value: str) -> str:
    """The tag of a value's message."""
    return f"t{int(value.split('.')[1]) % 4}"


def properties_of(value: str) -> dict[str, str]:
    """The properties of a value's message that its sender sets."""
    return {PROPERTY: value}


def value_of(body: bytes, properties: Mapping[str, str], tag: str | None) -> str:
    """The value of a message as it was received; a text that begins with `DAMAGED` if a part is not as it was sent."""
    value = body.partition(b"/")[0].decode(errors="replace")
    try:
        whole = body == body_of(value) and tag == tag_of(value) and properties.get(PROPERTY) == value
    except (ValueError, IndexError):
        whole = False
    if whole:
        return value
    return f"{DAMAGED} {value[:40]!r}: {len(body)} bytes, tag {tag!r}, property {properties.get(PROPERTY)!r}"
