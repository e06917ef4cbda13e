"""What the policies of a user allow: pure.

Custom policies come before default ones. Of those that fit a request, the most specific one decides: one for a whole
name before one for the beginning of it, the longer beginning first, then one for all of a type, then one for
everything; of two that are equal in this, the one that denies. Where none fits, nothing is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from mq.broker.access.accounts import Account, Permission
from mq.broker.access.addresses import Matches, compiled
from mq.broker.state.users import Policy
from mq.protocol.names import RETRY_PREFIX

_ACTIONS: Final = {Permission.PUB: frozenset(("Pub", "All")), Permission.SUB: frozenset(("Sub", "All"))}
_DECIDED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: str
    """Topic or Group; empty for every kind."""
    name: str
    """The whole name, or its beginning; of all of a kind the empty beginning."""
    is_prefix: bool
    actions: frozenset[str]
    matches: Matches | None
    """Addresses of clients; None for all."""
    allow: bool

    def fits(self, kind: str, name: str, actions: frozenset[str], address: str) -> bool:
        if self.kind not in ("", kind) or not self.actions & actions:
            return False
        if not (name.startswith(self.name) if self.is_prefix else name == self.name):
            return False
        return self.matches is None or self.matches(address)


@dataclass(frozen=True, slots=True)
class UserAccount(Account):
    """The account of a user; ``rules`` in the order in which they count."""

    rules: tuple[_Rule, ...] = ()
    decided: dict[tuple[str, Permission], bool] = field(default_factory=dict, compare=False, repr=False)
    """What was asked before, unless it depends on the address."""

    def may(self, topic: str, wanted: Permission, address: str) -> bool:
        """See `Account.may`."""
        if self.admin:
            return True
        known = self.decided.get((topic, wanted))
        if known is not None:
            return known
        kind, name = ("Group", topic.removeprefix(RETRY_PREFIX)) if topic.startswith(RETRY_PREFIX) else ("Topic", topic)
        actions = _ACTIONS[wanted]
        may = next((rule.allow for rule in self.rules if rule.fits(kind, name, actions, address)), False)
        if all(rule.matches is None for rule in self.rules):
            if len(self.decided) >= _DECIDED_MAX:
                self.decided.clear()
            self.decided[topic, wanted] = may
        return may


def rules_of(policies: Iterable[Policy]) -> tuple[_Rule, ...]:
    """Policies in the order in which they count. Raises ValueError for source addresses that are none."""
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


def _rule(policy: Policy) -> _Rule:
    kind, _, name = ("", "", "*") if policy.resource == "*" else policy.resource.partition(":")
    return _Rule(
        kind=kind,
        name=name.removesuffix("*"),
        is_prefix=name.endswith("*"),
        actions=frozenset(policy.actions),
        matches=compiled(",".join(policy.sources)) if policy.sources else None,
        allow=policy.allow,
    )
