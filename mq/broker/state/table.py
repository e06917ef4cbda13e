"""The interface of a part of the replicated state: a table with its own commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec


class MetadataError(Exception):
    """Base of the errors of replicated state."""


class CommandInvalid(MetadataError):
    """A command may not enter the log: it contains an invalid name or number. Nothing has changed."""


class CommandUnknown(MetadataError):
    """A committed command is from a newer version, or no correct leader wrote it.

    This replica cannot continue; one with a newer version may.
    """


class SnapshotDamaged(MetadataError):
    """A snapshot is damaged, or from a newer version."""


class TableCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the commands that belong to a table. Each has its own tag."""

    def check(self) -> None:
        """Raises CommandInvalid, or NameRefused, if the command is invalid."""


class StateTable:
    """Base of the tables of the replicated state. Only commands change one, in the same way on every replica.

    Attributes:
        COMMANDS: the types of the commands that it applies; no other table has them.
    """

    COMMANDS: tuple[type[TableCommand], ...] = ()

    def apply(self, command: TableCommand) -> None:
        """Apply one committed command.

        Raises CommandUnknown for a command that no correct leader writes; then nothing changed.
        """
        raise AssertionError(f"{type(command).__name__} is not a command of {type(self).__name__}")

    def capture(self) -> Callable[[], object]:
        """A function that encodes the current table for a snapshot: None or lists, dicts, numbers, strings and bytes.

        Capturing is fast; the function is called later in another thread. Equal tables give equal results; an empty one
        gives None.
        """
        raise NotImplementedError

    def restore(self, state: object) -> None:
        """Replace the table by one that ``capture`` encoded; None stands for the empty one.

        Raises SnapshotDamaged, msgspec.ValidationError; then the table is unchanged.
        """
        raise NotImplementedError

    def topic_deleted(self, topic: str) -> None:
        """Remove entries of a deleted topic; there are none unless a table overrides this."""

    def group_deleted(self, group: str) -> None:
        """Remove entries of a deleted consumer group; likewise."""

    def check_invariants(self) -> None:
        """Assert what holds between two commands; for tests, since it looks at the whole table."""


def by_command(parts: Iterable[StateTable]) -> dict[type[object], Callable[[Any], None]]:
    """Map each command of a table to the method that applies it."""
    return {command: part.apply for part in parts for command in part.COMMANDS}


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raises CommandInvalid unless ``low <= value <= high``."""
    if not low <= value <= high:
        raise CommandInvalid(f"{name} is {value}; allowed: {low} to {high}")
