"""A minimal NATS client that appends to a stream and reads it back: one request at a time."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

STREAM = "LOG"
SUBJECT = "jepsen.log"
NOT_FOUND = 404
"""JetStream's code for an unknown stream or message."""
_INBOX = "_INBOX.jepsen"
_END = b"\r\n"


class NatsError(Exception):
    """JetStream refused; ``code`` is an HTTP status."""

    def __init__(self, code: int, told: str) -> None:
        super().__init__(f"{code}: {told}")
        self.code = code


class NatsClient:
    """A connection to one server; made by `open_nats`. Each method raises trio.BrokenResourceError when it breaks."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._received = bytearray()
        self._asked = 0

    async def connect(self) -> None:
        """Send CONNECT, and subscribe to answers. Raises `NatsError`."""
        info = await self._line()
        if not info.startswith(b"INFO "):
            raise NatsError(0, f"no NATS server: {info[:40]!r}")
        about = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "jepsen"}
        await self._send(b"CONNECT " + json.dumps(about).encode() + _END + f"SUB {_INBOX}.* 1".encode() + _END)

    async def append(self, body: bytes) -> int:
        """Append a message to the stream; returns its sequence number, from 1. Raises `NatsError`."""
        return int((await self._ask(SUBJECT, body))["seq"])

    async def create_stream(self, replicas: int) -> None:
        """Create the stream, in files. Raises `NatsError`."""
        settings = {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "num_replicas": replicas}
        await self._ask(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(settings).encode())

    async def stream_state(self) -> tuple[int, int, int]:
        """First and last sequence number of the stream, and how many replicas follow its leader. Raises `NatsError`."""
        info = await self._ask(f"$JS.API.STREAM.INFO.{STREAM}", b"")
        followers = [each for each in info.get("cluster", {}).get("replicas") or () if each.get("current")]
        state = info["state"]
        return int(state["first_seq"]), int(state["last_seq"]), len(followers)

    async def stream_leader(self) -> str | None:
        """The name of the server that leads the stream; None while there is none. Raises `NatsError`."""
        info = await self._ask(f"$JS.API.STREAM.INFO.{STREAM}", b"")
        leader: str | None = info.get("cluster", {}).get("leader")
        return leader

    async def read(self, sequence: int) -> bytes | None:
        """The body of a message, from the stream's leader; None if there is none. Raises `NatsError`."""
        try:
            answer = await self._ask(f"$JS.API.STREAM.MSG.GET.{STREAM}", json.dumps({"seq": sequence}).encode())
        except NatsError as error:
            if error.code == NOT_FOUND:
                return None
            raise
        return base64.b64decode(answer["message"].get("data", ""))

    async def _ask(self, subject: str, body: bytes) -> dict[str, Any]:
        self._asked += 1
        inbox = f"{_INBOX}.{id(self)}-{self._asked}"
        await self._send(f"PUB {subject} {inbox} {len(body)}".encode() + _END + body + _END)
        while True:
            verb, _, rest = (await self._line()).partition(b" ")
            if verb == b"PING":
                await self._send(b"PONG" + _END)
            elif verb == b"-ERR":
                raise NatsError(0, rest.decode())
            elif verb in (b"MSG", b"HMSG"):
                fields = rest.decode().split()
                payload = await self._bytes(int(fields[-1]) + len(_END))
                if fields[0] == inbox:
                    return _answer(payload[: -len(_END)], int(fields[-2]) if verb == b"HMSG" else 0)

    async def _send(self, what: bytes) -> None:
        await self._stream.send_all(what)

    async def _line(self) -> bytes:
        while (end := self._received.find(_END)) < 0:
            await self._receive()
        line = bytes(self._received[:end])
        del self._received[: end + len(_END)]
        return line

    async def _bytes(self, count: int) -> bytes:
        while len(self._received) < count:
            await self._receive()
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    async def _receive(self) -> None:
        chunk = await self._stream.receive_some()
        if not chunk:
            raise trio.BrokenResourceError("the server hung up")
        self._received += chunk


def _answer(payload: bytes, header_bytes: int) -> dict[str, Any]:
    """JSON behind headers; an error in either raises `NatsError`."""
    if header_bytes:  # "NATS/1.0 503": no responders
        status = payload.split(_END, 1)[0].decode().split(" ", 1)[-1]
        code = status.split()[0]
        if code.isdigit():
            raise NatsError(int(code), "nobody answers" if code == "503" else status)
    answer: dict[str, Any] = json.loads(payload[header_bytes:])
    if (error := answer.get("error")) is not None:
        raise NatsError(int(error["code"]), str(error.get("description", "")))
    return answer


@asynccontextmanager
async def open_nats(host: str, port: int) -> AsyncIterator[NatsClient]:
    """A client of one server until the block ends. Raises OSError, trio.BrokenResourceError, NatsError."""
    stream = await trio.open_tcp_stream(host, port)
    async with stream:
        client = NatsClient(stream)
        await client.connect()
        yield client
