"""A man in the middle between two replicas."""

from __future__ import annotations

import ssl

import trio

from raftlog.net.replication_tls import caller_context


class Wire:
    """Forwards what a caller and the listener at ``port`` send, and records it.

    With a context it speaks TLS with both of them, and records the plain text.
    """

    def __init__(self, port: int, shown: ssl.SSLContext | None) -> None:
        self._port = port
        self._shown = shown
        self.seen = bytearray()

    async def serve(self, port: int, *, task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED) -> None:
        await trio.serve_tcp(self._pass_on, port, host="127.0.0.1", task_status=task_status)

    async def _pass_on(self, caller: trio.SocketStream) -> None:
        try:
            listener = await trio.open_tcp_stream("127.0.0.1", self._port)
            if self._shown is None:
                await self._both(caller, listener)
            else:
                inside = trio.SSLStream(caller, self._shown, server_side=True)
                await self._both(inside, trio.SSLStream(listener, caller_context()))
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _both(self, one: trio.abc.Stream, other: trio.abc.Stream) -> None:
        async with one, other, trio.open_nursery() as nursery:
            nursery.start_soon(self._copy, one, other, nursery.cancel_scope)
            nursery.start_soon(self._copy, other, one, nursery.cancel_scope)

    async def _copy(self, source: trio.abc.Stream, target: trio.abc.Stream, over: trio.CancelScope) -> None:
        async for data in source:
            self.seen += data
            await target.send_all(bytes(data))
        over.cancel()
