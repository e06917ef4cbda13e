"""Serves one connection on trio: receives, sends, and runs the methods of its calls."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog
import trio

from mq.protocol.incoming.partial_requests import PartialRequests
from mq.proxy.grpc.accepting import RECEIVE_BYTES, AcceptedConnection, ReadAhead
from mq.proxy.grpc.call import Call
from mq.proxy.grpc.call_stream import CallStream
from mq.proxy.grpc.connection import ConnectionFailed, GrpcConnection
from mq.proxy.grpc.counters import GrpcCounters
from mq.proxy.grpc.limits import GrpcLimits
from mq.proxy.grpc.status import BrokenCall, CallRefused, Status

Log = structlog.stdlib.BoundLogger
Method = Callable[[Call], Awaitable[None]]
"""Serves one call: returns for OK, raises CallRefused for another status. Cancelled when the call is over."""

_LAST_BYTES_SECONDS: Final = 2.0
_DISCARDED_BYTES_MAX: Final = 1024 * 1024
_LOG_EVERY_SECONDS: Final = 60.0
_UNKNOWN: Final = "unknown"


class ServerContext:
    """The objects that all connections of a server share.

    Args:
        drain_event: set when the server stops.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        limits: GrpcLimits,
        counters: GrpcCounters,
        drain_event: trio.Event,
        log: Log,
    ) -> None:
        self.methods = methods
        self.limits = limits
        self.counters = counters
        self.drain_event = drain_event
        self.log = log
        self.partial_requests: PartialRequests[CallStream] = PartialRequests(
            bytes_max=limits.unfinished_bytes_max,
            seconds_max=limits.unfinished_seconds_max,
            on_closed=lambda _, reason: self.warning("unfinished_message", "unfinished message", reason=reason),
        )
        self._log_again_at: dict[str, float] = {}

    def warning(self, event: str, kind: str, **fields: object) -> None:
        """Count a fault of a client, and log it, at most once a minute for each event."""
        self.counters.close_counts[kind] += 1
        now = trio.current_time()
        if now >= self._log_again_at.get(event, -math.inf):
            self._log_again_at[event] = now + _LOG_EVERY_SECONDS
            self.log.warning(event, times=self.counters.close_counts[kind], **fields)


class ServedConnection:
    """Serves the gRPC calls of one client connection."""

    def __init__(self, client: AcceptedConnection, server: ServerContext) -> None:
        self._stream = client.stream
        self._client = client
        self._server = server
        self._connection = GrpcConnection(server.limits, server.partial_requests, trio.current_time(), self._begin_call)
        self._nursery: trio.Nursery | None = None
        self._to_write = trio.Event()
        self._write_event = trio.Event()
        self._flush_event = trio.Event()
        self._read_scope = trio.CancelScope()
        self._is_closing = False

    async def run(self) -> None:
        """Serve the connection until it ends. All its calls have ended when this returns."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._write)
            try:
                with self._read_scope:
                    await self._read()
            finally:
                self._connection.on_loss()
            self._is_closing = True
            self.wake_writer()
            with trio.move_on_after(_LAST_BYTES_SECONDS):
                await self._flush_event.wait()
                await self._discard_rest()
            nursery.cancel_scope.cancel()

    def wake_writer(self) -> None:
        """Wake the task that writes. It goes on sleeping if there is nothing to send."""
        if self._connection.unsent_bytes or self._is_closing:
            self._to_write.set()

    def drain(self) -> None:
        """Accept no new calls."""
        self._connection.drain(trio.current_time())
        self.wake_writer()

    def end_calls(self, refusal: CallRefused) -> None:
        """End all calls with this status."""
        for stream in list(self._connection.streams.values()):
            self._connection.refuse(stream, refusal)

    def tick(self, now: float) -> None:
        """Check time limits and send what is due; call it about once a second."""
        try:
            self._connection.tick(now)
        except ConnectionFailed as error:
            self._on_failure(error)
            self._read_scope.cancel()
        self.wake_writer()

    # ------------------------------------------------------------------------------------------- bytes

    async def _read(self) -> None:
        connection, counters = self._connection, self._server.counters
        while True:
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # noqa: ASYNC910 - receiving is a checkpoint, also when it fails
            if not data:
                return  # noqa: ASYNC910 - receiving is a checkpoint
            counters.received_bytes += len(data)
            try:
                connection.receive(bytes(data), trio.current_time())
            except ConnectionFailed as error:
                self._on_failure(error)
                return  # noqa: ASYNC910 - receiving is a checkpoint
            self.wake_writer()
            # Answers to frames of the client itself, such as pings, wait for no method.
            while connection.unsent_bytes > 2 * self._server.limits.output_bytes_max:
                self._write_event = trio.Event()
                await self._write_event.wait()

    async def _discard_rest(self) -> None:  # noqa: ASYNC910 - both are checkpoints, also when they fail
        """Read what the client still sends: closing a socket with unread bytes would lose the sent bytes."""
        try:
            if isinstance(self._stream, ReadAhead):
                await self._stream.send_eof()
            count = 0
            while count < _DISCARDED_BYTES_MAX and (data := await self._stream.receive_some(RECEIVE_BYTES)):
                count += len(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _write(self) -> None:  # noqa: ASYNC910 - ends at once if there is nothing to write
        connection, server = self._connection, self._server
        while True:
            connection.pump()
            data = connection.bytes_to_send()
            if not data:
                if self._is_closing:
                    self._flush_event.set()
                    return  # noqa: ASYNC910 - ends at once if there is nothing to write
                self._to_write = trio.Event()
                await self._to_write.wait()
                continue
            server.counters.sent_bytes += len(data)
            with trio.move_on_after(server.limits.send_seconds_max) as send_scope:
                try:
                    await self._stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    break
            if send_scope.cancelled_caught:
                server.warning("client_does_not_read", "does not read", peer=self._client.peer)
                break
            self._write_event.set()
        connection.on_loss()
        assert self._nursery is not None, "the writer runs within the nursery"
        self._nursery.cancel_scope.cancel()

    def _on_failure(self, error: ConnectionFailed) -> None:
        peer = self._client.peer
        if error.flood:
            self._server.warning("client_floods", "flood", peer=peer, reason=error.reason)
        elif error.of_client:
            self._server.warning("bad_http2", "bad HTTP/2", peer=peer, reason=error.reason)

    # ------------------------------------------------------------------------------------------- calls

    def _begin_call(self, stream: CallStream) -> None:
        assert stream.head is not None, "what is no call has no method"
        assert self._nursery is not None, "calls begin while the connection is served"
        method = self._server.methods.get(stream.head.path)
        if method is None:
            self._finish(stream, _UNKNOWN, Status.UNIMPLEMENTED, f"{stream.head.path} is not served here")
            return
        timeout = stream.head.timeout
        scope = trio.CancelScope(deadline=math.inf if timeout is None else trio.current_time() + timeout)
        stream.on_end = scope.cancel
        self._server.counters.streams += 1
        self._nursery.start_soon(self._run_call, method, stream, scope)

    async def _run_call(self, method: Method, stream: CallStream, scope: trio.CancelScope) -> None:  # noqa: ASYNC910 - a method receives its request
        assert stream.head is not None, "what is no call has no method"
        client, server, path = self._client, self._server, stream.head.path
        status, reason = Status.OK, ""
        try:
            with scope:
                call = Call(
                    stream,
                    peer=client.peer,
                    local_address=client.local_address,
                    secure=client.secure,
                    deadline=None if stream.head.timeout is None else scope.deadline,
                    drain_event=server.drain_event,
                    wake_writer=self.wake_writer,
                    send_seconds_max=server.limits.send_seconds_max,
                )
                await method(call)
            if scope.cancelled_caught:
                status, reason = _why_cancelled(stream)
        except BrokenCall:
            status = Status.CANCELLED
        except Exception as error:
            refusal = stream.refusal or _refusal_in(error)
            if refusal is None:
                server.log.exception("call_failed", path=path, peer=client.peer)
                refusal = CallRefused(Status.INTERNAL, "the server failed; its log says why")
            status, reason = refusal.status, refusal.reason
        finally:
            server.counters.streams -= 1
        self._finish(stream, path, status, reason)

    def _finish(self, stream: CallStream, path: str, status: Status, reason: str) -> None:
        if stream.closed:
            status = Status.CANCELLED
        self._server.counters.calls[path, status] += 1
        self._connection.finish(stream, status, reason)
        self.wake_writer()


def _why_cancelled(stream: CallStream) -> tuple[Status, str]:
    if stream.refusal is not None:
        return stream.refusal.status, stream.refusal.reason
    if stream.closed:
        return Status.CANCELLED, ""
    return Status.DEADLINE_EXCEEDED, "the deadline of the call is over"


def _refusal_in(error: Exception) -> CallRefused | None:
    """Return the only refusal that a method raised, maybe in one of its tasks."""
    match error:
        case CallRefused():
            return error
        case ExceptionGroup(exceptions=[only]):
            return _refusal_in(only)
        case _:
            return None
