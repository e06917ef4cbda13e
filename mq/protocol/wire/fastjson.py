"""Parses the JSON dialect of Java nodes.

It is JSON with three extensions: keys may be unquoted numbers, keys may be objects, and ``{"$ref": "$.path"}`` refers
to another part of the same text. The result is plain Python: number keys become text, an object key becomes its compact
JSON with sorted members, a reference becomes its target.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from mq.protocol.errors import BodyError

DEPTH_MAX: Final = 32
"""Nesting levels, after following references."""
REFERENCES_MAX: Final = 10_000
VALUES_MAX: Final = 50_000
"""Values in one text, counted once per reference: parsing this many takes about 0.2 s."""
TRUSTED_VALUES_MAX: Final = 2_000_000
"""The same for data from a server or a local file."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")
# Possessive, so that a long text that is not a string takes neither time nor memory.
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[([0-9]+)\]|\[\"([^\"]*)\"\]")
_CONSTANTS: Final = {"true": True, "false": False, "null": None}

_encode_key: Final = msgspec.json.Encoder(order="sorted").encode


def parse(data: bytes | memoryview, *, values_max: int = VALUES_MAX) -> Any:
    """Parse the value in ``data``.

    Raises:
        BodyError: it is neither JSON nor this dialect, is nested deeper than 32 levels, has more than ``values_max``
            values, or a dangling reference.
    """
    reader = _JsonReader(bytes(data).decode("utf-8", "replace"), values_max)
    value = reader.read_all()
    return _resolve(value, values_max) if reader.references else value


class _Reference(msgspec.Struct, frozen=True):
    path: str


class _JsonReader:
    def __init__(self, text: str, values_max: int) -> None:
        self._text = text
        self._at = 0
        self._values_max = values_max
        self._values = 0
        self.references = 0

    def read_all(self) -> Any:
        value = self._value(0)
        if self._peek():
            raise self._error("the end of the text")
        return value

    def _peek(self) -> str:
        space = _SPACE.match(self._text, self._at)
        assert space is not None, "an empty match is a match"
        self._at = space.end()
        return self._text[self._at : self._at + 1]

    def _skip_if(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise BodyError(f"JSON is nested deeper than {DEPTH_MAX} levels at character {self._at}")
        self._values += 1
        if self._values > self._values_max:
            raise _too_many(self._values_max)
        match self._peek():
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
            case '"':
                return self._string()
            case first if first and first in "-0123456789":
                return self._read_number()
        for word, value in _CONSTANTS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        raise self._error("a value")

    def _object(self, depth: int) -> Any:
        self._at += 1
        members: dict[str, Any] = {}
        if self._skip_if("}"):
            return members
        while True:
            key = self._key(depth)
            if not self._skip_if(":"):
                raise self._error("a colon")
            members[key] = self._value(depth + 1)
            if self._skip_if("}"):
                break
            if not self._skip_if(","):
                raise self._error("a comma or the end of the object")
        path = members.get("$ref")
        if len(members) == 1 and isinstance(path, str):
            self.references += 1
            if self.references > REFERENCES_MAX:
                raise BodyError(f"JSON has more than {REFERENCES_MAX} references")
            return _Reference(path)
        return members

    def _key(self, depth: int) -> str:
        match self._peek():
            case '"':
                return self._string()
            case "{":
                key = self._value(depth + 1)
                if isinstance(key, _Reference):
                    raise BodyError(f"JSON has the reference {key.path} as a key")
                return _encode_key(key).decode()
            case first if first and first in "-0123456789":
                return str(self._read_number())
        raise self._error("a key")

    def _array(self, depth: int) -> list[Any]:
        self._at += 1
        items: list[Any] = []
        if self._skip_if("]"):
            return items
        while True:
            items.append(self._value(depth + 1))
            if self._skip_if("]"):
                return items
            if not self._skip_if(","):
                raise self._error("a comma or the end of the array")

    def _string(self) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            raise self._error("the end of a string")
        try:
            text: str = msgspec.json.decode(match.group(), type=str)
        except msgspec.MsgspecError as error:
            raise BodyError(f"JSON has a bad string at character {self._at}: {error}") from error
        self._at = match.end()
        return text

    def _read_number(self) -> int | float:
        match = _NUMBER.match(self._text, self._at)
        if match is None or len(match.group()) > 64:
            raise self._error("a number")
        self._at = match.end()
        text = match.group()
        return int(text) if text.lstrip("-").isdigit() else float(text)

    def _error(self, expected: str) -> BodyError:
        return BodyError(f"JSON has {self._text[self._at : self._at + 10]!r} at character {self._at}, not {expected}")


def _too_many(values_max: int) -> BodyError:
    return BodyError(f"JSON has more than {values_max} values")


def _resolve(root: Any, values_max: int) -> Any:
    """``root`` with each reference replaced by its target, which is shared, not copied.

    Readers of the result visit shared parts repeatedly, so the limits count repeated visits.
    """
    open_nodes: set[int] = set()
    counts: dict[int, tuple[int, int]] = {}

    def visit(node: Any, depth: int) -> tuple[int, int]:
        """The number of values in a node, and its depth."""
        if not isinstance(node, dict | list):
            return 1, 0
        if id(node) in counts:
            return counts[id(node)]
        if id(node) in open_nodes:
            raise BodyError("JSON has references in a circle")
        open_nodes.add(id(node))
        values, levels = 1, 0
        for key, child in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if isinstance(child, _Reference):
                node[key] = child = _target(root, child.path)
            if depth >= DEPTH_MAX:
                raise BodyError(f"JSON is nested deeper than {DEPTH_MAX} levels by its references")
            below = visit(child, depth + 1)
            values, levels = values + below[0], max(levels, 1 + below[1])
        if values > values_max:
            raise _too_many(values_max)
        if levels > DEPTH_MAX:
            raise BodyError(f"JSON is nested deeper than {DEPTH_MAX} levels by its references")
        open_nodes.remove(id(node))
        counts[id(node)] = values, levels
        return counts[id(node)]

    if isinstance(root, _Reference):
        raise BodyError("the JSON document is only a reference")
    visit(root, 0)
    return root


def _target(root: Any, path: str) -> Any:
    node = root
    steps = path.removeprefix("$")
    at = 0
    while at < len(steps):
        step = _STEP.match(steps, at)
        if step is None:
            raise BodyError(f"JSON has a reference that cannot be followed: {path[:80]}")
        name, index = step.group(1) or step.group(3), step.group(2)
        try:
            node = node[name] if index is None else node[int(index)] if isinstance(node, list) else node[index]
        except (LookupError, TypeError) as error:
            raise BodyError(f"JSON has a reference that leads nowhere: {path[:80]}") from error
        at = step.end()
    # Java writes a value in full at its first occurrence, so a reference never leads to another one.
    if not path.startswith("$") or isinstance(node, _Reference):
        raise BodyError(f"JSON has a reference that cannot be followed: {path[:80]}")
    return node
