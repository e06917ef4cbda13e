"""What a feature of the broker is: a `Service`, with a `Route` for each request that it serves.

A new feature is a class that derives from `Service` and a line in `mq.broker.services`. The broker knows its services
only as a list: it asks each for its routes and counters, and tells each when this replica begins and ends to lead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from mq.broker.net.call import Handler
from mq.broker.net.connection import ClientConnection

Periodic = tuple[float, Callable[[], None]]
"""Seconds between two calls, and what is called."""


class Route(NamedTuple):
    """Which handler serves the requests of one type.

    ``leader_only`` says that a replica which does not lead hands such a request to the leader. ``repeatable`` says that
    it may be handed on once more when nobody can tell whether a leader has served it: done twice it comes to the same,
    whatever others asked for in between. Changes by operators are not repeatable: repeated, one would undo what another
    operator has done since.
    """

    request_type: type[Any]
    handler: Handler
    leader_only: bool = False
    repeatable: bool = False


class Service:
    """A feature of the broker. All methods are called on the event loop, and return at once."""

    def routes(self) -> Iterable[Route]:
        """The requests that are served here; asked once, when the broker is built."""
        return ()

    def lead(self) -> None:
        """This replica leads from now on, and has applied everything that older leaders committed."""

    def resign(self) -> None:
        """This replica does not lead any more: what was kept as the leader is void."""

    def connection_closed(self, connection: ClientConnection) -> None:
        """A client is gone."""

    def end_turn(self) -> None:
        """A turn of the event loop ends; what was gathered in it may be written now."""

    def periodic(self) -> Iterable[Periodic]:
        """What is to be done again and again, each with the seconds in between; asked once."""
        return ()

    def counters(self) -> Mapping[str, int]:
        """Numbers for operators, by name; all replicas of a group have the same names."""
        return {}
