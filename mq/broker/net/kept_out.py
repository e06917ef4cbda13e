"""Members that an operator has removed from their consumer group, and that stay out of it for a while. Pure.

A client is named by its id, in one group: its other groups go on. The table is in the memory of each replica, and is
made again from the replicated one (`mq.broker.state.kept_out_clients`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic

from mq.broker.net.consumer_group import ConnectionT
from mq.broker.net.errors import RequestRefused
from mq.broker.state.kept_out_clients import KEPT_OUT_MAX
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.removed_members import KeptOutReply

HEARD_SECONDS: Final = 60.0
"""A client without a connection is there if it was heard of since then: it pops again and again."""


@dataclass(slots=True)
class KeptOut(Generic[ConnectionT]):
    """A client that is kept out of a group.

    Attributes:
        until: monotonic seconds.
        reason: the operator's words, for the client's log.
        operator: who removed it.
        connections: those by which it would be a member; it is told there when it may come back.
        heard: when it last asked for messages, or was named by its proxy, in monotonic seconds: one that pops has no
            connection here.
    """

    group: str
    client_id: str
    until: float
    reason: str
    operator: str
    connections: dict[ConnectionT, None] = field(default_factory=dict)
    heard: float = float("-inf")

    def is_there(self, now: float) -> bool:
        """Whether it would be a member at ``now``."""
        return bool(self.connections) or now - self.heard < HEARD_SECONDS

    @property
    def words(self) -> str:
        """Why it gets nothing, for the client."""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.client_id} was removed from consumer group {self.group} by {self.operator or 'an operator'}{why}"


class KeptOutMembers(Generic[ConnectionT]):
    """The clients that are kept out of consumer groups, by group.

    Attributes:
        table: by group and client id; empty in nearly every broker, so that a request costs one look at it.
    """

    def __init__(self) -> None:
        self.table: dict[tuple[str, str], KeptOut[ConnectionT]] = {}
        self._at: dict[ConnectionT, dict[str, KeptOut[ConnectionT]]] = {}

    def has_room(self, group: str, client_id: str) -> bool:
        """Whether one more client may be kept out."""
        return (group, client_id) in self.table or len(self.table) < KEPT_OUT_MAX

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
        """Keep a client out of a group; a second call replaces the first one."""
        assert self.has_room(group, client_id), f"{len(self.table)} clients are kept out"
        known = self.release(group, client_id)
        kept: KeptOut[ConnectionT] = KeptOut(group, client_id, until, reason, operator)
        self.table[group, client_id] = kept
        for connection in [*([] if known is None else known.connections), *connections]:
            self.met(kept, connection)

    def met(self, kept: KeptOut[ConnectionT], connection: ConnectionT) -> None:
        """A client that is kept out said so on this connection that it would be a member."""
        known = self.table.get((kept.group, kept.client_id))
        assert known is kept, (
            f"{kept.client_id} is kept out of {kept.group} no longer: nobody would forget its connection"
        )
        self.renamed(connection, kept.group)
        kept.connections[connection] = None
        self._at.setdefault(connection, {})[kept.group] = kept

    def renamed(self, connection: ConnectionT, group: str) -> None:
        """A connection names another client of a group from now on: what is said of the former one is not for it."""
        known = self._at.get(connection, {}).get(group)
        if known is not None:
            assert connection in known.connections, (
                f"{known.client_id} of {group} is not listed with a connection of it"
            )
            del known.connections[connection]
            self._forget(connection, group)

    def of(self, group: str, client_id: str, now: float) -> KeptOut[ConnectionT] | None:
        """Why a client is kept out of a group at ``now``; None if it is not."""
        kept = self.table.get((group, client_id))
        return kept if kept is not None and now < kept.until else None

    def heard(self, group: str, client_id: str, now: float) -> bool:
        """A client said at ``now`` that it would be a member; returns whether it is kept out."""
        kept = self.of(group, client_id, now)
        if kept is not None:
            kept.heard = now
        return kept is not None

    def at(self, connection: ConnectionT, group: str, now: float) -> KeptOut[ConnectionT] | None:
        """Why the client of a connection is kept out of a group at ``now``; None if it is not."""
        kept = self._at.get(connection, {}).get(group)
        return kept if kept is not None and now < kept.until else None

    def check(self, connection: ConnectionT, group: str, client_id: str | None, now: float) -> None:
        """Raises RequestRefused for a client that is kept out; one without a name is known by its connection."""
        kept = self.at(connection, group, now) if client_id is None else self.of(group, client_id, now)
        if kept is not None:
            kept.heard = now
            raise refusal(kept, now)

    def release(self, group: str, client_id: str) -> KeptOut[ConnectionT] | None:
        """Keep it out no longer; returns what there was."""
        kept = self.table.pop((group, client_id), None)
        if kept is not None:
            for connection in kept.connections:
                self._forget(connection, group)
        return kept

    def expired(self, now: float) -> list[KeptOut[ConnectionT]]:
        """Remove and return the clients whose removal time is over."""
        over = [kept for kept in self.table.values() if kept.until <= now]
        for kept in over:
            self.release(kept.group, kept.client_id)
        return over

    def connection_closed(self, connection: ConnectionT) -> None:
        """The client stays out if it returns on another connection."""
        for kept in self._at.pop(connection, {}).values():
            del kept.connections[connection]

    def of_group(self, group: str, now: float) -> Iterator[KeptOut[ConnectionT]]:
        """The clients that are kept out of a group, by client id."""
        for _, kept in sorted(self.table.items()):
            if kept.group == group and now < kept.until:
                yield kept

    def check_invariants(self) -> None:
        """Assert that both tables say the same; for tests, since it looks at everything."""
        told = {(at, kept.group) for kept in self.table.values() for at in kept.connections}
        listed = {(at, group) for at, groups in self._at.items() for group in groups}
        assert told == listed, f"{len(told)} connections of removed members, {len(listed)} are listed"
        assert len(self.table) <= KEPT_OUT_MAX, f"{len(self.table)} clients are kept out"

    def _forget(self, connection: ConnectionT, group: str) -> None:
        groups = self._at[connection]
        del groups[group]
        if not groups:
            del self._at[connection]


def refusal(kept: KeptOut[ConnectionT], now: float) -> RequestRefused:
    """The answer to a request for messages by a client that was removed from its group; it may try again later."""
    left = f"{kept.words}; it may come back in {kept.until - now:.0f} s"
    return RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, left, ext=reply(kept, now).fields())


def reply(kept: KeptOut[ConnectionT], now: float) -> KeptOutReply:
    """The fields that tell our clients how long they are kept out, and why."""
    return KeptOutReply(kept_out_ms=max(1, round((kept.until - now) * 1000)), reason=kept.words)
