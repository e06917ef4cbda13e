"""Removes members from consumer groups for a while.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.removed_members.remove("billing", "10.0.0.7@4711", keep_out=600, reason="it hangs")

What a removed client does is in `docs/operations.md`: it gives its queues up, and joins again when the time is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mq.client.errors import BrokerError, ClientError
from mq.client.net.client_core import ClientCore
from mq.client.net.replies import fields_of, read_body
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.names import check_group
from mq.protocol.requests.clients import ConsumerGroupExt
from mq.protocol.requests.namesrv import ClusterInfo
from mq.protocol.requests.removed_members import (
    KEPT_OUT_MS_MAX,
    KeptOutList,
    KeptOutMember,
    MemberRemoved,
    RemoveMemberExt,
)

KEEP_OUT_SECONDS_MAX = KEPT_OUT_MS_MAX / 1000


class RemovedMemberCalls(Protocol):
    """The methods of `Admin` that `RemovedMembers` calls."""

    def _open_core(self) -> ClientCore: ...

    async def _leaders(self, cluster: str | None, broker: str | None) -> dict[str, str]: ...

    async def cluster_info(self) -> ClusterInfo: ...


@dataclass(frozen=True, slots=True)
class Removal:
    """The answers of the replicas to a removal.

    Attributes:
        was_member: one of them knew the client as a member, or kept it out already.
        unreached: replicas that did not answer, and why; their leader tells them (below format level 8 it does not, and
            the client may come back when one of them leads).
    """

    was_member: bool
    unreached: Mapping[str, str]


class RemovedMembers:
    """Removes members from consumer groups: `Admin.removed_members`. Its methods raise what those of `Admin` do."""

    def __init__(self, admin: RemovedMemberCalls) -> None:
        self._admin = admin

    async def remove(
        self, group: str, client_id: str, *, keep_out: float = 300.0, reason: str = "", operator: str = ""
    ) -> Removal:
        """Remove a client from a group, and refuse it for `keep_out` seconds, more than 0 and at most a week.

        The other members get its queues at once; a client that does not exist is kept out, too. The client's other
        groups continue. `reason` and `operator` are for the logs of the client and of the brokers. Raises ValueError,
        NameRefused, NoRoute, and BrokerError if a leader refuses, as one that does not know this request; some replicas
        may have removed it then.
        """
        if not 0.001 <= keep_out <= KEEP_OUT_SECONDS_MAX:
            raise ValueError(f"keep_out is {keep_out} seconds; allowed: 0.001 to {KEEP_OUT_SECONDS_MAX:.0f}")
        return await self._send_to_leaders(group, client_id, round(keep_out * 1000), reason, operator)

    async def let_in(self, group: str, client_id: str, *, operator: str = "") -> Removal:
        """Admit a removed client again before its time is over; `was_member` says whether it was removed."""
        return await self._send_to_leaders(group, client_id, 0, "", operator)

    async def kept_out(self, group: str) -> list[KeptOutMember]:
        """List the removed clients of a group, by client id. Empty if the brokers do not know this request.

        Raises NoRoute.
        """
        members: dict[str, KeptOutMember] = {}
        ext = ConsumerGroupExt(consumer_group=group).fields()
        for address in (await self._admin._leaders(None, None)).values():
            try:
                _, body = await self._admin._open_core().call(address, RequestCode.LIST_KEPT_OUT, ext)
            except BrokerError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    continue
                raise
            members |= {each.client_id: each for each in read_body(KeptOutList.decode, body).members}
        return [members[client_id] for client_id in sorted(members)]

    async def _send_to_leaders(
        self, group: str, client_id: str, keep_out_ms: int, reason: str, operator: str
    ) -> Removal:
        check_group(group)
        leaders = set((await self._admin._leaders(None, None)).values())
        ext = RemoveMemberExt(
            group=group,
            client_id=client_id,
            keep_out_ms=keep_out_ms,
            reason=props.safe_value(reason),
            operator=props.safe_value(operator),
        ).fields()
        brokers = (await self._admin.cluster_info()).brokers
        # Leaders last: their members divide the queues anew when all other brokers keep the client out already.
        replicas = {address for each in brokers.values() for address in each.broker_addrs.values()}
        was_member = False
        failures: dict[str, str] = {}
        for address in sorted(replicas | leaders, key=lambda each: (each in leaders, each)):
            try:
                response, _ = await self._admin._open_core().call(address, RequestCode.REMOVE_MEMBER, ext)
            except ClientError as error:
                if address in leaders:
                    raise
                failures[address] = str(error)
                continue
            was_member |= fields_of(MemberRemoved, response).was_member
        return Removal(was_member, failures)
