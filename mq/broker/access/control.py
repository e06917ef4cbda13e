"""Checks each request of a client against the accounts, and reads the accounts anew when their file changes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from mq.broker.access.accounts import Account, Accounts, AclFileInvalid, parse_accounts
from mq.broker.access.needs import ROWS, Role, Row
from mq.protocol.chunks import Incoming, headers_of
from mq.protocol.errors import HeaderError
from mq.protocol.headers import Response, UnknownRequest
from mq.protocol.signing import ACCESS_KEY, header_fields

Log = structlog.stdlib.BoundLogger


_NOT_REQUESTS: Final = (Response, HeaderError)


class AccessDenied(msgspec.Struct, frozen=True):
    """Stands for a request that its sender may not make; ``remark`` is for the sender."""

    code: int
    opaque: int
    flag: int
    remark: str


class AccessControl:
    """Who may do what on this broker.

    Args:
        path: of a file as RocketMQ's ``plain_acl.yml``.

    Raises AclFileInvalid, OSError.
    """

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._log = log
        self._stamp = _stamp(path)
        self._accounts: Accounts = parse_accounts(path.read_text())
        self._fault = ""

    @property
    def account_count(self) -> int:
        """How many accounts there are."""
        return len(self._accounts.by_key)

    def refresh(self) -> None:
        """Read the file anew if it has changed. If it cannot be used, the accounts stay as they are, and the log says
        why, once for each state of the file. Called by a timer.
        """
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._accounts = parse_accounts(self._path.read_text())
        except (AclFileInvalid, OSError, UnicodeDecodeError) as error:
            if str(error) != self._fault:
                self._fault = str(error)
                self._log.error("acl_file_unusable", path=str(self._path), error=str(error), kept=self.account_count)
            return
        self._fault = ""
        self._log.info("acl_file_read", path=str(self._path), accounts=self.account_count)

    def checked(self, address: str, incoming: Iterable[Incoming], chunk: bytes) -> list[tuple[Any, bytes, int]]:
        """The requests that ``chunk`` begins with, with an `AccessDenied` in place of each that may not be made.

        ``address`` is that of the client, without its port.
        """
        accounts = self._accounts
        if accounts.white_listed(address):
            return list(incoming)
        believed: dict[str, bool] = {}  # by access key: from this address without a signature
        result: list[tuple[Any, bytes, int]] = []
        for each, header in zip(incoming, headers_of(chunk), strict=False):
            request, body, serialization = each
            row = ROWS.get(type(request))
            if row is not Role.ANYBODY and not isinstance(request, _NOT_REQUESTS):
                fields = header_fields(serialization, header)
                account = accounts.by_key.get(access_key := fields.get(ACCESS_KEY, ""))
                reason: str | None
                if account is None:
                    reason = _unknown(access_key)
                else:
                    if access_key not in believed:
                        believed[access_key] = account.white_listed(address)
                    if not believed[access_key] and not account.signer.is_signed(fields, body):
                        reason = f"the signature does not fit the access key {access_key}: is the secret key right?"
                    else:
                        reason = None if account.admin else _lacking(account, row, request, body)
                if reason is not None:
                    denied = AccessDenied(request.code, request.opaque, request.flag, reason)
                    result.append((denied, body, serialization))
                    continue
            result.append(each)
        return result


def _unknown(access_key: str) -> str:
    if not access_key:
        return "this broker wants requests to be signed: give the client an access key and a secret key"
    return f"there is no account with the access key {access_key[:64]}"


def _lacking(account: Account, row: Row | None, request: Any, body: bytes) -> str | None:
    """What an account may not do of a request; None if it may do all of it."""
    if row is None and not isinstance(request, UnknownRequest):
        return f"request code {request.code} is for nobody"
    if row is None or row is Role.ACCOUNT:
        return None  # an unknown code is refused anyway
    if row is Role.ADMIN:
        return f"request code {request.code} is for administrators, and {account.access_key} is not one"
    assert not isinstance(row, Role)
    for topic, permission in row(request, body):
        if not account.may(topic, permission):
            return f"{account.access_key} has no permission {permission.name} for {topic[:200]}"
    return None


def _stamp(path: Path) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino
