"""`Service`, the base class of all features of the broker, and `Route`, which maps a request to its handler.

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
    """Maps one type of request to its handler.

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
    """The base class of the broker's features. The event loop calls all methods, which must return quickly."""

    def routes(self) -> Iterable[Route]:
        """Return the routes of this service. Called once, when the broker is built."""
        return ()

    def lead(self) -> None:
        """Called when this replica leads and has applied everything that earlier leaders committed."""

    def resign(self) -> None:
        """Discard the leader's state. Called when this replica stops leading."""

    def connection_closed(self, connection: ClientConnection) -> None:
        """Called after a client connection was closed."""

    def role_changed(self, change: RoleChange) -> None:
        """Called after this replica's role, term or leader changed; after `resign` if it stopped leading."""

    def members_changed(self, index: LogIndex, conf: ConfState, connections: Iterable[ClientConnection]) -> None:
        """Called after entry ``index``, which changes the group's members, was applied; with all open connections."""

    def replicas_changed(self) -> None:
        """Called when a log entry that is being applied has changed the client address of a replica."""

    def topic_changed(self, topic: str) -> None:
        """Called when a log entry that is being applied has created, changed or deleted a topic."""

    def consumer_group_changed(self, group: str) -> None:
        """Called when a log entry that is being applied has created, changed or deleted a consumer group."""

    def topic_deleted(self, topic: str) -> None:
        """Called on each replica when a log entry that is being applied has deleted a topic."""

    def on_new_messages(self, topic: str, queue_id: int, entries: bytes | bytearray) -> None:
        """Called when a queue in `QueueStore.watched` got messages. ``entries``: its new entries, 20 bytes each."""

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Use changed settings from now on. Called when an operator changes settings of the running broker."""

    def end_turn(self) -> None:
        """Append batched writes. Called at the end of a turn of the event loop."""

    def periodic(self) -> Iterable[Periodic]:
        """Return the actions that a timer calls. Called once."""
        return ()

    def tasks(self) -> Iterable[Task]:
        """Return the tasks of this service, which run until the broker stops. Called once."""
        return ()

    def has_unsent_replies(self) -> bool:
        """Return whether requests of clients wait here for responses. A broker that stops waits a while for them."""
        return False

    def check_invariants(self) -> None:
        """Assert the invariants of this service between two turns, for tests: it may read its whole state."""

    def on_stop(self) -> None:
        """Close all connections except those of clients, which are closed. Called when the broker stops."""

    def counters(self) -> Mapping[str, int]:
        """Return figures for operators by name. All replicas of a group have the same names.

        Figures of several services with one name are added.
        """
        return {}
