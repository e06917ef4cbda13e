"""Users of broker groups and their policies. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mq.protocol.requests.users import DISABLED, SUBJECT_PREFIX, SUPER, AclInfo, UserInfo


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user, and the broker groups that have it; ``state`` is "bad" if some lack it or differ."""

    name: str
    kind: str
    enabled: str
    brokers: str
    state: str


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """What a user may do with a resource."""

    user: str
    resource: str
    actions: str
    decision: str
    sources: str
    brokers: str


def user_rows(found: Mapping[str, Sequence[UserInfo]]) -> list[UserRow]:
    """The users by name; each broker group has its own, which should be the same."""
    by_name: dict[str, dict[str, UserInfo]] = {}
    for broker, users in sorted(found.items()):
        for user in users:
            by_name.setdefault(user.name, {})[broker] = user
    rows = []
    for name, brokers in sorted(by_name.items()):
        kinds = {"administrator" if each.user_type == SUPER else "ordinary" for each in brokers.values()}
        enabled = {"no" if each.user_status == DISABLED else "yes" for each in brokers.values()}
        differs = len(brokers) < len(found) or len(kinds) > 1 or len(enabled) > 1
        rows.append(
            UserRow(name, " or ".join(sorted(kinds)), " or ".join(sorted(enabled)), ", ".join(brokers), _state(differs))
        )
    return rows


def without_user(name: str) -> UserRow:
    """A name that has policies, and no user."""
    return UserRow(name, "no such user", "-", "-", _state(True))


def policy_rows(found: Mapping[str, Sequence[AclInfo]]) -> list[PolicyRow]:
    """The policies by user and resource, with the broker groups that have each."""
    brokers_of: dict[tuple[str, str, str, str, str], list[str]] = {}
    for broker, acls in sorted(found.items()):
        for acl in acls:
            for policy in acl.policies:
                for entry in policy.entries:
                    key = (
                        acl.subject.removeprefix(SUBJECT_PREFIX),
                        entry.resource,
                        ", ".join(entry.actions),
                        entry.decision + (" by default" if policy.policy_type == "Default" else ""),
                        ", ".join(entry.source_ips or ()) or "anywhere",
                    )
                    brokers_of.setdefault(key, []).append(broker)
    return [PolicyRow(*key, ", ".join(brokers)) for key, brokers in sorted(brokers_of.items())]


def _state(differs: bool) -> str:
    return "bad" if differs else ""
