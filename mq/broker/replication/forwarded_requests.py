"""Serves requests that other replicas forward to the leader (request code 9002)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from mq.broker.base.rate_limited_log import Log
from mq.broker.net.call import Call, Handler
from mq.broker.net.connection import ClientConnection, answer_failure
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import FrameError
from mq.protocol.frames import BINARY, JSON
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.requests.forwarding import WrapEncoder
from mq.protocol.requests.replicas import Forward
from mq.protocol.wire.encoding import ONEWAY_FLAG, encode_response
from raftlog import RoleChange

_HOST_BYTES = 8


class ForwardedRequests(Service):
    """Serves requests that other replicas forward to this leader.

    Args:
        leader_handlers: the requests that may be forwarded.
        leads: whether this replica accepts messages.
        is_elected: whether it leads or is about to.
        held_bytes_max: limit for requests that arrive before it accepts messages.
        admit: raises RequestRefused for a connection that is not a replica's, or for another log. A replica is trusted
            about the client's identity.
        forward: forwards a request that came too late.
        limit_users: called before a request of a limited user is served.
    """

    def __init__(
        self,
        *,
        leader_handlers: Mapping[type[Any], Handler],
        leads: Callable[[], bool],
        is_elected: Callable[[], bool],
        held_bytes_max: int,
        admit: Callable[[ClientConnection, str], None],
        forward: Handler,
        limit_users: Callable[[], None],
        log: Log,
    ) -> None:
        self._leader_handlers = leader_handlers
        self._leads = leads
        self._is_elected = is_elected
        self._held_calls: list[Call[Forward]] = []
        self._held_bytes = 0
        self._held_bytes_max = held_bytes_max
        self._admit = admit
        self._forward = forward
        self._limit_users = limit_users
        self._wrap = WrapEncoder().encode
        self._log = log
        self.request_count = 0

    def routes(self) -> Iterator[Route]:
        yield Route(Forward, self.handle)

    def counters(self) -> dict[str, int]:
        return {"forwarded_taken": self.request_count}

    def check_invariants(self) -> None:
        nbytes = sum(len(call.body) for call in self._held_calls)
        assert nbytes == self._held_bytes, f"forwarded requests of {nbytes} bytes wait, counted {self._held_bytes}"
        assert not self._held_calls or not self._leads(), (
            f"{len(self._held_calls)} forwarded requests wait, and this replica leads"
        )

    def handle(self, call: Call[Forward]) -> None:
        """Request code 9002: serve a request that another replica forwards. Raises RequestRefused."""
        ext, body = call.request.ext, call.body
        self._admit(call.connection, ext.identity)
        if not self._leads():
            if self._is_elected() and self._held_bytes < self._held_bytes_max:
                # If refused, it might be overtaken by a later request that arrives in time.
                self._held_calls.append(call)
                self._held_bytes += len(body)
                return
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "this replica does not lead its group")
        try:
            host = bytes.fromhex(ext.born_host)
            requests, nbytes = decode_chunk(body)
        except (ValueError, FrameError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"invalid forwarded request: {error}") from error
        if len(host) != _HOST_BYTES or len(requests) != 1 or nbytes != len(body):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"{len(requests)} requests in {nbytes} of {len(body)} bytes, from a host of {len(host)} bytes",
            )
        if ext.serialization not in (JSON, BINARY):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the encoding {ext.serialization} of the header is unknown"
            )
        inner, inner_body, _ = requests[0]
        if ext.user:
            self._limit_users()
        handler = self._leader_handlers.get(type(inner))
        if handler is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"a {type(inner).__name__} of code {inner.code} cannot be forwarded"
            )
        self.request_count += 1
        sender = ForwardedSender(self, call.connection, call.request.opaque, host, ext.client_id or None, ext.user)
        sender.serve(handler, inner, inner_body, ext.serialization)

    def lead(self) -> None:
        """Serve the held requests, since this replica accepts messages now."""
        self._serve_held()

    def role_changed(self, change: RoleChange) -> None:
        """Serve the held requests again: they are refused if this replica will not lead after all."""
        self._serve_held()

    def _serve_held(self) -> None:
        calls, self._held_calls, self._held_bytes = self._held_calls, [], 0
        for call in calls:
            call.dispatch()

    def answer(self, connection: ClientConnection, opaque: int, inner: bytes) -> None:
        """Send a client's response to the replica that forwarded the request."""
        connection.send(self._wrap(opaque, inner))

    def failure_response(self, error: Exception, sender: ForwardedSender, inner: Any, serialization: int) -> bytes:
        """Return the response to a request that failed. Raises an AssertionError again."""
        return answer_failure(error, inner, serialization, sender.peer, self._log)

    def serve_again(self, sender: ForwardedSender, inner: Any, body: bytes, serialization: int) -> bool:
        """Serve a request again whose handler stored nothing; returns False if another replica has to serve it."""
        if self._leads():
            sender.serve(self._leader_handlers[type(inner)], inner, body, serialization)
            return True
        if inner.flag & ONEWAY_FLAG:
            # The forwarding replica was told that the request is accepted.
            sender.serve(self._forward, inner, body, serialization)
            return True
        return False


class ForwardedSender:
    """Stands for another replica's client during one request: has the part of `ClientConnection` that handlers use.

    ``client_id`` is its id in the consumer group of the request, None if unknown. ``user`` is who it is, if limited.
    """

    hold_seconds_max = 5.0
    """The maximum time for which the request may be held: the other replica waits for twice that."""

    __slots__ = ("_connection", "_opaque", "_requests", "client_id", "held_pulls", "host", "user")

    def __init__(
        self,
        requests: ForwardedRequests,
        connection: ClientConnection,
        opaque: int,
        host: bytes,
        client_id: str | None,
        user: str = "",
    ) -> None:
        self._requests = requests
        self._connection = connection
        self._opaque = opaque
        self.host = host
        self.client_id = client_id
        self.user = user
        self.held_pulls = 0

    @property
    def peer(self) -> str:
        """The addresses of the client and of its replica, for logs."""
        address, port = self.host[:4], int.from_bytes(self.host[4:], "big")
        return f"{'.'.join(map(str, address))}:{port} at {self._connection.peer}"

    @property
    def closed(self) -> bool:
        """Whether the connection from the client's replica is closed."""
        return self._connection.closed

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be sent to the client's replica."""
        return self._connection.waiting_bytes

    def send(self, data: bytes) -> None:
        """Send the client's response to its replica."""
        self._requests.answer(self._connection, self._opaque, data)

    def answer(self, request: Any, reply: bytes) -> None:
        """Send the response to the request, unless the client wants none."""
        if not request.flag & ONEWAY_FLAG:
            self.send(reply)

    def refuse(self, request: Any, serialization: int, error: Exception) -> None:
        """Answer a request that failed after its handler returned. Raises an AssertionError again."""
        self.answer(request, self._requests.failure_response(error, self, request, serialization))

    def send_all(self, buffers: list[bytes | memoryview], nbytes: int) -> None:
        """Send a response that is in several buffers."""
        self.send(b"".join(buffers))

    def close(self, reason: str) -> None:
        """Report that the outcome is unknown: the client's replica closes the connection of the client."""
        self._connection.send(encode_response(self._opaque, ResponseCode.SYSTEM_ERROR, remark=reason))

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        """Serve the request again, or report to the client's replica that this replica does not lead any more."""
        if not self._requests.serve_again(self, request, body, serialization):
            code = ResponseCode.SERVICE_NOT_AVAILABLE
            self._connection.send(encode_response(self._opaque, code, remark="leadership moved to another replica"))

    def serve(self, handler: Handler, request: Any, body: bytes, serialization: int) -> None:
        """Serve the request with a handler, and send its response."""
        oneway = request.flag & ONEWAY_FLAG
        try:
            # Handlers of forwarded requests use no other part of a connection.
            reply = handler(Call(cast("ClientConnection", self), request, body, serialization, self.user))
        except Exception as error:
            reply = self._requests.failure_response(error, self, request, serialization)
        if oneway:
            self.send(b"")
        elif reply is not None:
            self.send(reply)
