"""Sends raw requests to brokers, and asks them for their runtime info."""

from __future__ import annotations

import functools
import itertools
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from mq.client.net.credentials import TLS_CA_VARIABLE, Credentials, tls_from_environment
from mq.protocol.codes import RequestCode
from mq.protocol.frames import JSON, split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.names import AUTO_CREATE_TEMPLATE
from mq.protocol.requests.broker import KVTable
from mq.protocol.requests.send import SendExt
from mq.protocol.wire.encoding import encode_request

OnResponse = Callable[[Response, bytes], None]

_PULL_SUBSCRIPTION = 4


class Wire:
    """A raw connection to one broker. It sends requests at once, and passes each response to a callback."""

    def __init__(self, stream: trio.abc.Stream, credentials: Credentials | None = None) -> None:
        self._stream = stream
        self._credentials = credentials
        self._opaque = itertools.count(1)
        self._callbacks: dict[int, OnResponse] = {}
        self._send_lock = trio.Lock()

    def frame(
        self,
        code: int,
        ext: dict[str, Any] | None,
        on_response: OnResponse | None,
        body: bytes = b"",
        *,
        serialization: int = JSON,
    ) -> bytes:
        """Encode a request, which the caller sends with `write`. Without ``on_response``, it asks for no response."""
        opaque = next(self._opaque)
        if on_response is not None:
            self._callbacks[opaque] = on_response
        fields = None if ext is None else {name: str(value) for name, value in ext.items()}
        if self._credentials is not None:
            fields = self._credentials.sign(code, fields, body)
        oneway = on_response is None
        return encode_request(code, opaque, ext=fields, body=body, oneway=oneway, serialization=serialization)

    async def write(self, data: bytes) -> None:
        """Send bytes unchanged. Raises trio.BrokenResourceError."""
        async with self._send_lock:
            await self._stream.send_all(data)

    async def post(self, code: int, ext: dict[str, Any] | None, on_response: OnResponse, body: bytes = b"") -> None:
        """Send a request. Raises trio.BrokenResourceError."""
        await self.write(self.frame(code, ext, on_response, body))

    async def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> tuple[Response, bytes]:
        """Send a request and wait for its response. Raises trio.BrokenResourceError."""
        event = trio.Event()
        responses: list[tuple[Response, bytes]] = []

        def on_response(response: Response, body: bytes) -> None:
            responses.append((response, body))
            event.set()

        await self.post(code, ext, on_response, body)
        await event.wait()
        return responses[0]

    async def read(self) -> None:
        """Pass each response to its callback until the connection ends."""
        data = bytearray()
        try:
            while chunk := await self._stream.receive_some():
                data += chunk
                frames, end = split_frames(memoryview(bytes(data)))
                del data[:end]
                for serialization, header, body in frames:
                    response = decode_header(serialization, header)
                    if isinstance(response, Response):
                        self._callbacks.pop(response.opaque)(response, bytes(body))
        except trio.BrokenResourceError:
            pass


@asynccontextmanager
async def open_wire(host: str, port: int) -> AsyncIterator[Wire]:
    """Open a `Wire` to a broker. The end of the connection cancels the block. Raises OSError.

    It uses TLS and signs requests if the environment says so, as the SDK does.
    """
    credentials, tls = Credentials.from_environment(), _tls(os.environ.get(TLS_CA_VARIABLE))
    stream: trio.abc.Stream = await trio.open_tcp_stream(host, port)
    if tls is not None:
        stream = trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)
    async with stream, trio.open_nursery() as nursery:
        wire = Wire(stream, credentials)

        async def read() -> None:
            await wire.read()
            nursery.cancel_scope.cancel()

        nursery.start_soon(read)
        yield wire
        nursery.cancel_scope.cancel()


@functools.cache
def _tls(authority: str | None) -> ssl.SSLContext | None:
    """The TLS context of all connections; ``authority`` is the file of the environment, which differs between runs."""
    return tls_from_environment()


async def ask_figures(host: str, port: int, seconds: float = 1.0) -> dict[str, str] | None:
    """Ask a broker for its runtime info; None if it does not respond in time."""
    table: dict[str, str] | None = None
    with trio.move_on_after(seconds):
        try:
            async with open_wire(host, port) as wire:
                _, body = await wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
                table = KVTable.decode(body).table
        except* (OSError, trio.BrokenResourceError):
            pass
    return table


def send_fields(topic: str, queue_id: int, properties: str, group: str = "jepsen", **other: Any) -> dict[str, str]:
    """The fields of SEND_MESSAGE_V2 for a plain message; ``properties`` are encoded, ``other`` fields of `SendExt`
    differ.
    """
    fields: dict[str, Any] = {
        "default_topic": AUTO_CREATE_TEMPLATE,
        "default_topic_queue_nums": 4,
        "sys_flag": 0,
        "flag": 0,
    }
    fields |= {"topic": topic, "queue_id": queue_id, "born_timestamp_ms": 1_700_000_000_000, "properties": properties}
    return SendExt(producer_group=group, **(fields | other)).fields()


def pull_fields(topic: str, queue_id: int, offset: int, count_max: int = 32) -> dict[str, Any]:
    """Return the fields of PULL_MESSAGE for a pull that neither waits for messages nor commits an offset."""
    return {
        "consumerGroup": "jepsen_readers",
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": count_max,
        "sysFlag": _PULL_SUBSCRIPTION,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subVersion": 0,
        "subscription": "*",
    }


async def ask_once(
    address: tuple[str, int], code: int, ext: dict[str, Any], body: bytes = b"", seconds: float = 5.0
) -> tuple[Response, bytes] | None:
    """Send one request over a new connection. None if no response came in time: the outcome is unknown."""
    response = None
    with trio.move_on_after(seconds):
        try:
            async with open_wire(*address) as wire:
                response = await wire.ask(code, ext, body)
        except* (OSError, trio.BrokenResourceError):
            pass
    return response
