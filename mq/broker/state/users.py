"""Users that requests created, with their policies and their sealed secrets.

This module cannot open seals (`mq.broker.access.sealing`): a secret is an opaque text, so equal commands give equal
states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from mq.broker.state.table import CommandInvalid, StateTable, TableCommand, check_range

USERS_MAX = 1000
POLICIES_MAX = 10_000
"""Total policies of all users. Both tables are in memory and in every checkpoint."""
POLICIES_PER_USER_MAX = 200
POLICY_BYTES_MAX = 16 * 1024
"""Resources, actions and addresses in one command."""
ACTIONS: Final = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
"""Actions in RocketMQ's policies. Pub, Sub and All are checked; requests that need another one require an
administrator.
"""

_NAME: Final = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_RESOURCE: Final = re.compile(r"\*|(Topic|Group|Cluster|Namespace):(\*|[A-Za-z0-9_%|.-]{1,200}\*?)")
_SEALED_LENGTH_MAX: Final = 1024
_SOURCES_MAX: Final = 16
_SOURCE_LENGTH_MAX: Final = 64


class Policy(msgspec.Struct, frozen=True, array_like=True):
    """Allows or denies a user actions on a resource.

    ``custom`` policies precede others. ``resource`` is ``*``, or a type and a name, a prefix with a star, or a star, as
    in ``Topic:Orders*``. ``sources`` are client addresses; empty for all.
    """

    custom: bool
    resource: str
    actions: tuple[str, ...]
    sources: tuple[str, ...] = ()
    allow: bool = True


class User(NamedTuple):
    """A user. An ``admin`` may do everything; a user that is not ``enabled`` may do nothing."""

    sealed: str
    admin: bool
    enabled: bool
    policies: tuple[Policy, ...] = ()


class CreateUser(TableCommand, frozen=True, tag="create_user"):
    """Create a user. If it exists, nothing changes."""

    name: str
    sealed: str
    admin: bool
    enabled: bool = True

    def check(self) -> None:
        check_user_name(self.name)
        check_range("length of the sealed secret", len(self.sealed), 1, _SEALED_LENGTH_MAX)


class UpdateUser(TableCommand, frozen=True, tag="update_user"):
    """Change those fields of a user that are not None, if ``instead_of`` is None or its present sealed secret."""

    name: str
    sealed: str | None = None
    admin: bool | None = None
    enabled: bool | None = None
    instead_of: str | None = None

    def check(self) -> None:
        check_user_name(self.name)
        if self.sealed is not None:
            check_range("length of the sealed secret", len(self.sealed), 1, _SEALED_LENGTH_MAX)


class DeleteUser(TableCommand, frozen=True, tag="delete_user"):
    """Delete a user and its policies."""

    name: str

    def check(self) -> None:
        check_user_name(self.name)


class PutPolicies(TableCommand, frozen=True, tag="put_policies"):
    """Add policies to a user. Each replaces the policy for the same resource."""

    name: str
    policies: list[Policy]

    def check(self) -> None:
        check_user_name(self.name)
        check_range("number of policies", len(self.policies), 1, POLICIES_PER_USER_MAX)
        for policy in self.policies:
            check_policy(policy)
        nbytes = sum(
            len(policy.resource) + sum(map(len, policy.actions)) + sum(map(len, policy.sources)) + 16
            for policy in self.policies
        )
        check_range("bytes of policies", nbytes, 1, POLICY_BYTES_MAX)


class DeletePolicies(TableCommand, frozen=True, tag="delete_policies"):
    """Remove policies of a user: for a resource or for all; custom ones, others, or both if ``custom`` is None."""

    name: str
    custom: bool | None = None
    resource: str = ""

    def check(self) -> None:
        check_user_name(self.name)
        if self.resource:
            check_resource(self.resource)


def check_user_name(name: str) -> None:
    """Raise CommandInvalid unless ``name`` has 1 to 64 letters, digits and ``_.@-``."""
    if not _NAME.fullmatch(name):
        raise CommandInvalid(f"user {name[:80]!a}: a name has 1 to 64 letters, digits and _.@-")


def check_resource(resource: str) -> None:
    """Raise CommandInvalid if a resource is invalid."""
    if not _RESOURCE.fullmatch(resource):
        raise CommandInvalid(
            f"resource {resource[:80]!a}: allowed: *, Topic:NAME, Group:NAME, Cluster:NAME and Namespace:NAME, "
            "where NAME may end in *"
        )


def check_policy(policy: Policy) -> None:
    """Raise CommandInvalid if a policy is invalid."""
    check_resource(policy.resource)
    if not policy.actions or not set(policy.actions) <= set(ACTIONS) or len(policy.actions) > len(ACTIONS):
        raise CommandInvalid(f"actions {ascii(policy.actions)[:200]} are unknown; allowed: {', '.join(ACTIONS)}")
    check_range("number of source addresses", len(policy.sources), 0, _SOURCES_MAX)
    for source in policy.sources:
        check_range("length of a source address", len(source), 1, _SOURCE_LENGTH_MAX)


class Users(StateTable):
    """The table of users. Policies also apply to a later topic or group of the same name.

    Attributes:
        table: by name.
        version: changes with each change, on this replica only.
    """

    COMMANDS: tuple[type[TableCommand], ...] = (CreateUser, UpdateUser, DeleteUser, PutPolicies, DeletePolicies)

    def __init__(self) -> None:
        self.table: dict[str, User] = {}
        self.version = 0

    def has_room(self, name: str) -> bool:
        """Whether a user of this name exists, or there is room for it."""
        return name in self.table or len(self.table) < USERS_MAX

    def with_policies(self, name: str, policies: Iterable[Policy]) -> tuple[Policy, ...] | None:
        """Return a user's policies with these added; None if there is no such user, or too many policies."""
        user = self.table.get(name)
        if user is None:
            return None
        by_resource = {(policy.custom, policy.resource): policy for policy in user.policies}
        by_resource |= {(policy.custom, policy.resource): policy for policy in policies}
        others = sum(len(each.policies) for each in self.table.values()) - len(user.policies)
        if len(by_resource) > POLICIES_PER_USER_MAX or others + len(by_resource) > POLICIES_MAX:
            return None
        return tuple(by_resource[key] for key in sorted(by_resource))

    def apply(self, command: TableCommand) -> None:
        self.version += 1
        match command:
            case CreateUser(name=name, sealed=sealed, admin=admin, enabled=enabled):
                if name not in self.table and self.has_room(name):
                    self.table[name] = User(sealed, admin, enabled)
            case UpdateUser(name=name):
                self._update(command)
            case DeleteUser(name=name):
                self.table.pop(name, None)
            case PutPolicies(name=name, policies=policies):
                if (new_policies := self.with_policies(name, policies)) is not None:
                    self.table[name] = self.table[name]._replace(policies=new_policies)
            case DeletePolicies(name=name, custom=custom, resource=resource):
                if (user := self.table.get(name)) is not None:
                    others = [each for each in user.policies if not is_match(each, custom, resource)]
                    self.table[name] = user._replace(policies=tuple(others))
            case _:
                raise AssertionError(type(command).__name__)

    def _update(self, command: UpdateUser) -> None:
        user = self.table.get(command.name)
        if user is None or command.instead_of not in (None, user.sealed):
            return
        fields = {"sealed": command.sealed, "admin": command.admin, "enabled": command.enabled}
        changes: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        self.table[command.name] = user._replace(**changes)

    def capture(self) -> Callable[[], object]:
        rows = sorted((name, *user) for name, user in self.table.items())
        return lambda: msgspec.to_builtins(rows) or None

    def restore(self, state: object) -> None:
        rows: Sequence[_Row] = msgspec.convert(state or [], list[_Row])
        self.table = {name: User(sealed, admin, enabled, policies) for name, sealed, admin, enabled, policies in rows}
        self.version += 1

    def check_invariants(self) -> None:
        """Assert that the table is consistent between two commands; for tests."""
        assert len(self.table) <= USERS_MAX, f"{len(self.table)} users; maximum: {USERS_MAX}"
        policies = sum(len(user.policies) for user in self.table.values())
        assert policies <= POLICIES_MAX, f"{policies} policies of all users; maximum: {POLICIES_MAX}"


_Row = tuple[str, str, bool, bool, tuple[Policy, ...]]


def is_match(policy: Policy, custom: bool | None, resource: str) -> bool:
    """Whether `DeletePolicies` with these values removes the policy."""
    return custom in (None, policy.custom) and resource in ("", policy.resource)
