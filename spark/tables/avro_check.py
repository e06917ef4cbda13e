"""Checks that a body is Avro of the schema that wrote it. Pure.

fastavro reads over many errors in a body: a negative place in an enum or a union is taken from the end, a number may
have any length, and skipped parts may be missing. So each body is walked through before it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from spark.tables.bodies import BodyInvalid, SchemaUnusable

Walk = Callable[[bytes, int], int]
"""Maps the begin of a value to its end, perhaps behind the body. Raises BodyInvalid, IndexError at the end."""
_NUMBER_BYTES_MAX: Final = {"int": 5, "long": 10}
_LAST_MAX: Final = {"int": 0x0F, "long": 0x01}
_FIXED: Final = {"null": 0, "float": 4, "double": 8}


class AvroCheck:
    """Checks bodies of one schema by walking through them.

    Args:
        schema: as fastavro parses it.
    """

    def __init__(self, schema: Any) -> None:
        """Raises SchemaUnusable for lists of items without bytes: a short body could have any number of them."""
        self._named_types: dict[str, Walk] = {}
        self._empty: set[str] = set()
        self._walk = self._type(schema, "")

    def check(self, body: bytes) -> None:
        """Raise BodyInvalid unless the body is Avro of the schema."""
        try:
            end = self._walk(body, 0)
        except IndexError:
            end = len(body) + 1
        except RecursionError:
            raise BodyInvalid("it is nested too deeply") from None
        if end > len(body):
            raise BodyInvalid("it ends before its last field, or was written with another schema")
        if rest := len(body) - end:
            raise BodyInvalid(f"{rest} bytes are left after its last field: it was written with another schema")

    def _type(self, schema: Any, path: str) -> Walk:
        if isinstance(schema, list):
            return _union([self._type(each, path) for each in schema], path)
        if isinstance(schema, str):
            schema = {"type": schema}
        kind = schema["type"]
        if not isinstance(kind, str):
            return self._type(kind, path)
        if kind in ("array", "map"):
            inner, below = ("items", f"{path}[]") if kind == "array" else ("values", f"{path}{{}}")
            walk = self._type(schema[inner], below)
            if kind == "map":
                return _blocks(_of_all([_text(path), walk]), path)
            if self._is_empty(schema[inner]):
                raise SchemaUnusable(f"field {below} has no bytes: a list of it may have any length")
            return _blocks(walk, path)
        if kind in ("record", "error", "enum", "fixed"):
            name = schema["name"]
            if self._is_empty(schema):
                self._empty.add(name)
            walk = self._named_type(schema, path)
            self._named_types[name] = walk
            return walk
        if kind in ("int", "long"):
            return _number(kind, path)
        if kind in ("string", "bytes"):
            return _text(path)
        if kind == "boolean":
            return _choice(2, path, None)
        if kind in _FIXED:
            return _skip_bytes(_FIXED[kind])
        return lambda body, at: self._named_types[kind](body, at)  # looked up late: it may contain itself

    def _named_type(self, schema: Any, path: str) -> Walk:
        if schema["type"] == "enum":
            return _choice(len(schema["symbols"]), path, "symbols")
        if schema["type"] == "fixed":
            return _skip_bytes(schema["size"])
        fields = schema["fields"]
        return _of_all([self._type(each["type"], f"{path}.{each['name']}".lstrip(".")) for each in fields])

    def _is_empty(self, schema: Any) -> bool:
        """Whether the values of a schema have no bytes."""
        if isinstance(schema, list):
            return False
        if isinstance(schema, str):
            return schema == "null" or schema in self._empty
        kind = schema["type"]
        if kind in ("record", "error"):
            return all(self._is_empty(each["type"]) for each in schema["fields"])
        return not schema["size"] if kind == "fixed" else self._is_empty(kind)


def _read(body: bytes, at: int, path: str) -> tuple[int, int]:
    """Read a number; returns it, and where it ends."""
    end = _end_of(body, at, "long", path)
    value = 0
    for place in range(end - 1, at - 1, -1):
        value = value << 7 | body[place] & 0x7F
    return (value >> 1) ^ -(value & 1), end


def _end_of(body: bytes, at: int, kind: str, path: str) -> int:
    end = at
    while body[end] >= 0x80:
        end += 1
    nbytes, limit = end - at + 1, _NUMBER_BYTES_MAX[kind]
    if nbytes >= limit and (nbytes > limit or body[end] > _LAST_MAX[kind]):
        raise BodyInvalid(f"column {path} has a number that no {kind} has")
    return end + 1


def _number(kind: str, path: str) -> Walk:
    def walk(body: bytes, at: int) -> int:
        return at + 1 if body[at] < 0x80 else _end_of(body, at, kind, path)

    return walk


def _text(path: str) -> Walk:
    def walk(body: bytes, at: int) -> int:
        length, at = _read(body, at, path)
        if length < 0:
            raise BodyInvalid(f"column {path} has a length of {length} bytes")
        return at + length

    return walk


def _skip_bytes(nbytes: int) -> Walk:
    return lambda _, at: at + nbytes


def _choice(count: int, path: str, what: str | None) -> Walk:
    """Walk over one of ``count`` symbols; without ``what``: over a byte that is true or false."""

    def walk(body: bytes, at: int) -> int:
        number, end = (body[at], at + 1) if what is None else _read(body, at, path)
        if not 0 <= number < count:
            problem = (
                f"{number}, which is no boolean" if what is None else f"symbol {number}, and there are {count} {what}"
            )
            raise BodyInvalid(f"column {path} is {problem}")
        return end

    return walk


def _union(branches: list[Walk], path: str) -> Walk:
    def walk(body: bytes, at: int) -> int:
        number, at = _read(body, at, path)
        if not 0 <= number < len(branches):
            raise BodyInvalid(f"column {path} has type number {number} of a union of {len(branches)} types")
        return branches[number](body, at)

    return walk


def _of_all(walks: list[Walk]) -> Walk:
    def walk(body: bytes, at: int) -> int:
        for each in walks:
            at = each(body, at)
        return at

    return walk


def _blocks(item: Walk, path: str) -> Walk:
    def walk(body: bytes, at: int) -> int:
        while True:
            count, at = _read(body, at, path)
            if not count:
                return at
            nbytes = None
            if count < 0:
                nbytes, at = _read(body, at, path)
                count = -count
            begin = at
            for _ in range(count):
                at = item(body, at)
                if at > len(body):
                    raise IndexError
            if nbytes is not None and at - begin != nbytes:
                raise BodyInvalid(f"column {path} has a block of {at - begin} bytes whose header says {nbytes}")

    return walk
