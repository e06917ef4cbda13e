"""The network of a kit: connections to its IP address are pairs of sockets in this process.

Servers are connected to each other directly. Between a client and a server is a relay, which forwards whole frames and
can play the faults of `faults`. Clients may be in other threads, and on other event loops.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Self

import anyio.abc
import trio

from mq.client.net.in_process import closed_networks, in_process_networks
from mq.client.task_group import open_task_group
from mq.testing.faults import Faults
from mq.testing.relay import Relay

Address = tuple[str, int]
OnAccept = Callable[[socket.socket], None]

_numbers = itertools.count(1)
_HOSTS = 1 << 17


def _new_host() -> str:
    """Return an address of 198.18.0.0/15, which is reserved for tests of devices and used in no network."""
    number = next(_numbers) % _HOSTS
    return f"198.{18 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


class _Door(NamedTuple):
    server: str
    on_accept: OnAccept


class _KitConnection(NamedTuple):
    servers: frozenset[str]
    ends: tuple[socket.socket, socket.socket]


class Network:
    """The network of a kit, which works within the block of `open`.

    Attributes:
        heard_at: when clients and brokers last sent something to each other, by `time.monotonic`.
    """

    def __init__(self, faults: Faults) -> None:
        self.host = _new_host()
        self.faults = faults
        self.heard_at = 0.0
        self._doors: dict[int, _Door] = {}
        self._connections: list[_KitConnection] = []
        self._cut_off: set[str] = set()
        self._process = os.getpid()
        self._token = trio.lowlevel.current_trio_token()
        self._tasks: anyio.abc.TaskGroup | None = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Forward the connections of clients until the block ends."""
        async with open_task_group() as tasks:
            self._tasks = tasks
            in_process_networks[self.host] = self
            closed_networks.discard(self.host)
            try:
                yield self
            finally:
                del in_process_networks[self.host]
                closed_networks.add(self.host)
                self._tasks = None
                self.close_all()

    # -- servers -------------------------------------------------------------------------------------------------------

    def listen(self, server: str, port: int, on_accept: OnAccept) -> None:
        """Call ``on_accept`` with the server's end of each new connection. Raises OSError if the port is taken."""
        if port in self._doors:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._doors[port] = _Door(server, on_accept)

    def stop_listening(self, port: int) -> None:
        """Refuse new connections."""
        self._doors.pop(port, None)

    def connect_server(self, server: str, address: Address) -> socket.socket:
        """Connect one server to another. Raises OSError."""
        door = self._doors.get(address[1])
        if address[0] != self.host or door is None or server in self._cut_off or door.server in self._cut_off:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        ours, theirs = socket.socketpair()
        self._add_connection(frozenset((server, door.server)), ours, theirs)
        door.on_accept(theirs)
        return ours

    def cut_off(self, server: str) -> None:
        """Break all connections of a server, and refuse new ones, until `reconnect`."""
        self._cut_off.add(server)
        for connection in self._connections:
            if server in connection.servers:
                _break(connection)

    def reconnect(self, server: str) -> None:
        """Let a server that was cut off connect, and accept connections, again."""
        self._cut_off.discard(server)

    def is_cut_off(self, server: str) -> bool:
        """Return whether a server is cut off."""
        return server in self._cut_off

    def break_clients(self) -> None:
        """Break the connections of all clients, which may connect again."""
        for connection in self._connections:
            if "" in connection.servers:
                _break(connection)

    # -- clients, in any thread ----------------------------------------------------------------------------------------

    def connect(self, port: int) -> socket.socket:
        """Connect to a server of the kit. Raises ConnectionRefusedError, or OSError in a forked process."""
        door = self._doors.get(port)
        if os.getpid() != self._process:
            raise OSError("the brokers of this test kit are in the process that forked this one")
        if self._tasks is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the test kit is closed")
        if door is None or door.server in self._cut_off:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        client, outer = socket.socketpair()
        inner, server = socket.socketpair()

        def begin() -> None:
            if self._tasks is None or self._doors.get(port) is not door:
                outer.close()
                inner.close()
                server.close()
                return
            self._add_connection(frozenset(("", door.server)), outer, inner)
            self._tasks.start_soon(Relay(outer, inner, self.faults, self._on_bytes).run)
            door.on_accept(server)

        try:
            self._token.run_sync_soon(begin)
        except trio.RunFinishedError:
            for each in (client, outer, inner, server):
                each.close()
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the test kit is closed") from None
        return client

    # ------------------------------------------------------------------------------------------------------------------

    def _on_bytes(self) -> None:
        self.heard_at = time.monotonic()

    def _add_connection(self, servers: frozenset[str], *ends: socket.socket) -> None:
        self._connections = [each for each in self._connections if any(end.fileno() >= 0 for end in each.ends)]
        one, other = ends
        self._connections.append(_KitConnection(servers, (one, other)))

    def close_all(self) -> None:
        """Break all connections, and refuse new ones from now on."""
        self._doors.clear()
        for connection in self._connections:
            _break(connection)
        self._connections.clear()


def _break(connection: _KitConnection) -> None:
    for end in connection.ends:
        with contextlib.suppress(OSError):  # it is closed
            end.shutdown(socket.SHUT_RDWR)


class StreamListener(trio.abc.Listener[trio.SocketStream]):
    """Accepts the connections of one server that runs as trio tasks."""

    def __init__(self, network: Network, server: str, port: int) -> None:
        self._send, self._receive = trio.open_memory_channel[socket.socket](math.inf)
        self._network, self._port = network, port
        network.listen(server, port, self._send.send_nowait)

    async def accept(self) -> trio.SocketStream:
        """Wait for the next connection."""
        return trio.SocketStream(trio.socket.from_stdlib_socket(await self._receive.receive()))

    async def aclose(self) -> None:
        """Refuse new connections."""
        self._network.stop_listening(self._port)
        while True:
            try:
                self._receive.receive_nowait().close()
            except trio.WouldBlock:
                break
        await trio.lowlevel.checkpoint()
