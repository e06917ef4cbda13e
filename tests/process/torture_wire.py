"""Raw connections to brokers, and what these say of themselves."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import trio

from mq.cli.dev_cluster import HOST
from mq.protocol.bodies import KVTable
from mq.protocol.codes import RequestCode
from mq.protocol.frames import split_frames
from mq.protocol.headers import Response, decode_header, encode_request

HEAL_SECONDS_MAX = 60.0

OnAnswer = Callable[[Response, bytes], None]


class Processes(Protocol):
    """Brokers that run on this machine."""

    def port(self, node_id: str) -> int:
        """Where clients reach a broker."""
        ...

    def check(self) -> None:
        """Raises DevClusterFailed if one has ended that nobody stopped."""
        ...


class Wire:
    """A raw connection to one broker: requests leave without waiting, answers are handed to callbacks."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._opaque = itertools.count(1)
        self._waiting: dict[int, OnAnswer] = {}

    async def post(self, code: int, ext: dict[str, Any] | None, on_answer: OnAnswer, body: bytes = b"") -> None:
        """Send a request."""
        opaque = next(self._opaque)
        self._waiting[opaque] = on_answer
        fields = None if ext is None else {name: str(value) for name, value in ext.items()}
        await self._stream.send_all(encode_request(code, opaque, ext=fields, body=body))

    async def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> tuple[Response, bytes]:
        """Send a request and wait for its answer."""
        done = trio.Event()
        answers: list[tuple[Response, bytes]] = []

        def take(response: Response, body: bytes) -> None:
            answers.append((response, body))
            done.set()

        await self.post(code, ext, take, body)
        await done.wait()
        return answers[0]

    async def read(self) -> None:
        """Hand out answers until the connection ends."""
        received = bytearray()
        try:
            while chunk := await self._stream.receive_some():
                received += chunk
                frames, consumed = split_frames(memoryview(bytes(received)))
                del received[:consumed]
                for serialization, header, body in frames:
                    answer = decode_header(serialization, header)
                    if isinstance(answer, Response):
                        self._waiting.pop(answer.opaque)(answer, bytes(body))
        except trio.BrokenResourceError:
            pass


@asynccontextmanager
async def wired(port: int) -> AsyncIterator[Wire]:
    """A `Wire` to a local port; the block is cancelled when the connection ends. Raises OSError."""
    stream = await trio.open_tcp_stream(HOST, port)
    async with stream, trio.open_nursery() as nursery:
        wire = Wire(stream)

        async def read() -> None:
            await wire.read()
            nursery.cancel_scope.cancel()

        nursery.start_soon(read)
        yield wire
        nursery.cancel_scope.cancel()


async def figures(cluster: Processes, node: str, seconds: float = 1.0) -> dict[str, str] | None:
    """What a broker says of itself, or None if it does not answer in time."""
    table: dict[str, str] | None = None
    with trio.move_on_after(seconds):
        try:
            async with wired(cluster.port(node)) as wire:
                _, body = await wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
                table = KVTable.decode(body).table
        except* (OSError, trio.BrokenResourceError):
            pass
    return table


async def leader_of(cluster: Processes, nodes: Callable[[], Iterable[str]]) -> str:
    """Who leads in the highest term, once there is one. Raises trio.TooSlowError."""
    with trio.fail_after(HEAL_SECONDS_MAX):
        while True:
            cluster.check()
            leaders: list[tuple[int, str]] = []
            for node in nodes():
                if (table := await figures(cluster, node)) and table["raftmq.role"] == "leader":
                    leaders.append((int(table["raftmq.term"]), node))
            if leaders:
                return max(leaders)[1]
            await trio.sleep(0.1)
