"""Decides by a user's policies which requests the user may make. Pure.

Custom policies precede default ones. Of the matching policies, the most specific one decides: an exact name before a
prefix, a longer prefix before a shorter one, then all names of a type, then everything. Among equally specific
policies, a denial wins. Without a matching policy, the request is denied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from mq.accounts import Account, Permission
from mq.broker.state.users import Policy
from mq.protocol.access.address_patterns import Matches, compile_pattern
from mq.protocol.names import RETRY_PREFIX

_ACTIONS: Final = {
    Permission.PUB: frozenset(("Pub", "All")),
    Permission.SUB: frozenset(("Sub", "All")),
    Permission.FILTER: frozenset(("Update", "All")),
}
_DECIDED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class _PolicyRule:
    kind: str
    """Topic or Group; empty for both."""
    name: str
    """The full name or a prefix; the empty prefix matches all names."""
    is_prefix: bool
    actions: frozenset[str]
    matches: Matches | None
    """Client addresses; None matches all."""
    allow: bool

    def fits(self, kind: str, name: str, actions: frozenset[str], address: str) -> bool:
        if self.kind not in ("", kind) or not self.actions & actions:
            return False
        if not (name.startswith(self.name) if self.is_prefix else name == self.name):
            return False
        return self.matches is None or self.matches(address)


@dataclass(frozen=True, slots=True)
class UserAccount(Account):
    """The account of a user, with its ``rules`` in order of precedence."""

    rules: tuple[_PolicyRule, ...] = ()
    decisions: dict[tuple[str, Permission], bool] = field(default_factory=dict, compare=False, repr=False)
    """Cache of decisions that do not depend on the address."""

    def may(self, topic: str, permission: Permission, address: str) -> bool:
        """Return whether the first policy that fits ``topic`` and ``address`` allows the action; False if none fits."""
        if self.admin:
            return True
        decision = self.decisions.get((topic, permission))
        if decision is not None:
            return decision
        kind, name = ("Group", topic.removeprefix(RETRY_PREFIX)) if topic.startswith(RETRY_PREFIX) else ("Topic", topic)
        actions = _ACTIONS[permission]
        may = next((rule.allow for rule in self.rules if rule.fits(kind, name, actions, address)), False)
        if all(rule.matches is None for rule in self.rules):
            if len(self.decisions) >= _DECIDED_MAX:
                self.decisions.clear()
            self.decisions[topic, permission] = may
            assert len(self.decisions) <= _DECIDED_MAX, f"{len(self.decisions)} decisions; maximum: {_DECIDED_MAX}"
        return may


def rules_of(policies: Iterable[Policy]) -> tuple[_PolicyRule, ...]:
    """Sort policies by precedence. Raises ValueError for an invalid source address."""
    return tuple(map(_rule, sorted(policies, key=_precedence)))


def _precedence(policy: Policy) -> tuple[bool, int, int, bool]:
    resource = policy.resource
    if resource == "*":
        rank = 3
    elif resource.endswith(":*"):
        rank = 2
    else:
        rank = 1 if resource.endswith("*") else 0
    return not policy.custom, rank, -len(resource), policy.allow


def _rule(policy: Policy) -> _PolicyRule:
    kind, _, name = ("", "", "*") if policy.resource == "*" else policy.resource.partition(":")
    return _PolicyRule(
        kind=kind,
        name=name.removesuffix("*"),
        is_prefix=name.endswith("*"),
        actions=frozenset(policy.actions),
        matches=compile_pattern(",".join(policy.sources)) if policy.sources else None,
        allow=policy.allow,
    )
