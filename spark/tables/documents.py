"""Parses YAML documents and remembers the line of each value, for errors. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import yaml

from spark.option_table import nearest

T = TypeVar("T")
_MISSING: Final = object()
_VALUES_MAX: Final = 100_000
"""A few lines whose aliases name each other would be billions."""


class DocumentInvalid(Exception):
    """A file is invalid. The text has the place, the error, and the allowed values."""


class SecretInvalid(ValueError):
    """A value is invalid and must not be shown: `Section.member` reports the reason without the value."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a document: plain Python data, the line it is on, and its path such as ``table.format``.

    ``members`` are the values of a mapping by name, each with its own line.
    """

    file: str
    path: str
    line: int
    data: Any
    members: dict[str, Value] | None = None

    def error(self, reason: str) -> DocumentInvalid:
        """Return the error to raise about this value."""
        what = f"{self.path} " if self.path else ""
        return DocumentInvalid(f"{self.file}:{self.line}: {what}{reason}")


class Section:
    """A mapping whose members are taken one by one. `finish` raises if members are left."""

    def __init__(self, value: Value) -> None:
        if value.members is None:
            raise value.error(f"is {_format(value.data)}; it must be a mapping of names to values")
        self._value = value
        self._members = value.members
        self._names_read: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the document sets the member ``name``."""
        return name in self._members

    def value(self, name: str) -> Value | None:
        """Return a member unparsed; None if it is not set."""
        self._names_read.append(name)
        return self._members.get(name)

    def member(self, name: str, parse: Callable[[Any], T], default: Any = _MISSING) -> T:
        """Take and parse a member. Raises DocumentInvalid if it is missing without a default, or ``parse`` raises
        ValueError.
        """
        node = self.value(name)
        if node is None:
            if default is _MISSING:
                where = f"{self._value.path}.{name}" if self._value.path else name
                raise DocumentInvalid(f"{self._value.file}:{self._value.line}: {where} is missing")
            return default  # type: ignore[no-any-return]
        try:
            return parse(node.data)
        except SecretInvalid as error:
            raise node.error(str(error)) from None
        except ValueError as error:
            raise node.error(f"{error}; it is {_format(node.data)}") from None

    def section(self, name: str) -> Section | None:
        """Return a member that is a mapping itself; None if it is not set."""
        member = self.value(name)
        return None if member is None else Section(member)

    def error(self, reason: str) -> DocumentInvalid:
        """Return the error to raise about this mapping."""
        return self._value.error(reason)

    def finish(self) -> None:
        """Raise DocumentInvalid for the first unknown name, with the nearest known one."""
        for name, member in self._members.items():
            if name not in self._names_read:
                raise member.error(f"is unknown{nearest(name, self._names_read)}")


def load(text: str, file: str) -> Value:
    """Parse a YAML document.

    Raises:
        DocumentInvalid: not YAML, empty, a name twice in one mapping, or a name that is not text.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DocumentInvalid(f"{file}:{line}: this is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise DocumentInvalid(f"{file}: this is not YAML: {' '.join(str(error).split())}") from None
    if node is None:
        raise DocumentInvalid(f"{file}: the file is empty")
    try:
        return _value(node, file, "", iter(range(_VALUES_MAX)))
    except RecursionError:
        raise DocumentInvalid(f"{file}: values are nested too deeply, or contain themselves") from None


def _value(node: yaml.Node, file: str, path: str, budget: Iterator[int]) -> Value:
    line = node.start_mark.line + 1
    if next(budget, None) is None:
        raise DocumentInvalid(f"{file}: the file has more than {_VALUES_MAX:,} values, those of aliases included")
    if isinstance(node, yaml.MappingNode):
        members: dict[str, Value] = {}
        for key, each in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                at = key.start_mark.line + 1
                raise DocumentInvalid(f'{file}:{at}: a name of {path or "the file"} must be text: write it in "..."')
            inner = f"{path}.{key.value}" if path else key.value
            if key.value in members:
                at = key.start_mark.line + 1
                raise DocumentInvalid(f"{file}:{at}: {inner} is set twice, first in line {members[key.value].line}")
            member = _value(each, file, inner, budget)
            members[key.value] = Value(file, inner, key.start_mark.line + 1, member.data, member.members)
        return Value(file, path, line, {name: each.data for name, each in members.items()}, members)
    if isinstance(node, yaml.SequenceNode):
        return Value(file, path, line, [_value(each, file, f"{path}[]", budget).data for each in node.value])
    try:
        data = _Scalars("").construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentInvalid(f"{file}:{line}: {path} cannot be read: {' '.join(str(error).split())}") from None
    return Value(file, path, line, data)


class _Scalars(yaml.SafeLoader):
    """Constructs single values."""


# -- parsers of values -------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """Return a value as text, which must not be empty. Numbers are text, too: ``topic: 2024`` is meant so."""
    if isinstance(value, bool):
        raise ValueError('must be text: write it in "..."')  # noqa: TRY004 - a wrong value, whatever its type
    if not isinstance(value, str | int | float):
        raise ValueError("must be text")  # noqa: TRY004 - as above
    if not str(value).strip():
        raise ValueError("must not be empty")
    return str(value).strip()


def number(low: int, high: int) -> Callable[[Any], int]:
    """Return a parser of whole numbers within bounds, both included."""

    def parse(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return parse


def one_of(*names: str) -> Callable[[Any], str]:
    """Return a parser that accepts one of the given words."""

    def parse(value: Any) -> str:
        if value not in names:
            raise ValueError(f"must be {' or '.join(names)}{nearest(str(value), names)}")
        return str(value)

    return parse


def names(value: Any) -> tuple[str, ...]:
    """Check a list of different names, or one name alone."""
    texts = [text(each) for each in (value if isinstance(value, list) else [value])]
    if not texts:
        raise ValueError("must name at least one")
    if twice := sorted({each for each in texts if texts.count(each) > 1}):
        raise ValueError(f"names {', '.join(twice)} twice")
    return tuple(texts)


def texts(value: Any) -> dict[str, str]:
    """Check a mapping of names to text; numbers, true and false become text."""
    if not isinstance(value, dict):
        raise ValueError("must be a mapping of names to values")  # noqa: TRY004 - as above
    return {name: _scalar_text(name, each) for name, each in value.items()}


def _scalar_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise ValueError(f"has no text or number as {name}")  # noqa: TRY004 - as above
    return str(value)


def _format(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def format_list(names_of: Iterable[str]) -> str:
    """List names for a message, at most ten."""
    names = list(names_of)
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
