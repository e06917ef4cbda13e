"""Removes members from consumer groups for a while: request codes 9026 and 9027.

Each replica keeps out for itself: clients are connected to all replicas, and an operator's tool asks all of them. The
leader also replicates who is kept out, and until when (from format level 8 on). So a replica that starts, or that the
tool did not reach, has it from there, within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.clients import Notice
from mq.broker.net.connection import ClientConnection
from mq.broker.net.heartbeat_limits import HeartbeatLimits
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.state.format_level import LEVEL_OF_REMOVED_MEMBERS
from mq.broker.state.removed_members import REMOVED_MEMBERS_MAX, RemovedMemberRow, RemoveOrReadmit
from mq.broker.write_path.outcome import Stored, answer_outcome
from mq.broker.write_path.replicate import encode
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
_ID_LENGTH_MAX: Final = max(HeartbeatLimits().client_id_length_max, HeartbeatLimits().proxied_client_id_length_max)
_EXPIRE_SECONDS: Final = 1.0
_END_SECONDS: Final = 0.02
_ENDED_AT_ONCE: Final = 50
_TOLD_SECONDS: Final = 5.0
"""A replica that was told at the same time as the leader keeps the client out for as long, but for less than this."""

EndWaiting = Callable[[str, str, Sequence[ClientConnection]], None]
"""Ends the waiting requests and the locks of a removed member: group, client id, its connections."""


class RemovedMembers(Service):
    """Removes members from consumer groups for a while, readmits them, and lists the removed members.

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
        self._removed_members = context.clients.removed_members
        self._notify = notify
        self._send_notice = send_notice
        self._end_waiting = end_waiting
        self._clock, self._wall_clock_ms = context.clock, context.wall_clock_ms
        self._state, self._level = context.metadata.kept_out, context.metadata.format_level
        self._appender = context.appender
        self._seen_version = -1
        self._rows: dict[tuple[str, str], RemovedMemberRow] = {}
        """The replicated table when this replica last looked at it."""
        self._to_end: dict[tuple[str, str], None] = {}
        """Kept out already; what they wait for is ended in steps, since thousands at once would hold everybody up."""
        self._log = context.log

    def routes(self) -> Iterator[Route]:
        yield Route(RemoveMember, self.handle_remove)
        yield Route(ListKeptOut, self.handle_list)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_EXPIRE_SECONDS, self.follow_and_expire, lambda: now_if(self._has_work()))
        yield Periodic(_END_SECONDS, self.end_some, lambda: now_if(self._to_end))

    def lead(self) -> None:
        """Apply the committed removals before this replica serves messages."""
        self.follow_and_expire()

    def handle_remove(self, call: Call[RemoveMember]) -> bytes | None:
        """Request code 9026: remove a client from a group, or readmit it. Raises RequestRefused."""
        ext = call.request.ext
        self._check(ext.group, ext.client_id, ext.keep_out_ms, ext.reason, ext.operator)
        is_replicated = self._appender.is_open and self._level.level >= LEVEL_OF_REMOVED_MEMBERS
        if is_replicated:
            self._appender.check_room()
        if ext.keep_out_ms == 0:
            was_member = self._readmit(ext.group, ext.client_id, ext.operator)
        else:
            seconds = ext.keep_out_ms / 1000
            was_member = self._remove(ext.group, ext.client_id, seconds, ext.reason, ext.operator)
        response = call.response(ext=MemberRemoved(was_member=was_member).fields())
        if not is_replicated:
            return response
        now_ms = self._wall_clock_ms()
        command = RemoveOrReadmit(
            group=ext.group,
            client_id=ext.client_id,
            until_ms=now_ms + ext.keep_out_ms,
            now_ms=now_ms,
            reason=ext.reason,
            operator=ext.operator,
        )

        def respond(_: Stored) -> bytes:
            return response

        what = "the removal of a member was being stored"
        self._appender.add_command(encode(command), partial(answer_outcome, call, what, respond))
        return None

    def _remove(self, group: str, client_id: str, seconds: float, reason: str, operator: str) -> bool:
        """Keep a client out of a group for ``seconds``. Returns whether it was a member, or was kept out already."""
        connections, notices, was_member = self._clients.remove_member(
            group, client_id, until=self._clock() + seconds, reason=reason, operator=operator
        )
        self._log_removal(group, client_id, seconds, reason, operator, was_member=was_member)
        for end in self._end_waiting:
            end(group, client_id, connections)
        # The removed one first: it gives its queues up before others ask for them.
        self._send_notice(group, connections)
        self._notify(notices)
        return was_member

    def _log_removal(
        self, group: str, client_id: str, seconds: float, reason: str, operator: str, *, was_member: bool
    ) -> None:
        self._log.info(
            "member_removed",
            consumer_group=group,
            client_id=client_id,
            by=operator,
            seconds=round(seconds, 1),
            reason=reason,
            was_member=was_member,
        )

    def _readmit(self, group: str, client_id: str, operator: str) -> bool:
        self._to_end.pop((group, client_id), None)
        member = self._removed_members.readmit(group, client_id)
        if member is not None:
            self._log.info("member_let_in", consumer_group=group, client_id=client_id, by=operator)
            self._send_notice(group, member.connections)
        return member is not None

    def _has_work(self) -> bool:
        return bool(self._removed_members.table) or self._seen_version != self._state.version

    def follow_and_expire(self) -> None:
        """Apply replicated removals, and readmit clients whose removal has expired. A timer calls this."""
        if self._seen_version != self._state.version:
            self._seen_version = self._state.version
            self._follow()
        self.expire()

    def _follow(self) -> None:
        earlier, self._rows = self._rows, dict(self._state.table)
        now_ms = self._wall_clock_ms()
        for key in earlier.keys() - self._rows.keys():
            self._readmit(*key, earlier[key].operator)
        members: dict[str, set[str]] = {}
        for key, row in self._rows.items():
            seconds = (row.until_ms - now_ms) / 1000
            if row == earlier.get(key) or seconds <= 0 or not self._removed_members.has_room(*key):
                continue
            member = self._removed_members.table.get(key)
            if member is not None and abs(member.until - self._clock() - seconds) <= _TOLD_SECONDS:
                continue
            group, client_id = key
            if group not in members:
                client_ids = (client.client_id for _, client in self._clients.proxied_clients.members(group))
                members[group] = {*self._clients.consumer_ids(group), *client_ids}
            if client_id in members[group]:
                self._remove(group, client_id, seconds, row.reason, row.operator)
                continue
            self._removed_members.keep(
                group,
                client_id,
                until=self._clock() + seconds,
                reason=row.reason,
                operator=row.operator,
                connections=(),
            )
            self._to_end[key] = None

    def end_some(self) -> None:
        """Log removals of some clients that were not members, and answer their waiting requests. A timer calls this."""
        for _ in range(min(_ENDED_AT_ONCE, len(self._to_end))):
            group, client_id = key = next(iter(self._to_end))
            del self._to_end[key]
            member = self._removed_members.table.get((group, client_id))
            if member is None:
                continue  # its time is over already
            assert (member.group, member.client_id) == key, f"{member.client_id} of {member.group} is listed as {key}"
            self._log_removal(
                group, client_id, member.until - self._clock(), member.reason, member.operator, was_member=False
            )
            for end in self._end_waiting:
                end(group, client_id, [*member.connections])

    def handle_list(self, call: Call[ListKeptOut]) -> bytes:
        """Request code 9027: list the removed members."""
        now = self._clock()
        rows = [
            KeptOutMember(
                client_id=member.client_id,
                seconds=round(member.until - now, 1),
                reason=member.reason,
                operator=member.operator,
                connected=member.is_there(now),
            )
            for member in self._removed_members.of_group(call.request.ext.consumer_group, now)
        ]
        return call.response(body=KeptOutList(members=rows).encode())

    def expire(self) -> None:
        """Readmit the clients whose removal has expired."""
        for member in self._removed_members.take_expired(self._clock()):
            self._log.info("member_may_return", consumer_group=member.group, client_id=member.client_id)
            self._send_notice(member.group, member.connections)

    def _check(self, group: str, client_id: str, keep_out_ms: int, reason: str, operator: str) -> None:
        try:
            check_group(group)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if not 1 <= len(client_id) <= _ID_LENGTH_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the client id has {len(client_id)} characters; allowed: 1 to {_ID_LENGTH_MAX}",
            )
        if not 0 <= keep_out_ms <= KEPT_OUT_MS_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"keepOutMs is {keep_out_ms}; allowed: 0 to {KEPT_OUT_MS_MAX}"
            )
        if (length := max(len(reason), len(operator))) > WORDS_LENGTH_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the reason or the operator has {length} characters; maximum: {WORDS_LENGTH_MAX}",
            )
        if keep_out_ms and not self._removed_members.has_room(group, client_id):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"{REMOVED_MEMBERS_MAX} clients are kept out of groups already (maximum)"
            )
