"""A gRPC client with one HTTP/2 connection. It never retries, so histories record exactly the proxy's responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_HEAD_BYTES: Final = 5
_OK: Final = "0"


class CallFailed(Exception):
    """A call got no response: its status was an error, its stream was reset, or its connection ended."""


class _GrpcResponse:
    def __init__(self) -> None:
        self.body = bytearray()
        self.status: str | None = None
        self.text = ""
        self.ended = trio.Event()


class GrpcConnection:
    """A connection to a proxy; `open_grpc` makes it."""

    def __init__(self, stream: trio.SocketStream, client_id: str) -> None:
        self._stream = stream
        self._client_id = client_id
        self._http2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._http2.initiate_connection()
        self._responses: dict[int, _GrpcResponse] = {}
        self._send_lock = trio.Lock()
        self._lost = False

    async def call(self, method: str, request: bytes, seconds: float) -> list[bytes]:
        """Send a request, and return the messages of the response. Raises CallFailed; the proxy may have done it."""
        response, stream_id = _GrpcResponse(), 0
        try:
            with trio.fail_after(seconds):
                stream_id = self._http2.get_next_available_stream_id()
                self._responses[stream_id] = response
                self._http2.send_headers(stream_id, self._headers(method, seconds))
                data = b"\0" + len(request).to_bytes(4, "big") + request
                size = self._http2.max_outbound_frame_size
                for at in range(0, len(data), size):
                    self._http2.send_data(stream_id, data[at : at + size], end_stream=at + size >= len(data))
                await self._flush()
                await response.ended.wait()
        except (ProtocolError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
            raise CallFailed(f"{method}: {error!r}") from error
        finally:
            self._responses.pop(stream_id, None)
        if response.status != _OK:
            raise CallFailed(f"{method}: status {response.status}: {response.text}")
        return _messages(bytes(response.body))

    def _headers(self, method: str, seconds: float) -> list[tuple[str, str]]:
        return [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", SERVICE + method),
            (":authority", "proxy"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-timeout", f"{round(1000 * seconds)}m"),
            ("x-mq-client-id", self._client_id),
            ("x-mq-client-version", "5.1.2"),
        ]

    async def read(self) -> None:
        """Read responses until the connection ends; then all open calls fail."""
        try:
            await self._flush()
            while data := await self._stream.receive_some(65536):
                for event in self._http2.receive_data(data):
                    self._handle(event)
                await self._flush()
        except (ProtocolError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._lost = True
            for response in self._responses.values():
                response.text = response.text or "the connection has ended"
                response.ended.set()

    @property
    def is_lost(self) -> bool:
        """Whether the connection is lost, so that no call can succeed."""
        return self._lost

    async def _flush(self) -> None:
        async with self._send_lock:
            if data := self._http2.data_to_send():
                await self._stream.send_all(data)

    def _handle(self, event: Event) -> None:
        response = self._responses.get(getattr(event, "stream_id", 0) or 0)
        match event:
            case DataReceived():
                if event.flow_controlled_length:
                    self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if response is not None:
                    response.body += event.data or b""
            case ResponseReceived() | TrailersReceived() if response is not None:
                headers = {str(name): str(value) for name, value in event.headers or ()}
                response.status = headers.get("grpc-status", response.status)
                response.text = headers.get("grpc-message", response.text)
            case StreamEnded() | StreamReset() if response is not None:
                response.ended.set()
            case _:
                pass


@asynccontextmanager
async def open_grpc(port: int, client_id: str) -> AsyncIterator[GrpcConnection]:
    """Connect to a proxy on this machine until the block ends. Raises OSError."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream, trio.open_nursery() as nursery:
        connection = GrpcConnection(stream, client_id)
        nursery.start_soon(connection.read)
        yield connection
        nursery.cancel_scope.cancel()


def _messages(body: bytes) -> list[bytes]:
    messages, at = [], 0
    while at < len(body):
        end = at + _HEAD_BYTES + int.from_bytes(body[at + 1 : at + _HEAD_BYTES], "big")
        messages.append(body[at + _HEAD_BYTES : end])
        at = end
    return messages
