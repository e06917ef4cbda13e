"""Which handler serves which type of request, and the serving itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mq.broker.net.call import Call, Handler
from mq.broker.net.connection import ClientConnection, SendKeys
from mq.broker.net.service import Route
from mq.protocol.chunks import Incoming
from raftlog import Begun, Ready


class RequestTable:
    """The handlers of a broker by type of request.

    A request that only the leader can serve is served here while this replica leads, and handed to the leader while it
    does not.

    Attributes:
        leader_handlers: what serves requests that only the leader can serve.
        repeatable: requests that may be handed on again when nobody can tell whether a leader has served them.
        plain_sends: queues the plain sends that a chunk begins with and returns how many bytes they take; called only
            while this replica leads.
        ready_sends: receives from clients in ``producing``, and queues their plain sends; called only while this
            replica leads, see `receive`.
        producing: clients whose last chunk consisted of plain sends, by descriptor; without those that use TLS.
    """

    plain_sends: Callable[[ClientConnection, bytes, SendKeys | None], int] | None = None
    ready_sends: Callable[[Ready], tuple[Ready, Begun]] | None = None

    def __init__(self) -> None:
        self.leader_handlers: dict[type[Any], Handler] = {}
        self.repeatable: set[type[Any]] = set()
        self._handlers: dict[type[Any], Handler] = {}
        self._leads = False
        self.producing: dict[int, ClientConnection] = {}

    def add(self, routes: Iterable[Route]) -> None:
        """Add routes; no two may be for one type of request."""
        for request_type, handler, leader_only, repeatable in routes:
            known = request_type in self._handlers or request_type in self.leader_handlers
            assert not known, f"two services serve {request_type.__name__}"
            (self.leader_handlers if leader_only else self._handlers)[request_type] = handler
            if repeatable:
                self.repeatable.add(request_type)

    @property
    def types(self) -> set[type[Any]]:
        """The types of requests that are served."""
        return {*self._handlers, *self.leader_handlers}

    def serve_as_leader(self) -> None:
        """Serve everything here."""
        self._leads = True
        self._handlers.update(self.leader_handlers)

    def serve_as_follower(self, forward: Handler) -> None:
        """Let ``forward`` hand what needs the leader to it."""
        self._leads = False
        self._handlers.update(dict.fromkeys(self.leader_handlers, forward))

    def take_plain(self, connection: ClientConnection, chunk: bytes, key_of: SendKeys | None) -> int:
        """Serve the plain sends that ``chunk`` begins with, as a whole; returns how many bytes they take."""
        return self.plain_sends(connection, chunk, key_of) if self._leads and self.plain_sends is not None else 0

    def receive(self, ready: Ready) -> tuple[Ready, Begun]:
        """Receive from all clients among ``ready`` that probably have plain sends; see `Reactor.serve_together`."""
        if self.ready_sends is None or not self._leads or not self.producing:
            return ready, ()
        return self.ready_sends(ready)

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
