"""A gRPC server on trio: listens, accepts connections, limits their time, and drains them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import trio

from mq.proxy.grpc.accepting import AcceptedConnection, HandshakeFailed, Trusts, accept
from mq.proxy.grpc.certificate import TlsContext
from mq.proxy.grpc.counters import GrpcCounters
from mq.proxy.grpc.limits import GrpcLimits
from mq.proxy.grpc.served_connection import Log, Method, ServedConnection, ServerContext
from mq.proxy.grpc.status import CallRefused, Status

_LOOK_SECONDS: Final = 1.0
_LAST_BYTES_SECONDS: Final = 2.0


def trust_nobody(host: str) -> bool:
    """Do not trust any host to name the addresses of clients."""
    return False


async def serve_grpc(
    listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
    methods: Mapping[str, Method],
    *,
    limits: GrpcLimits,
    tls: TlsContext | None,
    log: Log,
    tls_required: bool = False,
    trusts: Trusts = trust_nobody,
    counters: GrpcCounters | None = None,
    drain: trio.Event | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve calls until cancelled, or until ``drain`` is set and all calls have ended; closes the listeners.

    Args:
        methods: by path, ``/package.Service/Method``; other paths are UNIMPLEMENTED.
        tls: for clients that use TLS; None to refuse them.
        tls_required: refuse clients that do not use TLS.
        trusts: which hosts may name the addresses of others, in a header of HAProxy's protocol. A header of any other
            host closes its connection: the addresses of clients decide what they may do.
        counters: filled with what happens.
        drain: when set, no further connection or call is accepted; calls have ``drain_seconds_max`` to end, and end
            with UNAVAILABLE then.
    """
    counters = GrpcCounters() if counters is None else counters
    context = ServerContext(methods, limits, counters, trio.Event() if drain is None else drain, log)
    await _GrpcServer(context, tls, tls_required=tls_required, trusts=trusts).run(listeners, task_status)


class _GrpcServer:
    def __init__(self, context: ServerContext, tls: TlsContext | None, *, tls_required: bool, trusts: Trusts) -> None:
        self._context = context
        self._tls = tls
        self._tls_required = tls_required
        self._trusts = trusts
        self._connections: set[ServedConnection] = set()
        self._gone_event = trio.Event()

    async def run(
        self, listeners: Sequence[trio.abc.Listener[trio.abc.Stream]], task_status: trio.TaskStatus[None]
    ) -> None:
        async with trio.open_nursery() as watch_nursery:
            watch_nursery.start_soon(self._watch_connections)
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accept_nursery:
                    await accept_nursery.start(self._listen, list(listeners), connections)
                    task_status.started()
                    await self._context.drain_event.wait()
                    accept_nursery.cancel_scope.cancel()
                await self._drain()
                connections.cancel_scope.cancel()
            watch_nursery.cancel_scope.cancel()

    async def _listen(
        self,
        listeners: list[trio.abc.Listener[trio.abc.Stream]],
        connections: trio.Nursery,
        task_status: trio.TaskStatus[list[trio.abc.Listener[trio.abc.Stream]]],
    ) -> None:
        await trio.serve_listeners(self._serve, listeners, handler_nursery=connections, task_status=task_status)

    async def _drain(self) -> None:
        limits = self._context.limits
        self._context.log.info("draining", connections=len(self._connections), calls=self._context.counters.streams)
        for connection in list(self._connections):
            connection.drain()
        with trio.move_on_after(limits.drain_seconds_max):
            await self._all_gone()
        for connection in list(self._connections):
            connection.end_calls(CallRefused(Status.UNAVAILABLE, "the server stops"))
        with trio.move_on_after(_LAST_BYTES_SECONDS):
            await self._all_gone()

    async def _all_gone(self) -> None:
        while self._connections:
            self._gone_event = trio.Event()
            await self._gone_event.wait()
        await trio.lowlevel.checkpoint()

    async def _watch_connections(self) -> None:
        while True:
            await trio.sleep(_LOOK_SECONDS)
            now = trio.current_time()
            self._context.partial_requests.close_stalled(now)
            for connection in list(self._connections):
                connection.tick(now)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until it ends. An error ends only this connection."""
        context = self._context
        if context.counters.connections >= context.limits.connections_max:
            context.warning("connection_refused", "too many connections", connections=context.counters.connections)
            await trio.aclose_forcefully(stream)
            return
        context.counters.connections += 1
        try:
            connected_client = await self._accept(stream)
            connection = ServedConnection(connected_client, context)
            self._connections.add(connection)
            try:
                if context.drain_event.is_set():
                    connection.drain()
                await connection.run()
            finally:
                self._connections.discard(connection)
                self._gone_event.set()
        except HandshakeFailed as error:
            context.warning("handshake_failed", "handshake", reason=str(error))
        except Exception:
            # No input of a client may end the process, not even through a bug of ours.
            context.log.exception("connection_failed")
        finally:
            context.counters.connections -= 1
            await trio.aclose_forcefully(stream)

    async def _accept(self, stream: trio.abc.Stream) -> AcceptedConnection:
        with trio.move_on_after(self._context.limits.handshake_seconds_max) as handshake_scope:
            client = await accept(stream, self._tls, self._trusts)
            if self._tls_required and not client.secure:
                raise HandshakeFailed("the client does not use TLS")
            return client
        assert handshake_scope.cancelled_caught, "no connection came, and nothing was cancelled"
        raise HandshakeFailed("the client sent no TLS handshake in time")
