"""Finds values in JSON bodies for expressions: ``$.order.items[0].price``.

An expression sees every value as a text, as it sees properties: numbers as they are written in JSON by this module,
``true`` and ``false``, and texts as they are. Objects, arrays, null and what is not there are null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

PREFIX: Final = "\x00"
"""Begins the names of values in bodies: no property can be named so by an expression."""
PATH_LENGTH_MAX: Final = 256

_PATH: Final = re.compile(r"\$(?:\.[A-Za-z_][A-Za-z0-9_-]*|\[(?:0|[1-9][0-9]{0,5})\]|\['[^'\]]+'\])+")
_STEP: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\[([0-9]+)\]|\['([^'\]]+)'\]")
_NOT_JSON: Final = object()


def field_name(path: str) -> str:
    """Return the name under which `FieldsOfBody` has the value at a path. Raises ValueError for an invalid path."""
    if len(path) > PATH_LENGTH_MAX or _PATH.fullmatch(path) is None:
        raise ValueError(f"{path[:40]!r} is not a path such as $.order.items[0]['unit price']")
    return PREFIX + path


class FieldsOfBody(Mapping[str, str]):
    """Maps names to the properties of a message, and each `field_name` to a value in its body.

    The body is parsed when the first value is looked up.
    """

    __slots__ = ("_body", "_properties", "_root")

    def __init__(self, properties: Mapping[str, str], body: bytes) -> None:
        self._properties = properties
        self._body = body
        self._root: Any = None

    def __getitem__(self, name: str) -> str:
        if not name.startswith(PREFIX):
            return self._properties[name]
        value = self._value(name)
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._properties)

    def __len__(self) -> int:
        return len(self._properties)

    def _value(self, name: str) -> str | None:
        if self._root is None:
            try:
                self._root = msgspec.json.decode(self._body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self._root = _NOT_JSON
        at = self._root
        for key, index, quoted_key in _STEP.findall(name):
            if index:
                if not isinstance(at, list) or int(index) >= len(at):
                    return None
                at = at[int(index)]
            elif isinstance(at, dict):
                at = at.get(key or quoted_key)
            else:
                return None
        return _text(at)


def _text(value: Any) -> str | None:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int() | float():
            return repr(value)
        case _:
            return None
