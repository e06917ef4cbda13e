"""Removes members from consumer groups for a while: request codes 9026 and 9027.

Each replica keeps its own list, in memory: clients are connected to all replicas, and an operator's tool asks all of
them. Nothing is replicated: who is a member is known to no log either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.client_limits import ClientLimits
from mq.broker.net.clients import Notice
from mq.broker.net.connection import ClientConnection
from mq.broker.net.errors import RequestRefused
from mq.broker.net.kept_out import KEPT_OUT_MAX
from mq.broker.net.service import Route, Service
from mq.protocol.codes import ResponseCode
from mq.protocol.names import NameRefused, check_group
from mq.protocol.requests.removed_members import (
    KEPT_OUT_MS_MAX,
    KeptOutList,
    KeptOutMember,
    ListKeptOut,
    MemberRemoved,
    RemoveMember,
)

WORDS_LENGTH_MAX: Final = 300
_ID_LENGTH_MAX: Final = max(ClientLimits().client_id_length_max, ClientLimits().proxied_client_id_length_max)
_EXPIRE_SECONDS: Final = 1.0

EndWaiting = Callable[[str, str, Sequence[ClientConnection]], None]
"""Ends what a removed member waits for, or holds: group, client id, its connections."""


class RemovedMembers(Service):
    """The handlers.

    Args:
        notify: tells the members of groups that these have changed.
        send_notice: tells these clients to look who is in a group.
        end_waiting: by feature.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        notify: Callable[[Iterable[Notice[ClientConnection]]], None],
        send_notice: Callable[[str, Iterable[ClientConnection]], None],
        end_waiting: Sequence[EndWaiting],
    ) -> None:
        self._clients = context.clients
        self._kept_out = context.clients.kept_out
        self._notify = notify
        self._send_notice = send_notice
        self._end_waiting = end_waiting
        self._clock = context.clock
        self._log = context.log

    def routes(self) -> Iterator[Route]:
        """The requests that this service handles; see `Service`."""
        yield Route(RemoveMember, self.handle_remove)
        yield Route(ListKeptOut, self.handle_list)

    def periodic(self) -> Iterator[Periodic]:
        """Periodic actions; see `Service`."""
        yield Periodic(_EXPIRE_SECONDS, self.expire, lambda: now_if(bool(self._kept_out.table)))

    def handle_remove(self, call: Call[RemoveMember]) -> bytes:
        """Request code 9026. Raises RequestRefused."""
        ext = call.request.ext
        self._check(ext.group, ext.client_id, ext.keep_out_ms, ext.reason, ext.operator)
        if ext.keep_out_ms == 0:
            known = self._kept_out.release(ext.group, ext.client_id)
            if known is not None:
                self._log.info("member_let_in", consumer_group=ext.group, client_id=ext.client_id, by=ext.operator)
                self._send_notice(ext.group, known.connections)
            return call.response(ext=MemberRemoved(was_member=known is not None).fields())
        connections, notices, was_member = self._clients.remove_member(
            ext.group,
            ext.client_id,
            until=self._clock() + ext.keep_out_ms / 1000,
            reason=ext.reason,
            operator=ext.operator,
        )
        self._log.info(
            "member_removed",
            consumer_group=ext.group,
            client_id=ext.client_id,
            by=ext.operator,
            seconds=ext.keep_out_ms / 1000,
            reason=ext.reason,
            was_member=was_member,
        )
        for end in self._end_waiting:
            end(ext.group, ext.client_id, connections)
        # The removed one first: it gives its queues up before others ask for them.
        self._send_notice(ext.group, connections)
        self._notify(notices)
        return call.response(ext=MemberRemoved(was_member=was_member).fields())

    def handle_list(self, call: Call[ListKeptOut]) -> bytes:
        """Request code 9027."""
        now = self._clock()
        found = [
            KeptOutMember(
                client_id=kept.client_id,
                seconds=round(kept.until - now, 1),
                reason=kept.reason,
                operator=kept.operator,
                connected=kept.is_there(now),
            )
            for kept in self._kept_out.of_group(call.request.ext.consumer_group, now)
        ]
        return call.response(body=KeptOutList(members=found).encode())

    def expire(self) -> None:
        """Let those in whose time is over; called by a timer."""
        for kept in self._kept_out.expired(self._clock()):
            self._log.info("member_may_return", consumer_group=kept.group, client_id=kept.client_id)
            self._send_notice(kept.group, kept.connections)

    def _check(self, group: str, client_id: str, keep_out_ms: int, reason: str, operator: str) -> None:
        try:
            check_group(group)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if not 1 <= len(client_id) <= _ID_LENGTH_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"client id of {len(client_id)} characters; allowed: 1 to {_ID_LENGTH_MAX}",
            )
        if not 0 <= keep_out_ms <= KEPT_OUT_MS_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"keepOutMs is {keep_out_ms}; allowed: 0 to {KEPT_OUT_MS_MAX}"
            )
        if (length := max(len(reason), len(operator))) > WORDS_LENGTH_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"a reason or an operator of {length} characters; maximum: {WORDS_LENGTH_MAX}",
            )
        if keep_out_ms and not self._kept_out.has_room(group, client_id):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"{KEPT_OUT_MAX} clients are kept out of groups, which is the maximum"
            )
