"""The interface of a table of the replicated state, with its own commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec


class MetadataError(Exception):
    """Base of the errors of the replicated state."""


class CommandInvalid(MetadataError):
    """A command has an invalid name or number, and may not enter the log. Nothing has changed."""


class CommandUnknown(MetadataError):
    """A committed command is from newer software, or was not written by a correct leader.

    This replica cannot continue; one with a newer version may.
    """


class SnapshotDamaged(MetadataError):
    """A snapshot is damaged, or from newer software."""


class TableCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the commands that belong to a table. Each has a tag of its own."""

    def check(self) -> None:
        """Raise CommandInvalid or NameRefused if the command is invalid."""


class StateTable:
    """Base of the tables of the replicated state. Only commands change a table, on every replica in the same way.

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
        """Capture the table. The returned function encodes it as None or lists, dicts, numbers, strings and bytes.

        Capturing is fast; the function is called later in another thread. Equal tables give equal results; an empty one
        gives None.
        """
        raise NotImplementedError

    def restore(self, state: object) -> None:
        """Replace the table by one that ``capture`` encoded. None is an empty table.

        Raises SnapshotDamaged, msgspec.ValidationError; then the table is unchanged.
        """
        raise NotImplementedError

    def topic_deleted(self, topic: str) -> None:
        """Remove the entries of a deleted topic. A table without such entries does not override this."""

    def group_deleted(self, group: str) -> None:
        """Remove the entries of a deleted consumer group. A table without such entries does not override this."""

    def check_invariants(self) -> None:
        """Assert that the table is consistent between two commands; for tests, since it reads the whole table."""


def by_command(parts: Iterable[StateTable]) -> dict[type[object], Callable[[Any], None]]:
    """Map each command of a table to the method that applies it."""
    return {command: part.apply for part in parts for command in part.COMMANDS}


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raise CommandInvalid unless ``low <= value <= high``."""
    if not low <= value <= high:
        raise CommandInvalid(f"{name} is {value}; allowed: {low} to {high}")
