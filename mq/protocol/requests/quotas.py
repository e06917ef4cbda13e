"""Our own requests 9024 and 9025: quotas of users, and the users that are throttled."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests.quota_attributes import Quota
from mq.protocol.requests.users import UserExt
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.request import Request


class PutUserQuota(Request, tag=int(Code.PUT_USER_QUOTA)):
    """Request code 9024, our own: replace a user's quota by the `UserQuota` in the body, or remove it."""

    ext: UserExt = msgspec.field(name="extFields")


class ListQuotas(Request, tag=int(Code.LIST_QUOTAS)):
    """Request code 9025, our own: return the quotas of users, and the users that this replica throttles."""


class UserQuota(Body, kw_only=True):
    """The quota of a user; 0 means no limit."""

    quota: Quota


class NamedQuota(msgspec.Struct, frozen=True, kw_only=True):
    """A user's quota. ``connections`` counts the user's connections to this replica now."""

    user: str
    quota: Quota
    connections: int = 0


class Throttled(msgspec.Struct, frozen=True, kw_only=True):
    """A user or topic that this replica throttled, and how often.

    Attributes:
        kind: user or topic.
        direction: produce, consume, connections or stored.
        delayed, refused: the numbers of such requests since the replica started.
        seconds_ago: seconds since the last such request.
    """

    kind: str
    name: str
    direction: str
    delayed: int
    refused: int
    seconds_ago: float


class QuotaList(Body, kw_only=True):
    """The quotas of a broker group's users, and the users and topics that this replica throttles."""

    users: Sequence[NamedQuota]
    throttled: Sequence[Throttled] = ()
