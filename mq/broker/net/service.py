"""The base class of all features of the broker, `Service`, and a `Route` for each request that it handles.

A new feature is a class that derives from `Service` and a line in `mq.broker.services`. The broker knows its services
only as a list: it collects their routes and counters, and calls them when this replica gains or loses leadership.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from mq.broker.net.call import Handler
from mq.broker.net.connection import ClientConnection

Periodic = tuple[float, Callable[[], None]]
"""Interval in seconds, and the action."""


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
        """This replica leads from now on, and has applied everything that earlier leaders committed."""

    def resign(self) -> None:
        """This replica stopped leading: discard the leader's state."""

    def connection_closed(self, connection: ClientConnection) -> None:
        """A client connection was closed."""

    def topic_deleted(self, topic: str) -> None:
        """A topic was deleted, on each replica; called while log entries are applied."""

    def end_turn(self) -> None:
        """A turn of the event loop ends; batched writes can be appended now."""

    def periodic(self) -> Iterable[Periodic]:
        """Periodic actions with their intervals; called once."""
        return ()

    def counters(self) -> Mapping[str, int]:
        """Figures for operators, by name; all replicas of a group have the same names."""
        return {}
