"""Sets up NATS JetStream for benchmarks: the configuration of a server, and a client that creates the stream."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from mq.local_cluster import HOST

STREAM = "LOG"
SUBJECT = "bench.log"
DEFAULT = "default"
"""The name for a server's default `sync_interval`."""
_INBOX = "_INBOX.bench"
_END = b"\r\n"


class NatsError(Exception):
    """JetStream refused a request. ``code``: an HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class NatsClient:
    """A connection to one server; `open_nats` makes it. Methods raise trio.BrokenResourceError if it breaks."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._request_count = 0

    async def connect(self) -> None:
        """Send CONNECT, and subscribe to responses. Raises `NatsError`."""
        info = await self._line()
        if not info.startswith(b"INFO "):
            raise NatsError(0, f"no NATS server: {info[:40]!r}")
        about = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "bench"}
        await self._send(b"CONNECT " + json.dumps(about).encode() + _END + f"SUB {_INBOX}.* 1".encode() + _END)

    async def create_stream(self, replicas: int) -> None:
        """Create the stream, which is stored in files. Raises `NatsError`."""
        settings = {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "num_replicas": replicas}
        await self._ask(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(settings).encode())

    async def stream_state(self) -> tuple[str | None, int]:
        """Return the server that leads the stream, if any, and the number of its followers. Raises `NatsError`."""
        cluster = (await self._ask(f"$JS.API.STREAM.INFO.{STREAM}", b"")).get("cluster", {})
        followers = [each for each in cluster.get("replicas") or () if each.get("current")]
        return cluster.get("leader"), len(followers)

    async def _ask(self, subject: str, body: bytes) -> dict[str, Any]:
        self._request_count += 1
        inbox = f"{_INBOX}.{id(self)}-{self._request_count}"
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
        while (end := self._buffer.find(_END)) < 0:
            await self._receive()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + len(_END)]
        return line

    async def _bytes(self, count: int) -> bytes:
        while len(self._buffer) < count:
            await self._receive()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    async def _receive(self) -> None:
        chunk = await self._stream.receive_some()
        if not chunk:
            raise trio.BrokenResourceError("the server hung up")
        self._buffer += chunk


def _answer(payload: bytes, header_bytes: int) -> dict[str, Any]:
    """Decode the JSON behind the headers; an error in either raises `NatsError`."""
    if header_bytes:  # "NATS/1.0 503": no responders
        status = payload.split(_END, 1)[0].decode().split(" ", 1)[-1]
        code = status.split()[0]
        if code.isdigit():
            raise NatsError(int(code), "nobody answers" if code == "503" else status)
    response: dict[str, Any] = json.loads(payload[header_bytes:])
    if (error := response.get("error")) is not None:
        raise NatsError(int(error["code"]), str(error.get("description", "")))
    return response


@asynccontextmanager
async def open_nats(host: str, port: int) -> AsyncIterator[NatsClient]:
    """Connect to one server until the block ends. Raises OSError, trio.BrokenResourceError, NatsError."""
    stream = await trio.open_tcp_stream(host, port)
    async with stream:
        client = NatsClient(stream)
        await client.connect()
        yield client


def configuration(
    node: str,
    ports: Mapping[str, tuple[int, int]],
    store: Path,
    sync_interval: str,
    file_bytes_max: str,
) -> str:
    """Return the configuration of a server. ``ports``: those for clients, and those for routes, by node."""
    routes = ", ".join(f'"nats://{HOST}:{route}"' for other, (_, route) in ports.items() if other != node)
    sync = "" if sync_interval == DEFAULT else f"\n  sync_interval: {sync_interval}"
    return f"""server_name: {node}
listen: "{HOST}:{ports[node][0]}"
jetstream {{
  store_dir: "{store}"
  max_mem: 64MB
  max_file: {file_bytes_max}{sync}
}}
cluster {{
  name: bench
  listen: "{HOST}:{ports[node][1]}"
  routes: [{routes}]
}}
"""


def version_of(program: str) -> str:
    """Return the version of ``program``, such as "2.9.10". Raises OSError, subprocess.CalledProcessError."""
    output = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return output.strip().rpartition(" ")[2].removeprefix("v")
