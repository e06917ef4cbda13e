"""Tracks members that an operator has removed from their consumer group for a while. Pure.

A client is named by its id, in one group: its other groups are not affected. The table is in the memory of each
replica, and is made again from the replicated one (`mq.broker.state.removed_members`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic

from mq.broker.net.consumer_group import ConnectionT
from mq.broker.net.refusals import RequestRefused
from mq.broker.state.removed_members import REMOVED_MEMBERS_MAX
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.removed_members import KeptOutReply

HEARD_SECONDS: Final = 60.0
"""A client without a connection is a member if it popped within this time: it pops again and again."""


@dataclass(slots=True)
class RemovedMember(Generic[ConnectionT]):
    """A client that was removed from a group and must stay out of it for a while.

    Attributes:
        until: monotonic seconds.
        reason: the operator's words, for the client's log.
        operator: who removed it.
        connections: those by which it would be a member; it is told there when it may come back.
        heard_at: when it last asked for messages, or was named by its proxy, in monotonic seconds: one that pops has no
            connection here.
    """

    group: str
    client_id: str
    until: float
    reason: str
    operator: str
    connections: dict[ConnectionT, None] = field(default_factory=dict)
    heard_at: float = float("-inf")

    def is_there(self, now: float) -> bool:
        """Return whether the client would be a member at ``now`` if it were not removed."""
        return bool(self.connections) or now - self.heard_at < HEARD_SECONDS

    @property
    def words(self) -> str:
        """The text that tells the client why it gets no messages."""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.client_id} was removed from consumer group {self.group} by {self.operator or 'an operator'}{why}"


class RemovedMemberTable(Generic[ConnectionT]):
    """Tracks the clients that were removed from consumer groups.

    Attributes:
        table: by group and client id; empty in nearly every broker, so that a request costs one look at it.
    """

    def __init__(self) -> None:
        self.table: dict[tuple[str, str], RemovedMember[ConnectionT]] = {}
        self._at: dict[ConnectionT, dict[str, RemovedMember[ConnectionT]]] = {}

    def has_room(self, group: str, client_id: str) -> bool:
        """Return whether the table has room for this client, or has it already."""
        return (group, client_id) in self.table or len(self.table) < REMOVED_MEMBERS_MAX

    def keep(
        self,
        group: str,
        client_id: str,
        *,
        until: float,
        reason: str,
        operator: str,
        connections: Collection[ConnectionT],
    ) -> None:
        """Remove a client from a group until the time ``until``. A second call replaces the first."""
        assert self.has_room(group, client_id), f"{len(self.table)} members are removed"
        earlier = self.readmit(group, client_id)
        member: RemovedMember[ConnectionT] = RemovedMember(group, client_id, until, reason, operator)
        self.table[group, client_id] = member
        for connection in [*([] if earlier is None else earlier.connections), *connections]:
            self.add_connection(member, connection)

    def add_connection(self, member: RemovedMember[ConnectionT], connection: ConnectionT) -> None:
        """Record that a removed client asked on this connection to be a member."""
        entry = self.table.get((member.group, member.client_id))
        assert entry is member, (
            f"{member.client_id} was readmitted to {member.group}: nobody would forget its connection"
        )
        self.detach(connection, member.group)
        member.connections[connection] = None
        self._at.setdefault(connection, {})[member.group] = member

    def detach(self, connection: ConnectionT, group: str) -> None:
        """Forget the removed client of a connection, because the connection now has another client of the group."""
        member = self._at.get(connection, {}).get(group)
        if member is not None:
            assert connection in member.connections, (
                f"{member.client_id} of {group} is not listed with a connection of it"
            )
            del member.connections[connection]
            self._forget(connection, group)

    def get(self, group: str, client_id: str, now: float) -> RemovedMember[ConnectionT] | None:
        """Return a client's removal from a group if it is in force at ``now``, else None."""
        member = self.table.get((group, client_id))
        return member if member is not None and now < member.until else None

    def record(self, group: str, client_id: str, now: float) -> bool:
        """Record that a client asked at ``now`` to be a member, and return whether it is removed."""
        member = self.get(group, client_id, now)
        if member is not None:
            member.heard_at = now
        return member is not None

    def at(self, connection: ConnectionT, group: str, now: float) -> RemovedMember[ConnectionT] | None:
        """Return the removal of a connection's client from a group if it is in force at ``now``, else None."""
        member = self._at.get(connection, {}).get(group)
        return member if member is not None and now < member.until else None

    def check(self, connection: ConnectionT, group: str, client_id: str | None, now: float) -> None:
        """Raise RequestRefused for a removed client. Without ``client_id``, the connection identifies it."""
        member = self.at(connection, group, now) if client_id is None else self.get(group, client_id, now)
        if member is not None:
            member.heard_at = now
            raise refusal(member, now)

    def readmit(self, group: str, client_id: str) -> RemovedMember[ConnectionT] | None:
        """Allow a client to be a member again, and return its removal; None if it was not removed."""
        member = self.table.pop((group, client_id), None)
        if member is not None:
            for connection in member.connections:
                self._forget(connection, group)
        return member

    def take_expired(self, now: float) -> list[RemovedMember[ConnectionT]]:
        """Readmit and return the clients whose removal has expired."""
        over = [member for member in self.table.values() if member.until <= now]
        for member in over:
            self.readmit(member.group, member.client_id)
        return over

    def connection_closed(self, connection: ConnectionT) -> None:
        """Forget a closed connection. Its client stays removed, also when it connects again."""
        for member in self._at.pop(connection, {}).values():
            del member.connections[connection]

    def of_group(self, group: str, now: float) -> Iterator[RemovedMember[ConnectionT]]:
        """Yield the removed members of a group, by client id."""
        for _, member in sorted(self.table.items()):
            if member.group == group and now < member.until:
                yield member

    def check_invariants(self) -> None:
        """Assert that both tables have the same members, for tests."""
        pairs = {(at, member.group) for member in self.table.values() for at in member.connections}
        by_connection = {(at, group) for at, groups in self._at.items() for group in groups}
        assert pairs == by_connection, f"{len(pairs)} connections of removed members, {len(by_connection)} are listed"
        assert len(self.table) <= REMOVED_MEMBERS_MAX, f"{len(self.table)} members are removed"

    def _forget(self, connection: ConnectionT, group: str) -> None:
        groups = self._at[connection]
        del groups[group]
        if not groups:
            del self._at[connection]


def refusal(member: RemovedMember[ConnectionT], now: float) -> RequestRefused:
    """Return the error for a request for messages by a removed client. The client may try again later."""
    text = f"{member.words}; it may come back in {member.until - now:.0f} s"
    return RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, text, ext=reply(member, now).fields())


def reply(member: RemovedMember[ConnectionT], now: float) -> KeptOutReply:
    """Return the fields that tell our clients for how long, and why, they are removed."""
    return KeptOutReply(kept_out_ms=max(1, round((member.until - now) * 1000)), reason=member.words)
