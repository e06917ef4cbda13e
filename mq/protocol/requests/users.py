"""Requests about users and their policies, RocketMQ's ACL 2.0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import wire
from mq.protocol.wire.json_body import Body, decode_as
from mq.protocol.wire.request import Ext, Request

SUPER, NORMAL = "Super", "Normal"
USER_TYPES: Final = (SUPER, NORMAL)
"""Users who may do everything, and those restricted by policies."""
ENABLED, DISABLED = "enable", "disable"
USER_STATES: Final = (ENABLED, DISABLED)
SUBJECT_PREFIX: Final = "User:"


class UserExt(Ext, rename=wire(name="username")):
    """The header of a request about one user."""

    name: str


class CreateUser(Request, tag=int(Code.AUTH_CREATE_USER)):
    """Request code 3001: create a user with the password and type in the body."""

    ext: UserExt = msgspec.field(name="extFields")


class UpdateUser(Request, tag=int(Code.AUTH_UPDATE_USER)):
    """Request code 3002: change a user. Fields that the body lacks are not changed."""

    ext: UserExt = msgspec.field(name="extFields")


class DeleteUser(Request, tag=int(Code.AUTH_DELETE_USER)):
    """Request code 3003: delete a user and its policies."""

    ext: UserExt = msgspec.field(name="extFields")


class GetUser(Request, tag=int(Code.AUTH_GET_USER)):
    """Request code 3004: return a user without its password."""

    ext: UserExt = msgspec.field(name="extFields")


class ListUsersExt(Ext, rename=wire(name_part="filter")):
    """The header of request code 3005. Returned are users with ``name_part`` in their names."""

    name_part: str = ""


class ListUsers(Request, tag=int(Code.AUTH_LIST_USER)):
    """Request code 3005: return users without their passwords."""

    ext: ListUsersExt = msgspec.field(name="extFields", default_factory=ListUsersExt)


def encode_all(values: Sequence[Body]) -> bytes:
    """Encode the users or policies in the response to request code 3005 or 3010."""
    return b"[" + b",".join(value.encode() for value in values) + b"]"


class UserInfo(Body, rename=wire(name="username"), omit_defaults=True):
    """A user. ``password`` is only sent to brokers. A field that is None stays as it is in a change."""

    name: str = ""
    password: str | None = msgspec.field(default=None)
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.name!r}, {self.user_type!r}, {self.user_status!r})"  # never the password


def decode_users(body: bytes | memoryview) -> list[UserInfo]:
    """Decode the response to request code 3005. Raises BodyError."""
    return decode_as(list[UserInfo], body) if len(body) else []


class SubjectExt(Ext, rename=wire()):
    """The header of a request about a user's policies; the subject is ``User:`` and the name."""

    subject: str


class CreateAcl(Request, tag=int(Code.AUTH_CREATE_ACL)):
    """Request code 3006: add the policies in the body to a user; each replaces a policy for the same resource."""

    ext: SubjectExt = msgspec.field(name="extFields")


class UpdateAcl(Request, tag=int(Code.AUTH_UPDATE_ACL)):
    """Request code 3007: add or replace policies of a user."""

    ext: SubjectExt = msgspec.field(name="extFields")


class DeleteAclExt(SubjectExt, rename=wire()):
    """The header of 3008: the policies for ``resource``, or all of the user's; ``policy_type`` is Custom or Default."""

    policy_type: str = ""
    resource: str = ""


class DeleteAcl(Request, tag=int(Code.AUTH_DELETE_ACL)):
    """Request code 3008: delete policies of a user."""

    ext: DeleteAclExt = msgspec.field(name="extFields")


class GetAcl(Request, tag=int(Code.AUTH_GET_ACL)):
    """Request code 3009: return the policies of one user."""

    ext: SubjectExt = msgspec.field(name="extFields")


class ListAclsExt(Ext, rename=wire()):
    """The header of 3010: returned are policies with one text in ``User:NAME`` and the other in the resource."""

    subject_filter: str = ""
    resource_filter: str = ""


class ListAcls(Request, tag=int(Code.AUTH_LIST_ACL)):
    """Request code 3010: return the policies of users."""

    ext: ListAclsExt = msgspec.field(name="extFields", default_factory=ListAclsExt)


class PolicyEntryInfo(Body, rename=wire(source_ips="sourceIps")):
    """An entry of a policy: allows or denies actions on a resource, from all addresses or from ``source_ips``."""

    resource: str = ""
    actions: Sequence[str] = ()
    source_ips: Sequence[str] | None = None
    decision: str = ""


class PolicyInfo(Body, rename=wire(), omit_defaults=True):
    """A user's policies of one type: Custom, or Default, which applies if no custom policy matches."""

    policy_type: str | None = None
    entries: Sequence[PolicyEntryInfo] = ()


class AclInfo(Body, rename=wire(), omit_defaults=True):
    """The policies of a user. ``subject`` is ``User:`` and the user's name."""

    subject: str = ""
    policies: Sequence[PolicyInfo] = ()


def decode_acls(body: bytes | memoryview) -> list[AclInfo]:
    """Decode the response to request code 3010. Raises BodyError."""
    return decode_as(list[AclInfo], body) if len(body) else []
