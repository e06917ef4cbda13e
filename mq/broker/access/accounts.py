"""Accounts as RocketMQ's ``plain_acl.yml`` has them: pure, but for YAML.

Whatever the file says that means nothing here is refused: a misspelled permission must not become another one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from mq.broker.access.addresses import Matches, compiled
from mq.protocol.names import RETRY_PREFIX, retry_topic
from mq.protocol.signing import KEY_LENGTH_MIN, Signer


class Permission(enum.Enum):
    """What an account may do with a topic, or with a consumer group."""

    PUB = "PUB"
    SUB = "SUB"

    # Looked up for each request: the hash of an Enum is computed in Python, from its name.
    __hash__ = object.__hash__


Permissions = frozenset[Permission]


class AclFileInvalid(Exception):
    """The file with the accounts does not say what it should; where and what is in the message."""


@dataclass(frozen=True, slots=True)
class Account:
    """One account. ``permissions`` are by topic; those of a consumer group are those of its retry topic."""

    access_key: str
    signer: Signer = field(repr=False)
    white_listed: Matches = field(repr=False)
    """From these addresses the account is believed without a signature."""
    admin: bool = False
    default_topic: Permissions = frozenset()
    default_group: Permissions = frozenset()
    permissions: Mapping[str, Permissions] = field(default_factory=dict)

    def may(self, topic: str, wanted: Permission, address: str) -> bool:
        """Whether it may do this with a topic, or with the retry topic of a consumer group, from this address."""
        if self.admin:
            return True
        default = self.default_group if topic.startswith(RETRY_PREFIX) else self.default_topic
        return wanted in self.permissions.get(topic, default)


@dataclass(frozen=True, slots=True)
class Accounts:
    """All accounts, by access key, and the addresses from which everything is allowed."""

    by_key: Mapping[str, Account]
    white_listed: Matches


_ACCOUNT_FIELDS: Final = frozenset(
    (
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
    )
)
_DENY: Final = "DENY"
_FILE_FIELDS: Final = frozenset(("globalWhiteRemoteAddresses", "accounts", "dataVersion"))


def parse_accounts(text: str) -> Accounts:
    """Read the text of a ``plain_acl.yml``. Raises AclFileInvalid."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise AclFileInvalid(f"this is not YAML: {error}") from error
    data = _mapping("the file", data if data is not None else {}, _FILE_FIELDS)
    accounts: dict[str, Account] = {}
    for number, row in enumerate(_list("accounts", data.get("accounts")), 1):
        account = _account(f"account {number}", row)
        if account.access_key in accounts:
            raise AclFileInvalid(f"account {number}: the access key {account.access_key} is given twice")
        accounts[account.access_key] = account
    addresses = _list("globalWhiteRemoteAddresses", data.get("globalWhiteRemoteAddresses"))
    return Accounts(accounts, _addresses("globalWhiteRemoteAddresses", ",".join(map(str, addresses))))


def _account(where: str, row: Any) -> Account:
    row = _mapping(where, row, _ACCOUNT_FIELDS)
    access_key, secret_key = (str(row.get(name) or "") for name in ("accessKey", "secretKey"))
    for name, key in (("accessKey", access_key), ("secretKey", secret_key)):
        if len(key) < KEY_LENGTH_MIN:
            raise AclFileInvalid(f"{where}: {name} has {len(key)} characters, at least {KEY_LENGTH_MIN} are needed")
    where = f"account {access_key}"
    admin = row.get("admin", False)
    if not isinstance(admin, bool):
        raise AclFileInvalid(f"{where}: admin is {admin!r}, not true or false")
    permissions = _permissions(where, "topicPerms", row.get("topicPerms"))
    groups = _permissions(where, "groupPerms", row.get("groupPerms"))
    permissions |= {retry_topic(group): permission for group, permission in groups.items()}
    return Account(
        access_key=access_key,
        signer=Signer(secret_key),
        white_listed=_addresses(where, str(row.get("whiteRemoteAddress") or "")),
        admin=admin,
        default_topic=_permission(where, "defaultTopicPerm", row.get("defaultTopicPerm", "DENY")),
        default_group=_permission(where, "defaultGroupPerm", row.get("defaultGroupPerm", "DENY")),
        permissions=permissions,
    )


def _permissions(where: str, name: str, rows: Any) -> dict[str, Permissions]:
    found: dict[str, Permissions] = {}
    for row in _list(f"{where}: {name}", rows):
        resource, equals, words = str(row).partition("=")
        if not equals or not resource.strip():
            raise AclFileInvalid(f"{where}: {name} has {row!r}, which is not NAME=PERMISSION")
        found[resource.strip()] = _permission(where, name, words)
    return found


def _permission(where: str, name: str, words: Any) -> Permissions:
    parts = [part.strip() for part in str(words).split("|")]
    if parts == [_DENY]:
        return frozenset()
    if any(part not in Permission.__members__ for part in parts):
        raise AclFileInvalid(f"{where}: {name} has {words!r}; allowed: DENY, PUB, SUB and PUB|SUB")
    return frozenset(map(Permission, parts))


def _addresses(where: str, pattern: str) -> Matches:
    try:
        return compiled(pattern)
    except ValueError as error:
        raise AclFileInvalid(f"{where}: {error}") from error


def _mapping(where: str, value: Any, known: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise AclFileInvalid(f"{where} is {type(value).__name__}, not a mapping of names to values")
    if unknown := sorted(map(str, value.keys() - known)):
        raise AclFileInvalid(f"{where} has {', '.join(unknown)}; allowed: {', '.join(sorted(known))}")
    return value


def _list(where: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise AclFileInvalid(f"{where} is {type(value).__name__}, not a list")
    return value
