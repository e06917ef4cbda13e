"""Messages whose parts are all derived from a short value, so that a reader detects a change in any of them.

A value is ``process.number.size``: unique in a run. Body, tag, key and property of its message are derived from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

PROPERTY = "jepsen"
DAMAGED = "damaged"


def new_value(process: int, number: int, size: int) -> str:
    """The value of a process's message with this number; ``size``: bytes of its body, at least as long as the value."""
    return f"{process}.{number}.{size}"


def body_of(value: str) -> bytes:
    """The body of a value's message: the value, followed by filler bytes specific to the value."""
    head = value.encode() + b"/"
    size = int(value.rpartition(".")[2])
    return head + hashlib.shake_128(head).digest(max(0, size - len(head)))


def tag_of(value: str) -> str:
    """The tag of a value's message."""
    return f"t{int(value.split('.')[1]) % 4}"


def unique_key_of(value: str) -> str:
    """The unique key of a value's message, in letters and digits as clients make it."""
    return value.replace(".", "x")


def properties_of(value: str) -> dict[str, str]:
    """The properties that the sender sets on a value's message."""
    return {PROPERTY: value}


def value_of(body: bytes, properties: Mapping[str, str], tag: str | None) -> str:
    """The value of a received message; a text that begins with `DAMAGED` if a part differs from the sent one."""
    value = body.partition(b"/")[0].decode(errors="replace")
    try:
        whole = body == body_of(value) and tag == tag_of(value) and properties.get(PROPERTY) == value
    except (ValueError, IndexError):
        whole = False
    if whole:
        return value
    return f"{DAMAGED} {value[:40]!r}: {len(body)} bytes, tag {tag!r}, property {properties.get(PROPERTY)!r}"
