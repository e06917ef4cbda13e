"""Parses options NAME=VALUE: attributes of topics and consumer groups, and properties of messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from mq.cli.errors import CommandFailed

Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute", metavar="NAME=VALUE", help="Set an attribute; NAME= removes it. May be given several times."
    ),
]

Properties = Annotated[
    list[str] | None,
    typer.Option("--property", metavar="NAME=VALUE", help="Property of the message; may be repeated."),
]


def attributes_of(texts: Iterable[str]) -> dict[str, str | None]:
    """Parse attributes. An attribute that shall be removed gets the value None. Raises CommandFailed."""
    attributes: dict[str, str | None] = {}
    for each in texts:
        name, equals, value = (part.strip() for part in each.partition("="))
        if not name or not equals or name[0] in "+-":
            raise CommandFailed(f"{each!r} is not an attribute; write NAME=VALUE, or NAME= to remove it")
        attributes[name] = value or None
    return attributes


def as_changes(attributes: Mapping[str, str | None]) -> dict[str, str]:
    """Encode attributes for brokers: ``+name`` sets one, ``-name`` removes it."""
    return {f"-{name}" if value is None else f"+{name}": value or "" for name, value in attributes.items()}


def after(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the attributes with the changes applied."""
    return {name: value for name, value in {**before, **changes}.items() if value is not None}


def properties_of(texts: Iterable[str]) -> dict[str, str]:
    """Parse ``NAME=VALUE`` texts to properties of a message. Raises CommandFailed."""
    properties: dict[str, str] = {}
    for each in texts:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise CommandFailed(f"{each!r} is not a property; write NAME=VALUE")
        properties[name] = value
    return properties
