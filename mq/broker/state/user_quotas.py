"""Quotas of users: how much they may send and consume, and how many connections they may have."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mq.broker.state.table import CommandInvalid, StateTable, TableCommand, check_range
from mq.broker.state.users import check_user_name
from mq.protocol.requests.quota_attributes import EVERYBODY, NO_QUOTA, QUOTA_MAX, Quota

USER_QUOTAS_MAX = 1000


class PutUserQuota(TableCommand, frozen=True, tag="put_user_quota"):
    """Set the quota of a user, or of all users without one. A quota without limits removes it.

    From format level 8 on.
    """

    name: str
    quota: Quota

    def check(self) -> None:
        if self.name != EVERYBODY:
            check_user_name(self.name)
        for field in Quota.__struct_fields__:
            check_range(f"quota {field}", getattr(self.quota, field), 0, QUOTA_MAX)
        if self.quota.stored_bytes:
            raise CommandInvalid("stored_bytes is a quota of topics: brokers do not know who has sent what they store")


class UserQuotas(StateTable):
    """The replicated quotas of users.

    Attributes:
        table: by name; only quotas that limit something.
        version: changes with each change, on this replica only.
    """

    COMMANDS: tuple[type[TableCommand], ...] = (PutUserQuota,)

    def __init__(self) -> None:
        self.table: dict[str, Quota] = {}
        self.version = 0

    def get(self, name: str) -> Quota:
        """Return the quota of a user: its own one, or that of all users without one."""
        quota = self.table.get(name)
        return self.table.get(EVERYBODY, NO_QUOTA) if quota is None else quota

    def has_room(self, name: str) -> bool:
        """Whether the limits allow a quota for this name."""
        return name in self.table or len(self.table) < USER_QUOTAS_MAX

    def apply(self, command: TableCommand) -> None:
        assert isinstance(command, PutUserQuota), type(command).__name__
        self.version += 1
        if command.quota == NO_QUOTA:
            self.table.pop(command.name, None)
        elif self.has_room(command.name):
            self.table[command.name] = command.quota

    def capture(self) -> Callable[[], object]:
        rows = sorted(self.table.items())
        return lambda: [(name, msgspec.to_builtins(quota)) for name, quota in rows] or None

    def restore(self, state: object) -> None:
        self.table = dict(msgspec.convert(state or [], list[tuple[str, Quota]]))
        self.version += 1

    def check_invariants(self) -> None:
        """Assert that the table is consistent between two commands; for tests."""
        assert len(self.table) <= USER_QUOTAS_MAX, f"{len(self.table)} quotas; maximum: {USER_QUOTAS_MAX}"
        assert NO_QUOTA not in self.table.values(), f"quotas that limit nothing: {self.table}"
