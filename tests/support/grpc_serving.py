"""A gRPC server on streams in memory, and clients that a task of their own reads for."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_pair

from mq.proxy.grpc import Call, CallRefused, GrpcCounters, GrpcLimits, Method, Status, TlsContext, serve_grpc
from tests.support.grpc_client import Answer, GrpcClient

Logged = Sequence[MutableMapping[str, Any]]


class MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts streams in memory.

    Attributes:
        accepted: the server's sides, in order.
        closed: nobody can connect any more.
    """

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](100)
        self.accepted: list[trio.StapledStream[MemorySendStream, MemoryReceiveStream]] = []
        self.closed = False

    async def connect(self) -> trio.StapledStream[MemorySendStream, MemoryReceiveStream]:
        """The client's side of a new connection."""
        ours, theirs = memory_stream_pair()
        self.accepted.append(theirs)
        await self._send.send(theirs)
        return ours

    async def accept(self) -> trio.abc.Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        self.closed = True
        await self._receive.aclose()


class Connected:
    """A client with its stream.

    Attributes:
        ended: the server has closed the connection.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.grpc = GrpcClient()
        self.changed = trio.Event()
        self.ended = False
        self._sending = trio.Lock()

    async def send(self) -> None:
        """Send what the client has to send, if the server still takes it."""
        async with self._sending:
            if data := self.grpc.bytes_to_send():
                try:
                    await self.stream.send_all(data)
                except trio.BrokenResourceError:
                    self.ended = True

    async def call(self, path: str, *messages: bytes, **given: Any) -> int:
        """Begin a call; returns its stream."""
        stream_id = self.grpc.call(path, messages, **given)
        await self.send()
        return stream_id

    async def answer(self, stream_id: int) -> Answer:
        """The whole answer: ended, reset, or cut by the end of the connection."""
        answer = self.grpc.answers[stream_id]
        while not answer.ended and answer.reset is None and not self.ended:
            await self.change()
        return answer

    async def unary(self, path: str, message: bytes = b"", **given: Any) -> Answer:
        """A whole call."""
        return await self.answer(await self.call(path, message, **given))

    async def change(self) -> None:
        """Wait until something has arrived."""
        self.changed = trio.Event()
        await self.changed.wait()

    async def end(self) -> None:
        """Wait until the server has closed the connection."""
        while not self.ended:
            await self.change()

    async def read(self) -> None:
        """Read until the connection ends."""
        try:
            while data := await self.stream.receive_some(65_536):
                self.grpc.receive(bytes(data))
                await self.send()
                self.changed.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.ended = True
        self.changed.set()


class Serving:
    """A running server.

    Attributes:
        cancelled: paths of methods that were cancelled.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.listener = MemoryListener()
        self.counters = GrpcCounters()
        self.drain = trio.Event()
        self.stopped = trio.Event()
        self.cancelled: list[str] = []
        self.calls: list[Call] = []
        self._nursery = nursery

    async def connect(self, *, first: bytes = b"", tls: ssl.SSLContext | None = None) -> Connected:
        """A client that sends ``first``, shakes hands if it uses TLS, and reads what comes."""
        stream: trio.abc.Stream = await self.listener.connect()
        if first:
            await stream.send_all(first)
        if tls is not None:
            secured = trio.SSLStream(stream, tls, server_hostname="localhost", https_compatible=True)
            await secured.do_handshake()
            stream = secured
        client = Connected(stream)
        self._nursery.start_soon(client.read)
        await client.send()
        return client

    async def echo(self, call: Call) -> None:
        """Send back each message."""
        self.calls.append(call)
        while (message := await call.receive()) is not None:
            await call.send(message)

    async def refuse(self, call: Call) -> None:
        """Refuse with the status that the message names."""
        message = await call.receive()
        assert message is not None
        raise CallRefused(Status[message.decode()], "as asked")

    async def wait(self, call: Call) -> None:
        """Never end by itself."""
        self.calls.append(call)
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled.append(call.path)

    async def large(self, call: Call) -> None:
        """Answer with as many bytes as the message says."""
        await call.send(bytes(int(await call.receive() or b"0")))

    async def fail(self, call: Call) -> None:
        """Have a bug."""
        raise RuntimeError("a bug of this method")

    def methods(self) -> dict[str, Method]:
        """By path."""
        named = {"Echo": self.echo, "Refuse": self.refuse, "Wait": self.wait, "Large": self.large, "Fail": self.fail}
        return {f"/raftmq.Test/{name}": method for name, method in named.items()}


@asynccontextmanager
async def serving(
    limits: GrpcLimits | None = None,
    *,
    tls: TlsContext | None = None,
    methods: Mapping[str, Method] | None = None,
    listeners: Sequence[trio.SocketListener] = (),
    **given: Any,
) -> AsyncIterator[Serving]:
    """A server that runs within the block."""
    async with trio.open_nursery() as nursery:
        server = Serving(nursery)

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            await serve_grpc(
                [server.listener, *listeners],
                {**server.methods(), **(methods or {})},
                limits=limits or GrpcLimits(),
                tls=tls,
                log=structlog.get_logger(),
                counters=server.counters,
                drain=server.drain,
                task_status=task_status,
                **given,
            )
            server.stopped.set()

        await nursery.start(serve)
        yield server
        nursery.cancel_scope.cancel()
