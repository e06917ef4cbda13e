"""Bodies about users and their policies, as in RocketMQ's ACL 2.0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from mq.protocol.json_body import Body, decode_as
from mq.protocol.wire_names import wire

SUPER, NORMAL = "Super", "Normal"
USER_TYPES: Final = (SUPER, NORMAL)
"""Users who may do everything, and those restricted by policies."""
ENABLED, DISABLED = "enable", "disable"
USER_STATES: Final = (ENABLED, DISABLED)
SUBJECT_PREFIX: Final = "User:"


class UserInfo(Body, rename=wire(name="username"), omit_defaults=True):
    """A user. ``password`` is only sent to brokers. None leaves a field unchanged."""

    name: str = ""
    password: str | None = msgspec.field(default=None)
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.name!r}, {self.user_type!r}, {self.user_status!r})"  # never the password


class PolicyEntryInfo(Body, rename=wire(source_ips="sourceIps")):
    """Allows or denies actions on a resource, from all addresses or from these."""

    resource: str = ""
    actions: Sequence[str] = ()
    source_ips: Sequence[str] | None = None
    decision: str = ""


class PolicyInfo(Body, rename=wire(), omit_defaults=True):
    """Policies of one type: Custom, or Default, which applies if no custom one matches."""

    policy_type: str | None = None
    entries: Sequence[PolicyEntryInfo] = ()


class AclInfo(Body, rename=wire(), omit_defaults=True):
    """The policies of a user; ``subject`` is ``User:`` and its name."""

    subject: str = ""
    policies: Sequence[PolicyInfo] = ()


def encode_all(values: Sequence[Body]) -> bytes:
    """A list, for answers to 3005 and 3010."""
    return b"[" + b",".join(value.encode() for value in values) + b"]"


def decode_users(body: bytes | memoryview) -> list[UserInfo]:
    """The answer to 3005. Raises BodyError."""
    return decode_as(list[UserInfo], body) if len(body) else []


def decode_acls(body: bytes | memoryview) -> list[AclInfo]:
    """The answer to 3010. Raises BodyError."""
    return decode_as(list[AclInfo], body) if len(body) else []
