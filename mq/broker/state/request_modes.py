"""Operators' choice whether a consumer group pulls or pops the messages of a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from mq.broker.state.table import CommandInvalid, StateTable, TableCommand, check_range
from mq.protocol.names import check_group, check_topic
from mq.protocol.wire.fields import INT32_MAX, INT32_MIN

PULL = "PULL"
POP = "POP"
MODES_MAX = 10_000
"""Maximum pairs of group and topic."""


class RequestMode(NamedTuple):
    """PULL or POP. With POP, members share the queues of ``shared`` further members, or of all if it is 0."""

    mode: str = PULL
    shared: int = 0


class PutRequestMode(TableCommand, frozen=True, tag="put_request_mode"):
    """Set the request mode of a group for a topic."""

    group: str
    topic: str
    mode: str
    shared: int

    def check(self) -> None:
        check_group(self.group)
        check_topic(self.topic)
        if self.mode not in (PULL, POP):
            raise CommandInvalid(f"mode is {self.mode[:40]!r}; allowed: {PULL} and {POP}")
        check_range("shared", self.shared, INT32_MIN, INT32_MAX)


class RequestModes(StateTable):
    """The replicated request modes of groups, by topic.

    Attributes:
        table: by (topic, group); only modes that were set.
    """

    COMMANDS: tuple[type[TableCommand], ...] = (PutRequestMode,)

    def __init__(self) -> None:
        self.table: dict[tuple[str, str], RequestMode] = {}

    def get(self, topic: str, group: str) -> RequestMode:
        """Return the request mode of a group for a topic."""
        return self.table.get((topic, group), RequestMode())

    def has_room(self, topic: str, group: str) -> bool:
        """Whether the limits allow a request mode for this group and topic."""
        return (topic, group) in self.table or len(self.table) < MODES_MAX

    def apply(self, command: TableCommand) -> None:
        assert isinstance(command, PutRequestMode), type(command).__name__
        if self.has_room(command.topic, command.group):
            self.table[command.topic, command.group] = RequestMode(command.mode, command.shared)

    def capture(self) -> Callable[[], object]:
        rows = [(*key, *mode) for key, mode in self.table.items()]
        return lambda: sorted(rows) or None

    def restore(self, state: object) -> None:
        rows = msgspec.convert(state or [], list[tuple[str, str, str, int]])
        self.table = {(topic, group): RequestMode(mode, shared) for topic, group, mode, shared in rows}

    def check_invariants(self) -> None:
        """Assert that the table is consistent between two commands; for tests."""
        assert len(self.table) <= MODES_MAX, f"{len(self.table)} request modes; maximum: {MODES_MAX}"

    def topic_deleted(self, topic: str) -> None:
        self.table = {key: mode for key, mode in self.table.items() if key[0] != topic}

    def group_deleted(self, group: str) -> None:
        self.table = {key: mode for key, mode in self.table.items() if key[1] != group}
