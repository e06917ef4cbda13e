"""Checks each client request against accounts and users, and reloads the accounts when their file changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from mq.accounts import Account, Accounts, AccountsFile, Permission
from mq.broker.access.needs import (
    ANY_PERMISSION,
    OF_PROXIES,
    ROWS,
    ROWS_THROUGH_PROXIES,
    THROUGH_PROXIES,
    Role,
    Row,
    is_of_consumers,
)
from mq.broker.access.policies import UserAccount, rules_of
from mq.broker.access.sealing import SealBroken, unseal
from mq.broker.base.rate_limited_log import Log
from mq.broker.state.user_quotas import UserQuotas
from mq.broker.state.users import User, Users
from mq.protocol.access.acting import NOT_AUTHENTICATED, ActsFor, acts_for
from mq.protocol.access.address_patterns import compile_pattern
from mq.protocol.access.expected_fields import unexpected_part
from mq.protocol.access.signing import ACCESS_KEY, LENGTHS, SIGNED_CODE, Signer, header_fields
from mq.protocol.errors import HeaderError
from mq.protocol.incoming.chunks import Incoming, headers_of
from mq.protocol.incoming.headers import Response, UnknownRequest
from mq.protocol.names import RETRY_PREFIX
from mq.protocol.requests.accounts import AccountList
from mq.protocol.requests.quota_attributes import EVERYBODY

_NOWHERE: Final = compile_pattern("")
_NOT_REQUESTS: Final = (Response, HeaderError)
_ANYBODY: Final = Role.ANYBODY


class AccessDenied(msgspec.Struct, frozen=True):
    """Stands in for a request that is denied. The client gets ``remark``."""

    code: int
    opaque: int
    flag: int
    remark: str


class OfLimitedUser(msgspec.Struct, frozen=True):
    """Wraps a request of a user that has a quota."""

    user: str
    request: Any


class AccessControl:
    """Decides which requests clients may make, by the accounts in a file and by users.

    Args:
        path: a file in the format of RocketMQ's ``plain_acl.yml``.
        broker_name: the name of this broker's group, which clients put into requests; None for any.

    Raises AclFileInvalid, OSError.
    """

    def __init__(self, path: Path, log: Log, broker_name: str | None = None) -> None:
        self._file = AccountsFile(path, log)
        self._broker_name = broker_name
        self._log = log
        self._users, self._quotas = Users(), UserQuotas()
        self._secrets: Callable[[], Sequence[bytes]] = tuple
        self._merged_of: tuple[object, ...] = ()
        self._by_key: Mapping[str, Account] = {}
        self._without_quotas: Mapping[str, Account] = {}
        self._of_users: dict[str, tuple[User, UserAccount]] = {}
        self._unusable: dict[str, str] = {}

    def is_in_file(self, name: str) -> bool:
        """Return whether the file has an account of this name, which then overrides a user of the same name."""
        return name in self._file.accounts.by_key

    @property
    def account_list(self) -> AccountList:
        """The accounts of the file, without their secret keys, for display."""
        return self._file.accounts.account_list

    def add_users(self, users: Users, secrets: Callable[[], Sequence[bytes]], quotas: UserQuotas) -> None:
        """Set the users besides the accounts of the file, the quotas of both, and the valid group secrets
        (``secrets``).
        """
        self._users, self._secrets, self._quotas = users, secrets, quotas
        self._merged_of = ()

    def refresh(self) -> None:
        """Reload the file if it has changed. A timer calls this."""
        self._file.refresh()

    def authorize(self, address: str, requests: Iterable[Incoming], chunk: bytes) -> list[tuple[Any, bytes, int]]:
        """Decode the requests at the start of ``chunk``, with `AccessDenied` in place of each denied request and
        `OfLimitedUser` around each request of a user with a quota.

        ``address`` is the client's address, without its port.
        """
        if self._file.accounts.white_listed(address):
            return list(requests)
        by_key, row_of = self._current(), ROWS.get
        quotas = self._quotas.table
        needs_no_signature: dict[str, bool] = {}  # by access key: whether this address needs no signature
        result: list[tuple[Any, bytes, int]] = []
        for each, header in zip(requests, headers_of(chunk), strict=False):
            request, body, serialization = each
            row = row_of(type(request))
            if row is not _ANYBODY and not isinstance(request, _NOT_REQUESTS):
                fields = header_fields(serialization, header)
                account = by_key.get(access_key := fields.get(ACCESS_KEY, ""))
                reason: str | None
                if account is None:
                    reason = self._unusable.get(access_key) or _unknown(access_key)
                else:
                    if access_key not in needs_no_signature:
                        needs_no_signature[access_key] = account.white_listed(address)
                    is_believed = needs_no_signature[access_key]
                    if not is_believed and not account.signer.is_signed(fields, body):
                        reason = f"the signature does not match the access key {access_key}: check the secret key"
                    elif fields.get(SIGNED_CODE, str(request.code)) != str(request.code):
                        reason = f"the request was signed for code {fields[SIGNED_CODE][:16]}, not {request.code}"
                    elif not is_believed and LENGTHS not in fields and (more := self._more(request, fields, body)):
                        reason = f"the request has {more}, which no client sends: it may reuse a recorded signature"
                    elif (user := acts_for(fields)) is not None:
                        reason = self._lacking_user(account, user, row, request, body)
                    elif account.proxy:
                        reason = _proxy_denial_reason(account, request, body)
                    elif account.broker:
                        reason = f"{account.access_key} is an account for registrations at name servers"
                    else:
                        reason = None if account.admin else _denial_reason(account, row, request, body, address)
                if reason is not None:
                    denial = AccessDenied(request.code, request.opaque, request.flag, reason)
                    result.append((denial, body, serialization))
                    continue
                if quotas:
                    name = access_key if account is None or (user := acts_for(fields)) is None else user.user
                    if name in quotas or EVERYBODY in quotas:
                        result.append((OfLimitedUser(name, request), body, serialization))
                        continue
            result.append(each)
        return result

    def _lacking_user(self, proxy: Account, target: ActsFor, row: Row | None, request: Any, body: bytes) -> str | None:
        """Return the reason why a proxy may not make a request for a user; None if it may."""
        if not proxy.proxy:
            return f"{proxy.access_key} makes a request for {target.user[:64]}, and is not an account of a proxy"
        user = self._current().get(target.user)
        if user is None:
            return NOT_AUTHENTICATED + (self._unusable.get(target.user) or _unknown(target.user))
        if user.proxy or not target.is_signed(user.signer):
            return f"{NOT_AUTHENTICATED}the signature does not match the access key {target.user}: check the secret key"
        if type(request) not in THROUGH_PROXIES:
            return f"request code {request.code} is not allowed through a proxy"
        if user.admin:
            return None
        reason = _denial_reason(user, ROWS_THROUGH_PROXIES.get(type(request), row), request, body, target.address)
        if reason and type(request) in ANY_PERMISSION:
            any_is_enough = any(user.may(request.ext.topic, each, target.address) for each in Permission)
            return None if any_is_enough else f"{user.access_key} has no permission for {request.ext.topic[:200]}"
        return reason

    def _more(self, request: Any, fields: Mapping[str, str], body: bytes) -> str | None:
        if isinstance(request, UnknownRequest):
            return None  # refused later
        return unexpected_part(request, fields, body, self._broker_name)

    def keys_of_sends(self, address: str) -> Callable[[bytes, bytes], bytes | None] | None:
        """Return a function that finds the key for a send's signature, valid in this turn only; None: sends need none.

        It takes the access key and the topic, in ASCII, which must not be a retry topic. It returns the key of the
        HMAC, 64 bytes, if the account may send to the topic. None means that `authorize` has to check the request,
        which also says why it is denied, and whether a quota holds for its user.
        """
        if self._file.accounts.white_listed(address):
            return None
        self._current()
        by_key = self._without_quotas

        def key_of(access_key: bytes, topic: bytes) -> bytes | None:
            account = by_key.get(access_key.decode())
            if account is None or not account.may(topic.decode(), Permission.PUB, address):
                return None
            return account.signer.key

        return key_of

    def _current(self) -> Mapping[str, Account]:
        """Return the accounts and users by access key, and merge them again if they have changed."""
        accounts, secrets = self._file.accounts, self._secrets()
        if self._merged_of != (accounts, self._users.version, self._quotas.version, secrets):
            self._merge(accounts, secrets)
        return self._by_key

    def _merge(self, accounts: Accounts, secrets: Sequence[bytes]) -> None:
        """Merge users and accounts. An account of the file overrides a user of the same name."""
        by_key: dict[str, Account] = {}
        earlier, self._of_users, self._unusable = self._of_users, {}, {}
        for name, user in self._users.table.items():
            if name in earlier and earlier[name][0] is user:
                self._of_users[name] = earlier[name]
                by_key[name] = earlier[name][1]
                continue
            if not user.enabled:
                self._unusable[name] = f"the user {name} is disabled"
                continue
            try:
                signer = Signer(unseal(secrets, name, user.sealed))
                rules = rules_of(user.policies)
            except (SealBroken, ValueError) as error:
                self._unusable[name] = f"this broker cannot use the user {name}: set its password again"
                self._log.error("user_unusable", user=name, reason=str(error))
                continue
            account = UserAccount(access_key=name, signer=signer, white_listed=_NOWHERE, admin=user.admin, rules=rules)
            self._of_users[name] = user, account
            by_key[name] = account
        in_all, parts = len(self._users.table), (len(self._of_users), len(self._unusable))
        assert sum(parts) == in_all, f"{parts[0]} users may connect and {parts[1]} may not, of {in_all}"
        self._by_key = by_key | dict(accounts.by_key)
        self._without_quotas = self._by_key
        if quotas := self._quotas.table:
            free = {} if EVERYBODY in quotas else self._by_key
            self._without_quotas = {name: account for name, account in free.items() if name not in quotas}
        quota_evaders = self._without_quotas.keys() & self._quotas.table.keys()
        assert not quota_evaders, f"{len(quota_evaders)} of {len(self._by_key)} users would send without their quotas"
        self._merged_of = accounts, self._users.version, self._quotas.version, secrets


def _unknown(access_key: str) -> str:
    if not access_key:
        return "requests to this broker must be signed: give the client an access key and a secret key"
    return f"unknown access key {access_key[:64]}"


def _denial_reason(account: Account, row: Row | None, request: Any, body: bytes, address: str) -> str | None:
    """Return the text that names the missing permission for a request; None if the request is allowed."""
    if callable(row):
        for topic, permission in row(request, body):
            if not account.may(topic, permission, address):
                group = topic.removeprefix(RETRY_PREFIX)
                resource = topic if group == topic else f"consumer group {group}"
                return f"{account.access_key} has no permission {permission.name} for {resource[:200]}"
        return None
    if row is None and not isinstance(request, UnknownRequest):
        return f"request code {request.code} is not allowed"
    if row is Role.ADMIN:
        return f"request code {request.code} is for administrators, and {account.access_key} is not one"
    return None  # any account is enough; unknown codes are refused later


def _proxy_denial_reason(account: Account, request: Any, body: bytes) -> str | None:
    """Return the reason why a proxy may not make a request for no user; None if it may."""
    if type(request) in OF_PROXIES and not is_of_consumers(request, body):
        return None
    return f"{account.access_key} is an account of a proxy, and the request names no user"
