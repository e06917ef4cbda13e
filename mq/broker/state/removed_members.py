"""Clients that an operator removed from a consumer group, and until when they may not join it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from mq.broker.state.table import CommandInvalid, StateTable, TableCommand, check_range
from mq.protocol.names import check_group

REMOVED_MEMBERS_MAX: Final = 10_000
"""Members that are removed at once, in all groups."""
TEXT_LENGTH_MAX: Final = 1024


class RemovedMemberRow(NamedTuple):
    """A removal: its end ``until_ms`` in epoch milliseconds, the operator's ``reason``, and who the ``operator`` is."""

    until_ms: int
    reason: str
    operator: str


class RemoveOrReadmit(TableCommand, frozen=True, tag="keep_out"):
    """Remove a client from a group until ``until_ms``, or readmit it if ``until_ms`` is not after ``now_ms``.

    From format level 8 on.
    """

    group: str
    client_id: str
    until_ms: int
    now_ms: int
    reason: str = ""
    operator: str = ""

    def check(self) -> None:
        check_group(self.group)
        check_range("until_ms", self.until_ms, 0, 2**63 - 1)
        check_range("now_ms", self.now_ms, 0, 2**63 - 1)
        if max(map(len, (self.client_id, self.reason, self.operator))) > TEXT_LENGTH_MAX:
            raise CommandInvalid(f"a client id, a reason or an operator has more than {TEXT_LENGTH_MAX} characters")


class ReplicatedRemovals(StateTable):
    """The replicated table of clients that may not join a consumer group.

    Attributes:
        table: by group and client id. Those whose time is over are removed by the next command.
        version: changes with each change, on this replica only.
    """

    COMMANDS: tuple[type[TableCommand], ...] = (RemoveOrReadmit,)

    def __init__(self) -> None:
        self.table: dict[tuple[str, str], RemovedMemberRow] = {}
        self.version = 0

    def apply(self, command: TableCommand) -> None:
        assert isinstance(command, RemoveOrReadmit), f"{command} removes nobody"
        self.version += 1
        for key in [key for key, row in self.table.items() if row.until_ms <= command.now_ms]:
            del self.table[key]
        key = command.group, command.client_id
        self.table.pop(key, None)
        if command.until_ms > command.now_ms and len(self.table) < REMOVED_MEMBERS_MAX:
            self.table[key] = RemovedMemberRow(command.until_ms, command.reason, command.operator)

    def capture(self) -> Callable[[], object]:
        rows = sorted(self.table.items())
        return lambda: [(*key, *row) for key, row in rows] or None

    def restore(self, state: object) -> None:
        rows = msgspec.convert(state or [], list[tuple[str, str, int, str, str]])
        self.table = {
            (group, client_id): RemovedMemberRow(until_ms, reason, operator)
            for group, client_id, until_ms, reason, operator in rows
        }
        self.version += 1

    def check_invariants(self) -> None:
        """Assert that the table is consistent between two commands; for tests."""
        assert len(self.table) <= REMOVED_MEMBERS_MAX, (
            f"{len(self.table)} clients are kept out; maximum: {REMOVED_MEMBERS_MAX}"
        )

    def group_deleted(self, group: str) -> None:
        for key in [key for key in self.table if key[0] == group]:
            del self.table[key]
            self.version += 1
