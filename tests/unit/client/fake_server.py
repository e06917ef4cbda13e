"""A server of the remoting protocol on a loopback socket, without any request that it knows.

Headers are read as plain JSON, so that the names that a client puts on the wire are checked against the protocol and
not against our own decoder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc

from mq.protocol.frames import split_frames


class FakeConnection:
    """The broker's side of one client connection."""

    def __init__(self, stream: anyio.abc.SocketStream, tasks: anyio.abc.TaskGroup) -> None:
        self.stream = stream
        self.tasks = tasks
        self.closed = False
        self._lock = anyio.Lock()

    async def send(self, frame: bytes) -> None:
        async with self._lock:
            if not self.closed:
                try:
                    await self.stream.send(frame)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    self.closed = True

    async def hang_up(self) -> None:
        self.closed = True
        await anyio.aclose_forcefully(self.stream)


@dataclass(frozen=True, slots=True)
class FakeRequest:
    """A decoded request."""

    code: int
    opaque: int
    oneway: bool
    ext: dict[str, str]
    body: bytes


class FakeServer:
    """A listening socket; every complete frame goes to `handle`."""

    def __init__(self) -> None:
        self.address = ""
        self.connections: set[FakeConnection] = set()
        self.received: list[FakeRequest] = []
        self._scope = anyio.CancelScope()
        self._listener: Any = None

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        host, port = self.address.split(":") if self.address else ("127.0.0.1", "0")
        listener = await anyio.create_tcp_listener(local_host=host, local_port=int(port))
        bound_port = listener.extra(anyio.abc.SocketAttribute.local_port)
        self.address = f"127.0.0.1:{bound_port}"
        self._listener = listener
        self._scope = anyio.CancelScope()
        tasks.start_soon(self._serve, listener)

    async def _serve(self, listener: Any) -> None:
        with self._scope:
            async with listener:
                try:
                    await listener.serve(self._serve_connection)
                except* anyio.ClosedResourceError:
                    pass  # `stop` closed it

    async def stop(self) -> None:
        """As if the process was killed: the port is closed, all connections are reset."""
        await self._listener.aclose()
        self._scope.cancel()
        for connection in list(self.connections):
            await connection.hang_up()

    async def _serve_connection(self, stream: anyio.abc.SocketStream) -> None:
        buffer = b""
        async with anyio.create_task_group() as tasks:
            connection = FakeConnection(stream, tasks)
            self.connections.add(connection)
            try:
                while True:
                    buffer += await stream.receive()
                    frames, consumed = split_frames(memoryview(buffer))
                    for serialization, header, body in frames:
                        assert serialization == 0, "the client speaks JSON"
                        request = _decode(bytes(header), bytes(body))
                        if request is not None:
                            self.received.append(request)
                            await self.handle(connection, request)
                    buffer = buffer[consumed:]
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
            finally:
                connection.closed = True
                self.connections.discard(connection)
                tasks.cancel_scope.cancel()
                self.connection_ended(connection)
                with anyio.CancelScope(shield=True):
                    await anyio.aclose_forcefully(stream)

    def connection_ended(self, connection: FakeConnection) -> None:
        """For brokers, which forget the members of a connection."""

    async def handle(self, connection: FakeConnection, request: FakeRequest) -> None:
        raise AssertionError(f"nothing handles {request}")

    def count(self, code: int) -> int:
        """How many requests with this code came in."""
        return sum(request.code == code for request in self.received)


def _decode(header: bytes, body: bytes) -> FakeRequest | None:
    fields = json.loads(header)
    flag = fields.get("flag", 0)
    if flag & 1:
        return None
    ext = fields.get("extFields") or {}
    assert all(isinstance(value, str) for value in ext.values()), f"ext values must be strings: {ext}"
    return FakeRequest(fields["code"], fields["opaque"], bool(flag & 2), ext, body)
