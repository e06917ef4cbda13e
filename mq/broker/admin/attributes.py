"""Parses and applies changes of attributes of topics and groups, as RocketMQ's tools write them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mq.broker.net.refusals import RequestRefused
from mq.protocol.codes import ResponseCode


def attribute_changes(text: str) -> dict[str, str]:
    """Parse ``+name=value,-name``. The names keep their sign. Raises RequestRefused."""
    changes: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, separator, value = part.partition("=")
        if not name[1:].strip() or name[0] not in "+-" or bool(separator) is not (name[0] == "+"):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"attribute {part[:80]!r} is not +name=value or -name")
        changes[name.strip()] = value.strip()
    return changes


def merge_attributes(attributes: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes after changes: ``+name`` or ``name`` sets an attribute, ``-name`` removes it."""
    result = dict(attributes)
    for name, value in changes.items():
        if name.startswith("-"):
            result.pop(name[1:], None)
        else:
            result[name.removeprefix("+")] = value
    return result


def sets(changes: Mapping[str, str], name: str) -> bool:
    """Return whether the changes set the attribute ``name``."""
    return name in changes or f"+{name}" in changes
