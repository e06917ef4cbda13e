"""What a part of the replicated state is: a table of its own, with commands of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec


class MetadataError(Exception):
    """Base of the errors of replicated state."""


class CommandRefused(MetadataError):
    """A command may not enter the log: a name or a number in it is not allowed. Nothing has happened."""


class CommandUnknown(MetadataError):
    """A committed command is of a newer version, or no correct leader made it.

    This replica cannot go on; one of a newer version perhaps can.
    """


class SnapshotDamaged(MetadataError):
    """A snapshot is of a newer version or damaged."""


class TableCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the commands that belong to a part. Each has a tag of its own."""

    def check(self) -> None:
        """Raises CommandRefused, or NameRefused, if something in the command is not allowed."""


class StateTable(Protocol):
    """A table of the replicated state. It changes by commands only, the same way on every replica.

    Attributes:
        COMMANDS: the types of its commands; no other part has them.
    """

    COMMANDS: tuple[type[TableCommand], ...]

    def apply(self, command: TableCommand) -> None:
        """Carry out one committed command.

        Raises CommandUnknown if no correct leader made it; then nothing happened.
        """

    def capture(self) -> Callable[[], object]:
        """What encodes the table as it is now, for a snapshot: None or lists, dicts, numbers, strings and bytes.

        Capturing is fast; what it returns is called later and in another thread. Equal tables give equal results; an
        empty one gives None.
        """

    def restore(self, state: object) -> None:
        """Become the table that ``capture`` encoded; None stands for the empty one.

        Raises SnapshotDamaged, msgspec.ValidationError; then the table is as it was.
        """

    def topic_deleted(self, topic: str) -> None:
        """Forget what is about a topic that is gone."""

    def group_deleted(self, group: str) -> None:
        """Forget what is about a consumer group that is gone."""


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raises CommandRefused unless ``low <= value <= high``."""
    if not low <= value <= high:
        raise CommandRefused(f"{name} is {value}; allowed: {low} to {high}")
