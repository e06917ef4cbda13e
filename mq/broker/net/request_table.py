"""Which handler serves which type of request, and the serving itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mq.broker.net.call import Call, Handler
from mq.broker.net.connection import ClientConnection, PlainSends
from mq.broker.net.service import Route
from mq.protocol.incoming.chunks import Incoming


class RequestTable:
    """The handlers of a broker by type of request.

    A request that only the leader can serve is served here while this replica leads, and handed to the leader while it
    does not.

    Attributes:
        leader_handlers: what serves requests that only the leader can serve.
        repeatable: requests that may be handed on again when nobody can tell whether a leader has served them.
        sends: serves plain sends, which do not come here.
    """

    sends: PlainSends

    def __init__(self) -> None:
        self.leader_handlers: dict[type[Any], Handler] = {}
        self.repeatable: set[type[Any]] = set()
        self._handlers: dict[type[Any], Handler] = {}

    def add(self, routes: Iterable[Route]) -> None:
        """Add routes; no two may be for one type of request."""
        for request_type, handler, leader_only, repeatable in routes:
            known = request_type in self._handlers or request_type in self.leader_handlers
            assert not known, f"two services serve {request_type.__name__}"
            assert leader_only or not repeatable, f"{request_type.__name__} is never forwarded, nor repeated"
            (self.leader_handlers if leader_only else self._handlers)[request_type] = handler
            if repeatable:
                self.repeatable.add(request_type)

    @property
    def types(self) -> set[type[Any]]:
        """The types of requests that are served."""
        return {*self._handlers, *self.leader_handlers}

    def serve_as_leader(self) -> None:
        """Serve everything here."""
        self.sends.serve_here(True)
        self._handlers.update(self.leader_handlers)

    def serve_as_follower(self, forward: Handler) -> None:
        """Let ``forward`` hand what needs the leader to it."""
        self.sends.serve_here(False)
        self._handlers.update(dict.fromkeys(self.leader_handlers, forward))

    def serve(self, connection: ClientConnection, incoming: Iterable[Incoming]) -> None:
        """Serve requests in this order, and answer those whose handlers do so at once."""
        handler_of = self._handlers.get
        for request, body, serialization in incoming:
            handler = handler_of(type(request))
            try:
                if handler is None:
                    connection.unsupported(request, body)
                    continue
                reply = handler(Call(connection, request, body, serialization))
            except Exception as error:
                connection.refuse(request, serialization, error)
            else:
                if reply is not None:
                    connection.answer(request, reply)
