"""Parses ``plain_acl.yml``, RocketMQ's file with the accounts of a broker. Pure, apart from the YAML parser.

Unknown content is refused, so that a misspelled permission cannot silently become another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from mq.protocol.access.signing import KEY_LENGTH_MIN

PERMISSIONS: Final = frozenset({"PUB", "SUB", "FILTER"})
"""FILTER is not RocketMQ's: it lets a consumer group upload its filter program."""
GLOBAL_ADDRESSES: Final = "globalWhiteRemoteAddresses"
_DENY: Final = "DENY"
_FILE_FIELDS: Final = frozenset((GLOBAL_ADDRESSES, "accounts", "dataVersion"))
_ACCOUNT_FIELDS: Final = frozenset(
    (
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "proxy",
        "broker",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
    )
)


class AclFileInvalid(Exception):
    """The accounts file is invalid; the message says where and why."""


Permissions = frozenset[str]
"""A subset of PERMISSIONS."""


@dataclass(frozen=True, slots=True)
class PlainAccount:
    """One account in the file. ``white_remote_address`` is the address pattern as the file has it."""

    access_key: str
    secret_key: str = field(repr=False)
    white_remote_address: str
    admin: bool
    proxy: bool
    """Not RocketMQ's: may make requests for users who have signed their calls, and do nothing of its own."""
    broker: bool
    """Not RocketMQ's: may register brokers at name servers, and do nothing else."""
    default_topic: Permissions
    default_group: Permissions
    topics: dict[str, Permissions]
    groups: dict[str, Permissions]


@dataclass(frozen=True, slots=True)
class PlainAcl:
    """The content of the file: accounts with distinct access keys, and address patterns that need no account."""

    accounts: list[PlainAccount]
    white_remote_addresses: list[str]


def decode_plain_acl(text: str) -> PlainAcl:
    """Parse the text of a ``plain_acl.yml``. Raises AclFileInvalid."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        # Without its cause, and without the line itself: it may contain a secret key, and this is logged.
        raise AclFileInvalid(f"this is not YAML{_error_text(error)}") from None
    data = _mapping("the file", data if data is not None else {}, _FILE_FIELDS)
    accounts: dict[str, PlainAccount] = {}
    for number, row in enumerate(_list("accounts", data.get("accounts")), 1):
        account = _account(f"account {number}", row)
        if account.access_key in accounts:
            raise AclFileInvalid(f"account {number}: the access key {account.access_key} is given twice")
        accounts[account.access_key] = account
    addresses = _list(GLOBAL_ADDRESSES, data.get(GLOBAL_ADDRESSES))
    return PlainAcl([*accounts.values()], [*map(str, addresses)])


def _error_text(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), str(getattr(error, "problem", None) or "")
    where = "" if mark is None else f": line {mark.line + 1}, column {mark.column + 1}"
    return where if not problem or "'" in problem else f"{where}: {problem}"  # in quotes it repeats what is there


def _account(where: str, row: Any) -> PlainAccount:
    row = _mapping(where, row, _ACCOUNT_FIELDS)
    access_key, secret_key = (str(row.get(name) or "") for name in ("accessKey", "secretKey"))
    for name, key in (("accessKey", access_key), ("secretKey", secret_key)):
        if len(key) < KEY_LENGTH_MIN:
            raise AclFileInvalid(f"{where}: {name} has {len(key)} characters, at least {KEY_LENGTH_MIN} are needed")
    where = f"account {access_key}"
    admin, proxy, broker = (_switch(where, name, row) for name in ("admin", "proxy", "broker"))
    for role, is_one in (("proxy", proxy), ("broker", broker)):
        if is_one and (more := sorted(row.keys() - {"accessKey", "secretKey", "whiteRemoteAddress", role})):
            raise AclFileInvalid(f"{where}: a {role} cannot have permissions of its own: remove {', '.join(more)}")
    return PlainAccount(
        access_key=access_key,
        secret_key=secret_key,
        white_remote_address=str(row.get("whiteRemoteAddress") or ""),
        admin=admin,
        proxy=proxy,
        broker=broker,
        default_topic=_permission(where, "defaultTopicPerm", row.get("defaultTopicPerm", _DENY)),
        default_group=_permission(where, "defaultGroupPerm", row.get("defaultGroupPerm", _DENY)),
        topics=_permissions(where, "topicPerms", row.get("topicPerms")),
        groups=_permissions(where, "groupPerms", row.get("groupPerms")),
    )


def _switch(where: str, name: str, row: Mapping[str, Any]) -> bool:
    value = row.get(name, False)
    if not isinstance(value, bool):
        raise AclFileInvalid(f"{where}: {name}: expected true or false, got {value!r}")
    return value


def _permissions(where: str, name: str, rows: Any) -> dict[str, Permissions]:
    permissions: dict[str, Permissions] = {}
    for row in _list(f"{where}: {name}", rows):
        resource, equals, words = str(row).partition("=")
        if not equals or not resource.strip():
            raise AclFileInvalid(f"{where}: {name}: expected NAME=PERMISSION, got {row!r}")
        permissions[resource.strip()] = _permission(where, name, words)
    return permissions


def _permission(where: str, name: str, words: Any) -> Permissions:
    parts = [part.strip() for part in str(words).split("|")]
    if parts == [_DENY]:
        return frozenset()
    if any(part not in PERMISSIONS for part in parts):
        raise AclFileInvalid(f"{where}: {name} has {words!r}; allowed: DENY, or PUB, SUB and FILTER joined by |")
    return frozenset(parts)


def _mapping(where: str, value: Any, keys: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise AclFileInvalid(f"{where} is {type(value).__name__}, not a mapping of names to values")
    if unknown := sorted(map(str, value.keys() - keys)):
        raise AclFileInvalid(f"{where} has {', '.join(unknown)}; allowed: {', '.join(sorted(keys))}")
    return value


def _list(where: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise AclFileInvalid(f"{where} is {type(value).__name__}, not a list")
    return value
