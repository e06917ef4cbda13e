"""Maps each type of request to its handler, and serves requests with them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

from mq.broker.net.call import Call, Handler
from mq.broker.net.connection import ClientConnection, PlainSends
from mq.broker.net.service import Route
from mq.protocol.incoming.chunks import Incoming


class Gate(Protocol):
    """Checks a request before its handler gets it, and may delay or refuse it."""

    @property
    def types(self) -> frozenset[type[Any]]:
        """The types of the requests that the gate checks."""
        ...

    def serve(self, handler: Handler, is_forwarded: bool, call: Call[Any], /) -> bytes | None:
        """Call ``handler`` now or later, or refuse the request. ``is_forwarded``: the handler asks the leader."""
        ...


class RequestTable:
    """Calls the handler for each request, by its type.

    A request that only the leader can serve is served here while this replica leads, and handed to the leader while it
    does not.

    Attributes:
        leader_handlers: what serves requests that only the leader can serve, behind the gate if there is one.
        repeatable: requests that may be handed on again when it is unknown whether a leader has served them.
        sends: serves plain sends, which do not come here.
    """

    sends: PlainSends

    def __init__(self) -> None:
        self.leader_handlers: dict[type[Any], Handler] = {}
        self.repeatable: set[type[Any]] = set()
        self._handlers: dict[type[Any], Handler] = {}
        self._of_leader: dict[type[Any], Handler] = {}
        self._of_all: dict[type[Any], Handler] = {}
        self._forward: Handler | None = None
        self._gate: Gate | None = None

    def add(self, routes: Iterable[Route]) -> None:
        """Add routes. Each type of request may have one."""
        for request_type, handler, leader_only, repeatable in routes:
            is_known = request_type in self._of_all or request_type in self._of_leader
            assert not is_known, f"two services serve {request_type.__name__}"
            assert leader_only or not repeatable, f"{request_type.__name__} is never forwarded, nor repeated"
            (self._of_leader if leader_only else self._of_all)[request_type] = handler
            if repeatable:
                self.repeatable.add(request_type)
        self._put()

    @property
    def types(self) -> set[type[Any]]:
        """The types of requests that have a handler."""
        return {*self._of_all, *self._of_leader}

    @property
    def is_gated(self) -> bool:
        """Whether a gate checks some requests before their handlers."""
        return self._gate is not None

    def put_gate(self, gate: Gate | None) -> None:
        """Check requests of the gate's types with ``gate`` before their handlers; None removes the gate."""
        if gate is not self._gate:
            self._gate = gate
            self._put()

    def serve_as_leader(self) -> None:
        """Serve all requests on this replica from now on."""
        self.sends.serve_here(True)
        self._forward = None
        self._put()

    def serve_as_follower(self, forward: Handler) -> None:
        """Pass requests that need the leader to ``forward`` from now on."""
        self.sends.serve_here(False)
        self._forward = forward
        self._put()

    def _put(self) -> None:
        """Store the handlers, behind the gate if there is one, in the tables for look-ups."""
        for request_type, handler in self._of_all.items():
            self._handlers[request_type] = self._gate_handler(request_type, handler, False)
        for request_type, handler in self._of_leader.items():
            self.leader_handlers[request_type] = self._gate_handler(request_type, handler, False)
            if self._forward is None:
                self._handlers[request_type] = self.leader_handlers[request_type]
            else:
                self._handlers[request_type] = self._gate_handler(request_type, self._forward, True)

    def _gate_handler(self, request_type: type[Any], handler: Handler, is_forwarded: bool) -> Handler:
        gate = self._gate
        if gate is None or request_type not in gate.types:
            return handler
        return partial(gate.serve, handler, is_forwarded)

    def serve(self, connection: ClientConnection, requests: Iterable[Incoming]) -> None:
        """Serve requests in order, and send the responses that handlers return at once."""
        handler_of = self._handlers.get
        for request, body, serialization in requests:
            handler = handler_of(type(request))
            try:
                if handler is None:
                    connection.on_unsupported(request, body)
                    continue
                response = handler(Call(connection, request, body, serialization))
            except Exception as error:
                connection.refuse(request, serialization, error)
            else:
                if response is not None:
                    connection.answer(request, response)
