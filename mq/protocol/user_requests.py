"""Typed requests, seventh part: users and policies, RocketMQ's ACL 2.0. See `mq.protocol.requests`."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.requests import Ext, Request
from mq.protocol.wire_names import wire


class UserExt(Ext, rename=wire(name="username")):
    """One user."""

    name: str


class CreateUser(Request, tag=int(Code.AUTH_CREATE_USER)):
    """3001: the body has the password and the type of the user."""

    ext: UserExt = msgspec.field(name="extFields")


class UpdateUser(Request, tag=int(Code.AUTH_UPDATE_USER)):
    """3002: fields missing in the body are not changed."""

    ext: UserExt = msgspec.field(name="extFields")


class DeleteUser(Request, tag=int(Code.AUTH_DELETE_USER)):
    """3003: also deletes its policies."""

    ext: UserExt = msgspec.field(name="extFields")


class GetUser(Request, tag=int(Code.AUTH_GET_USER)):
    """3004: without its password."""

    ext: UserExt = msgspec.field(name="extFields")


class ListUsersExt(Ext, rename=wire(name_part="filter")):
    """Users with ``name_part`` in their names."""

    name_part: str = ""


class ListUsers(Request, tag=int(Code.AUTH_LIST_USER)):
    """3005: without their passwords."""

    ext: ListUsersExt = msgspec.field(name="extFields", default_factory=ListUsersExt)


class SubjectExt(Ext, rename=wire()):
    """The owner of the policies: ``User:`` and a name."""

    subject: str


class CreateAcl(Request, tag=int(Code.AUTH_CREATE_ACL)):
    """3006: the policies in the body are added to those of the user; one for the same resource is replaced."""

    ext: SubjectExt = msgspec.field(name="extFields")


class UpdateAcl(Request, tag=int(Code.AUTH_UPDATE_ACL)):
    """3007: the same."""

    ext: SubjectExt = msgspec.field(name="extFields")


class DeleteAclExt(SubjectExt, rename=wire()):
    """Policies for ``resource``, or all of them; ``policy_type`` Custom or Default."""

    policy_type: str = ""
    resource: str = ""


class DeleteAcl(Request, tag=int(Code.AUTH_DELETE_ACL)):
    """3008."""

    ext: DeleteAclExt = msgspec.field(name="extFields")


class GetAcl(Request, tag=int(Code.AUTH_GET_ACL)):
    """3009: the policies of one user."""

    ext: SubjectExt = msgspec.field(name="extFields")


class ListAclsExt(Ext, rename=wire()):
    """Policies of users with one text in ``User:NAME`` and the other one in the resource."""

    subject_filter: str = ""
    resource_filter: str = ""


class ListAcls(Request, tag=int(Code.AUTH_LIST_ACL)):
    """3010."""

    ext: ListAclsExt = msgspec.field(name="extFields", default_factory=ListAclsExt)
