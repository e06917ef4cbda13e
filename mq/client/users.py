"""Manages the users, policies and quotas of broker groups: request codes 3001 to 3010, 9024, 9025, to all leaders."""

from __future__ import annotations

from collections.abc import Sequence

from mq.client.admin import Admin
from mq.client.net.replies import read_body
from mq.protocol.codes import RequestCode
from mq.protocol.requests.quota_attributes import Quota
from mq.protocol.requests.quotas import QuotaList, UserQuota
from mq.protocol.requests.users import (
    SUBJECT_PREFIX,
    AclInfo,
    DeleteAclExt,
    ListAclsExt,
    ListUsersExt,
    PolicyEntryInfo,
    PolicyInfo,
    SubjectExt,
    UserExt,
    UserInfo,
    decode_acls,
    decode_users,
)
from mq.protocol.wire.request import Ext


class UserAdmin(Admin):
    """An `Admin` that also manages users.

    Each broker group has its own users. Changes are applied to one group after the other, of one cluster or of all; if
    one refuses, earlier ones have applied them already.
    """

    async def create_user(self, user: UserInfo, *, cluster: str | None = None) -> None:
        """Create a user with the password in ``user``. Raises BrokerError if the name exists."""
        await self._send_to_leaders(RequestCode.AUTH_CREATE_USER, UserExt(name=user.name), user.encode(), cluster)

    async def update_user(self, user: UserInfo, *, cluster: str | None = None) -> None:
        """Change those fields of a user that are not None. Raises BrokerError if the user does not exist."""
        await self._send_to_leaders(RequestCode.AUTH_UPDATE_USER, UserExt(name=user.name), user.encode(), cluster)

    async def delete_user(self, name: str, *, cluster: str | None = None) -> None:
        """Delete a user and its policies. Does nothing if there is none."""
        await self._send_to_leaders(RequestCode.AUTH_DELETE_USER, UserExt(name=name), b"", cluster)

    async def users(self, name_part: str = "") -> dict[str, list[UserInfo]]:
        """Return the users whose names contain ``name_part``, by broker group, without passwords."""
        users_by_group: dict[str, list[UserInfo]] = {}
        for group, address in (await self._leaders(None, None)).items():
            _, body = await self._open_core().call(
                address, RequestCode.AUTH_LIST_USER, ListUsersExt(name_part=name_part).fields()
            )
            users_by_group[group] = read_body(decode_users, body)
        return users_by_group

    async def put_policies(
        self, name: str, entries: Sequence[PolicyEntryInfo], *, default: bool = False, cluster: str | None = None
    ) -> None:
        """Add policies to a user, or replace those for the same resources. ``default`` ones apply if no other does."""
        subject = f"{SUBJECT_PREFIX}{name}"
        policy = PolicyInfo(policy_type="Default" if default else "Custom", entries=entries)
        acl = AclInfo(subject=subject, policies=[policy])
        await self._send_to_leaders(RequestCode.AUTH_UPDATE_ACL, SubjectExt(subject=subject), acl.encode(), cluster)

    async def delete_policies(self, name: str, resource: str = "", *, cluster: str | None = None) -> None:
        """Delete a user's policies for a resource, or all of them. Does nothing if there are none."""
        ext = DeleteAclExt(subject=f"{SUBJECT_PREFIX}{name}", resource=resource)
        await self._send_to_leaders(RequestCode.AUTH_DELETE_ACL, ext, b"", cluster)

    async def policies(self, name_part: str = "", resource_part: str = "") -> dict[str, list[AclInfo]]:
        """Return the policies whose user and resource contain these parts, by broker group."""
        ext = ListAclsExt(subject_filter=name_part, resource_filter=resource_part)
        policies_by_group: dict[str, list[AclInfo]] = {}
        for group, address in (await self._leaders(None, None)).items():
            _, body = await self._open_core().call(address, RequestCode.AUTH_LIST_ACL, ext.fields())
            policies_by_group[group] = read_body(decode_acls, body)
        return policies_by_group

    async def put_quota(self, name: str, quota: Quota, *, cluster: str | None = None) -> None:
        """Replace the quota of a user, or for ``*`` of every user without one. A quota without limits is removed.

        Raises BrokerError if the brokers do not authenticate clients, or not all of a group are upgraded.
        """
        await self._send_to_leaders(
            RequestCode.PUT_USER_QUOTA, UserExt(name=name), UserQuota(quota=quota).encode(), cluster
        )

    async def quotas(self) -> dict[str, QuotaList]:
        """Return the quotas of users, and the users that leaders throttle now, by broker group."""
        quotas_by_group: dict[str, QuotaList] = {}
        for group, address in (await self._leaders(None, None)).items():
            quotas_by_group[group] = await self.quotas_at(address)
        return quotas_by_group

    async def quotas_at(self, address: str) -> QuotaList:
        """Return the quotas of users, and the users that the broker at `address` throttles now."""
        _, body = await self._open_core().call(address, RequestCode.LIST_QUOTAS, {})
        return read_body(QuotaList.decode, body)

    async def _send_to_leaders(self, code: int, ext: Ext, body: bytes, cluster: str | None) -> None:
        for address in (await self._leaders(cluster, None)).values():
            await self._open_core().call(address, code, ext.fields(), body=body)
