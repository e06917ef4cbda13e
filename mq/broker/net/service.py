"""The base class of all features of the broker, `Service`, and a `Route` for each request that it handles.

A new feature is a class that derives from `Service` and a line in `mq.broker.services`. The broker knows its services
only as a list: it collects their routes, counters, timers and tasks once, and calls a method here for each event.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from mq.broker.base.periodic_task import Periodic
from mq.broker.net.call import Handler
from mq.broker.net.connection import ClientConnection
from mq.broker.settings import BrokerSettings
from raftlog import ConfState, RoleChange
from raftlog.log_numbers import LogIndex

Task = Callable[[], Awaitable[None]]
"""Runs until it is cancelled."""


class Route(NamedTuple):
    """The handler of one type of request.

    With ``leader_only``, a replica that does not lead forwards the request to the leader. ``repeatable`` says that it
    may be forwarded again when the outcome at a leader is unknown: executing it twice has the same effect, whatever
    happened in between. Changes by operators are not repeatable: a repetition could undo a later change of another
    operator.
    """

    request_type: type[Any]
    handler: Handler
    leader_only: bool = False
    repeatable: bool = False


class Service:
    """A feature of the broker. All methods are called on the event loop, and must return quickly."""

    def routes(self) -> Iterable[Route]:
        """The requests that this service handles; called once, when the broker is built."""
        return ()

    def lead(self) -> None:
        """Called when this replica leads and has applied everything that earlier leaders committed."""

    def resign(self) -> None:
        """Called when this replica stops leading: discard the leader's state."""

    def connection_closed(self, connection: ClientConnection) -> None:
        """Called when a client connection was closed."""

    def role_changed(self, change: RoleChange) -> None:
        """Called when the role, term or leader of this replica changed; after `resign` if it stopped leading."""

    def members_changed(self, index: LogIndex, conf: ConfState, connections: Iterable[ClientConnection]) -> None:
        """Called when entry ``index``, which changes the group's members, was applied; with all open connections."""

    def replicas_changed(self) -> None:
        """Called while a log entry is applied that has changed the client address of a replica."""

    def topic_changed(self, topic: str) -> None:
        """Called while a log entry is applied that has created, changed or deleted a topic."""

    def consumer_group_changed(self, group: str) -> None:
        """Called while a log entry is applied that has created, changed or deleted a consumer group."""

    def topic_deleted(self, topic: str) -> None:
        """Called on each replica while a log entry is applied that has deleted a topic."""

    def on_new_messages(self, topic: str, queue_id: int, entries: bytes | bytearray) -> None:
        """Called when a queue in `QueueStore.watched` got messages: ``entries`` of the consume queue, 20 bytes each."""

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Called when an operator changed settings of the running broker: use these from now on."""

    def end_turn(self) -> None:
        """Called at the end of a turn of the event loop; batched writes can be appended now."""

    def periodic(self) -> Iterable[Periodic]:
        """Periodic actions; called once."""
        return ()

    def tasks(self) -> Iterable[Task]:
        """The tasks of this service, which run until the broker stops; called once."""
        return ()

    def has_unsent_replies(self) -> bool:
        """Whether requests of clients still wait here for their answers; a broker that stops waits for them a while."""
        return False

    def check_invariants(self) -> None:
        """Assert the invariants of this service between two turns; for tests, it may look at its whole state."""

    def on_stop(self) -> None:
        """Called when the broker stops and has closed the connections of its clients: close all others."""

    def counters(self) -> Mapping[str, int]:
        """Figures for operators, by name; all replicas of a group have the same names.

        Figures of several services with one name are added.
        """
        return {}
