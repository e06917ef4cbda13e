"""The filter programs of consumer groups. Brokers store them, and filter servers run them.

A group has one program for a topic, and a new one replaces it. The bytes are replicated, so that a filter server gets
the program from whichever replica leads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from mq.broker.limits import StateLimits
from mq.broker.state.table import CommandInvalid, SnapshotDamaged, StateTable, TableCommand, check_range
from mq.filter.programs import PROGRAM_BYTES_MAX, ProgramInvalid, ProgramName, parse_program_name
from mq.protocol.names import check_group, check_topic


class FilterProgram(NamedTuple):
    """The filter program of a group for a topic. ``version`` counts its changes."""

    name: ProgramName
    version: int
    content: bytes


class PutFilter(TableCommand, frozen=True, tag="put_filter"):
    """Set the filter program of a group for a topic. The same program again changes nothing."""

    group: str
    topic: str
    program: str
    content: bytes

    def check(self) -> None:
        check_group(self.group)
        check_topic(self.topic)
        check_range("size of the program", len(self.content), 1, PROGRAM_BYTES_MAX)
        try:
            name = parse_program_name(self.program)
        except ProgramInvalid as error:
            raise CommandInvalid(str(error)) from error
        if not name.is_of(self.content):
            raise CommandInvalid(f"the SHA-256 of the program differs from its name {self.program[:80]}")


class FilterPrograms(StateTable):
    """The replicated filter programs of consumer groups.

    Attributes:
        table: by (group, topic).
        nbytes: size of all programs.
    """

    COMMANDS: tuple[type[TableCommand], ...] = (PutFilter,)

    def __init__(self, limits: StateLimits) -> None:
        self._limits = limits
        self.table: dict[tuple[str, str], FilterProgram] = {}
        self.nbytes = 0

    def has_room(self, group: str, topic: str, content: bytes) -> bool:
        """Whether the limits allow a group to set this program for a topic."""
        there = self.table.get((group, topic))
        count = len(self.table) + (there is None)
        nbytes = self.nbytes + len(content) - (0 if there is None else len(there.content))
        return count <= self._limits.filters_max and nbytes <= self._limits.filter_bytes_max

    def apply(self, command: TableCommand) -> None:
        assert isinstance(command, PutFilter), type(command).__name__
        key, name = (command.group, command.topic), parse_program_name(command.program)
        there = self.table.get(key)
        if (there is not None and there.name == name) or not self.has_room(*key, command.content):
            return
        self._remove(key)
        self.table[key] = FilterProgram(name, 1 if there is None else there.version + 1, command.content)
        self.nbytes += len(command.content)

    def capture(self) -> Callable[[], object]:
        rows = [(*key, each.name.text, each.version, each.content) for key, each in self.table.items()]
        return lambda: sorted(rows) or None

    def restore(self, state: object) -> None:
        table: dict[tuple[str, str], FilterProgram] = {}
        for group, topic, text, version, content in msgspec.convert(
            state or [], list[tuple[str, str, str, int, bytes]]
        ):
            try:
                name = parse_program_name(text)
            except ProgramInvalid as error:
                raise SnapshotDamaged(f"the filter of {group} for {topic}: {error}") from error
            if version < 1 or not name.is_of(content):
                raise SnapshotDamaged(
                    f"the filter of {group} for {topic} has a program whose SHA-256 differs from its name"
                )
            table[group, topic] = FilterProgram(name, version, content)
        self.table = table
        self.nbytes = sum(len(each.content) for each in table.values())

    def check_invariants(self) -> None:
        """Assert that the table is consistent between two commands; for tests."""
        nbytes = sum(len(each.content) for each in self.table.values())
        assert nbytes == self.nbytes, f"programs have {nbytes} bytes, and {self.nbytes} are counted"
        assert len(self.table) <= self._limits.filters_max, f"{len(self.table)} filter programs"
        assert nbytes <= self._limits.filter_bytes_max, f"{nbytes} bytes of filter programs"

    def topic_deleted(self, topic: str) -> None:
        for key in [key for key in self.table if key[1] == topic]:
            self._remove(key)

    def group_deleted(self, group: str) -> None:
        for key in [key for key in self.table if key[0] == group]:
            self._remove(key)

    def _remove(self, key: tuple[str, str]) -> None:
        if (there := self.table.pop(key, None)) is not None:
            self.nbytes -= len(there.content)
