"""Checks who may change the state of a name server: brokers that register, and administrators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq.accounts import Account, Accounts
from mq.protocol.access.expected_fields import unexpected_part
from mq.protocol.access.signing import ACCESS_KEY, LENGTHS, SIGNED_CODE, header_fields
from mq.protocol.incoming.headers import UnknownRequest
from mq.protocol.requests.namesrv import (
    AddWritePermOfBroker,
    DeleteKvConfig,
    DeleteTopicInNamesrv,
    PutKvConfig,
    RegisterTopicInNamesrv,
    UpdateNamesrvConfig,
    WipeWritePermOfBroker,
)
from mq.protocol.requests.registration import BrokerHeartbeat, QueryDataVersion, RegisterBroker, UnregisterBroker
from mq.protocol.wire.request import Request

OF_BROKERS: Final[frozenset[type[Request]]] = frozenset(
    {RegisterBroker, UnregisterBroker, BrokerHeartbeat, QueryDataVersion}
)
"""The requests of brokers that put their addresses into routes, or keep them there."""
OF_ADMINISTRATORS: Final[frozenset[type[Request]]] = frozenset(
    {
        AddWritePermOfBroker,
        DeleteKvConfig,
        DeleteTopicInNamesrv,
        PutKvConfig,
        RegisterTopicInNamesrv,
        UpdateNamesrvConfig,
        WipeWritePermOfBroker,
    }
)


def denial(
    accounts: Accounts,
    request: Request | UnknownRequest,
    serialization: int,
    header: memoryview,
    body: memoryview,
    address: str,
) -> str | None:
    """Return why a request is denied, as text for its sender; None if it is allowed.

    Queries are allowed to everybody: clients look up routes before they know whether a broker wants a signature.
    ``address`` is the sender's address, without its port.
    """
    kind = type(request)
    if isinstance(request, UnknownRequest) or kind not in OF_BROKERS | OF_ADMINISTRATORS:
        return None
    if accounts.white_listed(address):
        return None
    fields = header_fields(serialization, bytes(header))
    access_key = fields.get(ACCESS_KEY, "")
    if not access_key:
        remedy = "set namesrv_credentials" if kind in OF_BROKERS else "give an access key and a secret key"
        return f"request code {request.code} to this name server must be signed: {remedy}"
    account = accounts.by_key.get(access_key)
    if account is None:
        return f"unknown access key {access_key[:64]}"
    if not account.white_listed(address) and (reason := _not_signed(account, request, fields, bytes(body))):
        return reason
    if account.admin or (account.broker and kind in OF_BROKERS):
        return None
    if kind in OF_BROKERS:
        return f"request code {request.code} is for brokers and administrators, and {access_key} is neither"
    return f"request code {request.code} is for administrators, and {access_key} is not one"


def _not_signed(account: Account, request: Request, fields: Mapping[str, str], body: bytes) -> str | None:
    if not account.signer.is_signed(fields, body):
        return f"the signature does not match the access key {account.access_key}: check the secret key"
    if fields.get(SIGNED_CODE, str(request.code)) != str(request.code):
        return f"the request was signed for code {fields[SIGNED_CODE][:16]}, not {request.code}"
    if LENGTHS not in fields and (more := unexpected_part(request, fields, body, None)):
        return f"the request has {more}, which no client sends: it may reuse a recorded signature"
    return None
