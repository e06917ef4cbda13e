"""Addresses that are no name server's and no broker's."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc


@asynccontextmanager
async def strange_server(answer: bytes | None) -> AsyncGenerator[str]:
    """A server that answers each connection with these bytes, closes it (b""), or says nothing (None)."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            if answer is None:
                await anyio.sleep_forever()
            elif answer:
                await stream.receive()
                await stream.send(answer)

    async with anyio.create_task_group() as tasks:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"127.0.0.1:{port}"
        tasks.cancel_scope.cancel()
    await listener.aclose()


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """An address that neither accepts nor refuses connections: the backlog of its socket is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"
