"""Accounts of RocketMQ's ``plain_acl.yml`` (`mq.protocol.access.plain_acl`): their permissions, and their file.

Brokers and name servers read the same format.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from mq.protocol.access.address_patterns import Matches, compile_pattern
from mq.protocol.access.plain_acl import GLOBAL_ADDRESSES, AclFileInvalid, PlainAccount, decode_plain_acl
from mq.protocol.access.signing import Signer
from mq.protocol.names import RETRY_PREFIX, retry_topic
from mq.protocol.requests.accounts import AccountInfo, AccountList


class Permission(enum.Enum):
    """An action on a topic or consumer group that an account may be allowed."""

    PUB = "PUB"
    SUB = "SUB"
    FILTER = "FILTER"
    """Upload the filter program of a consumer group."""

    # Looked up for each request. The default hash of an Enum is computed in Python from its name, which is slow.
    __hash__ = object.__hash__


Permissions = frozenset[Permission]
Log = structlog.stdlib.BoundLogger


@dataclass(frozen=True, slots=True)
class Account:
    """One account. ``permissions`` are by topic; those of a consumer group are under its retry topic."""

    access_key: str
    signer: Signer = field(repr=False)
    white_listed: Matches = field(repr=False)
    """Requests from these addresses need no signature."""
    admin: bool = False
    proxy: bool = False
    """May make requests for users, see `mq.protocol.access.acting`, and has no permissions of its own."""
    broker: bool = False
    """May register brokers at name servers, and do nothing else."""
    default_topic: Permissions = frozenset()
    default_group: Permissions = frozenset()
    permissions: Mapping[str, Permissions] = field(default_factory=dict)

    def may(self, topic: str, permission: Permission, address: str) -> bool:
        """Whether the account may do this from this address, to a topic, or to the group of a retry topic."""
        if self.admin:
            return True
        default = self.default_group if topic.startswith(RETRY_PREFIX) else self.default_topic
        return permission in self.permissions.get(topic, default)


@dataclass(frozen=True, slots=True)
class Accounts:
    """All accounts by access key, and the addresses that need no account for anything."""

    by_key: Mapping[str, Account]
    white_listed: Matches
    account_list: AccountList
    """The accounts without their secrets, for people."""


class AccountsFile:
    """The accounts in a file, which is read again when it changes.

    Attributes:
        accounts: the accounts in the last usable version of the file.

    Raises AclFileInvalid, OSError, UnicodeDecodeError.
    """

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._log = log
        self._stamp = _stamp(path)
        self._fault = ""
        self.accounts: Accounts = parse_accounts(path.read_text())

    def refresh(self) -> None:
        """Read the file again if it has changed. If it is invalid, keep the old accounts, and log why once per version
        of the file. Called by a timer.
        """
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self.accounts = parse_accounts(self._path.read_text())
        except (AclFileInvalid, OSError, UnicodeDecodeError) as error:
            if str(error) != self._fault:
                self._fault = str(error)
                kept_count = len(self.accounts.by_key)
                self._log.error("acl_file_unusable", path=str(self._path), error=str(error), kept=kept_count)
            return
        self._fault = ""
        self._log.info("acl_file_read", path=str(self._path), accounts=len(self.accounts.by_key))


def parse_accounts(text: str) -> Accounts:
    """Read the text of a ``plain_acl.yml``. Raises AclFileInvalid."""
    acl = decode_plain_acl(text)
    return Accounts(
        {each.access_key: _account(each) for each in acl.accounts},
        _addresses(GLOBAL_ADDRESSES, ",".join(acl.white_remote_addresses)),
        AccountList(has_file=True, accounts=[*map(_account_info, acl.accounts)], addresses=acl.white_remote_addresses),
    )


def _account_info(account: PlainAccount) -> AccountInfo:
    return AccountInfo(
        access_key=account.access_key,
        admin=account.admin,
        proxy=account.proxy,
        broker=account.broker,
        addresses=account.white_remote_address,
        default_topic=sorted(account.default_topic),
        default_group=sorted(account.default_group),
        topics={name: sorted(words) for name, words in account.topics.items()},
        groups={name: sorted(words) for name, words in account.groups.items()},
    )


def _account(account: PlainAccount) -> Account:
    groups = {retry_topic(group): words for group, words in account.groups.items()}
    return Account(
        access_key=account.access_key,
        signer=Signer(account.secret_key),
        white_listed=_addresses(f"account {account.access_key}", account.white_remote_address),
        admin=account.admin,
        proxy=account.proxy,
        broker=account.broker,
        default_topic=_permissions(account.default_topic),
        default_group=_permissions(account.default_group),
        permissions={name: _permissions(words) for name, words in (account.topics | groups).items()},
    )


def _permissions(words: Iterable[str]) -> Permissions:
    return frozenset(map(Permission, words))


def _addresses(where: str, pattern: str) -> Matches:
    try:
        return compile_pattern(pattern)
    except ValueError as error:
        raise AclFileInvalid(f"{where}: {error}") from error


def _stamp(path: Path) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino
