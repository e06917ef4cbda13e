"""Our own request 9028, which shows operators the accounts in a broker's ``acl_file``, without secret keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.request import Request


class ListAccounts(Request, tag=int(Code.LIST_ACCOUNTS)):
    """Request code 9028, our own: return the accounts in the file of the replica that is asked."""


class AccountInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One account of the accounts file.

    Attributes:
        addresses: the pattern of addresses that need no signature; empty for none.
        default_topic, default_group: the permissions for topics and groups that ``topics`` and ``groups`` do not name.
    """

    access_key: str
    admin: bool = False
    proxy: bool = False
    broker: bool = False
    addresses: str = ""
    default_topic: Sequence[str] = ()
    default_group: Sequence[str] = ()
    topics: Mapping[str, Sequence[str]] = {}
    groups: Mapping[str, Sequence[str]] = {}


class AccountList(Body, kw_only=True):
    """The accounts file of one replica. A replica without one (``has_file`` False) does not check who sends requests.

    ``addresses`` are the patterns of addresses that may do anything without an account.
    """

    has_file: bool
    accounts: Sequence[AccountInfo] = ()
    addresses: Sequence[str] = ()
