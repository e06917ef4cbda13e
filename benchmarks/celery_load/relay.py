"""Relays connections to servers, and can pause or cut them.

A server listens on 127.0.0.1 and tells clients the address 127.0.0.2; a relay listens there on the same port.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from mq.local_cluster import HOST

RELAYED_HOST = "127.0.0.2"
_CHUNK_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a close resets the connection."""


class Relays:
    """All relays of a cluster; `open_relays` makes them."""

    def __init__(self) -> None:
        self._flows = trio.Event()
        self._flows.set()
        self._refuses = False
        self._streams: set[trio.SocketStream] = set()

    async def stand_still(self, seconds: float) -> None:
        """Hold back all bytes for ``seconds``, as when a cable is pulled: connections stay open. Then pass them on."""
        self._flows = trio.Event()
        try:
            await trio.sleep(seconds)
        finally:
            self._flows.set()

    async def cut(self, seconds: float) -> None:
        """Reset all connections, and accept none for ``seconds``."""
        self._refuses = True
        try:
            for stream in list(self._streams):
                _reset(stream)
            await trio.sleep(seconds)
        finally:
            self._refuses = False

    async def serve(self, port: int, client: trio.SocketStream) -> None:
        """Relay one connection until either side closes it."""
        if self._refuses:
            _reset(client)
            await trio.lowlevel.checkpoint()
            return
        try:
            server = await trio.open_tcp_stream(HOST, port)
        except OSError:
            _reset(client)
            return
        self._streams |= {client, server}
        try:
            async with client, server, trio.open_nursery() as nursery:
                nursery.start_soon(self._forward, client, server, nursery)
                nursery.start_soon(self._forward, server, client, nursery)
        finally:
            self._streams -= {client, server}

    async def _forward(self, source: trio.SocketStream, to: trio.SocketStream, nursery: trio.Nursery) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while chunk := await source.receive_some(_CHUNK_BYTES):
                await self._flows.wait()
                await to.send_all(chunk)
        nursery.cancel_scope.cancel()


def _reset(stream: trio.SocketStream) -> None:
    with contextlib.suppress(OSError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    stream.socket.close()


@asynccontextmanager
async def open_relays(ports: Sequence[int]) -> AsyncIterator[Relays]:
    """Run a relay for the server at each port until the block ends. Raises OSError."""
    relays = Relays()
    async with trio.open_nursery() as nursery:
        for port in ports:
            listeners = await trio.open_tcp_listeners(port, host=RELAYED_HOST)
            await nursery.start(trio.serve_listeners, partial(relays.serve, port), listeners)
        yield relays
        nursery.cancel_scope.cancel()
