"""Forwards frames between a client and a server, and injects faults."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable

import trio

from mq.protocol.errors import ProtocolError
from mq.protocol.frames import split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.wire.encoding import encode_response
from mq.testing.faults import Faults, Kind

_RECEIVE_BYTES = 64 * 1024


class _Frames:
    """Splits received bytes into whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[tuple[bytes, int, bytes]]:
        """Return each complete frame, with the encoding of its header, and its header. Raises ProtocolError."""
        self._buffer += chunk
        frames, consumed_bytes = split_frames(memoryview(bytes(self._buffer)))
        parts = []
        at = 0
        for serialization, header, _ in frames:
            end = at + 4 + int.from_bytes(self._buffer[at : at + 4], "big")
            parts.append((bytes(self._buffer[at:end]), serialization, bytes(header)))
            at = end
        del self._buffer[:consumed_bytes]
        return parts


class Relay:
    """Relays one connection of a client. ``client`` and ``server`` are its ends of two socket pairs.

    ``on_heard`` is called whenever either of them sends something.
    """

    def __init__(
        self, client: socket.socket, server: socket.socket, faults: Faults, on_heard: Callable[[], None]
    ) -> None:
        self._on_heard = on_heard
        self._client = trio.SocketStream(trio.socket.from_stdlib_socket(client))
        self._server = trio.SocketStream(trio.socket.from_stdlib_socket(server))
        self._faults = faults
        self._open_requests: set[int] = set()
        """Requests whose answers break the connection."""
        self._swallowed_counts: Counter[int] = Counter()
        """Requests whose next answer goes nowhere."""
        self._to_client = trio.Lock()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Forward requests and answers until one side closes, or a fault breaks the connection."""
        async with self._client, self._server:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._forward_requests)
                    nursery.start_soon(self._forward_answers, nursery)

    async def _forward_requests(self) -> None:
        frames = _Frames()
        try:
            while chunk := await self._client.receive_some(_RECEIVE_BYTES):
                self._on_heard()
                for frame, serialization, header in frames.feed(chunk):
                    await self._forward_request(frame, serialization, header)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ProtocolError):
            pass
        self._scope.cancel()

    async def _forward_request(self, frame: bytes, serialization: int, header: bytes) -> None:
        fault, opaque = None, 0
        if self._faults.pending:
            request = decode_header(serialization, memoryview(header))
            if not isinstance(request, Response):
                fault, opaque = self._faults.next_fault(request.code), request.opaque
        if fault is None:
            await self._server.send_all(frame)
            return
        match fault.kind:
            case Kind.UNKNOWN:
                self._open_requests.add(opaque)
                await self._server.send_all(frame)
            case Kind.LOST:
                self._scope.cancel()
                await trio.lowlevel.checkpoint()
            case Kind.TWICE:
                self._swallowed_counts[opaque] += 1
                await self._server.send_all(frame + frame)
            case Kind.REFUSED:
                response = encode_response(opaque, fault.code, remark=fault.remark, serialization=serialization)
                await self._send_to_client(response)

    async def _forward_answers(self, nursery: trio.Nursery) -> None:
        frames = _Frames()
        try:
            while chunk := await self._server.receive_some(_RECEIVE_BYTES):
                self._on_heard()
                for frame, serialization, header in frames.feed(chunk):
                    if self._is_lost(serialization, header):
                        continue
                    if seconds := self._faults.delay_seconds:
                        nursery.start_soon(self._send_late, frame, seconds)
                    else:
                        await self._send_to_client(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ProtocolError):
            pass
        self._scope.cancel()

    def _is_lost(self, serialization: int, header: bytes) -> bool:
        """Return whether a fault drops this answer."""
        if not self._open_requests and not self._swallowed_counts:
            return False
        response = decode_header(serialization, memoryview(header))
        if not isinstance(response, Response):
            return False
        if response.opaque in self._open_requests:
            self._scope.cancel()
            return True
        if self._swallowed_counts[response.opaque] > 0:
            self._swallowed_counts[response.opaque] -= 1
            return True
        del self._swallowed_counts[response.opaque]
        return False

    async def _send_late(self, frame: bytes, seconds: float) -> None:
        await trio.sleep(seconds)
        try:
            await self._send_to_client(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._scope.cancel()

    async def _send_to_client(self, frame: bytes) -> None:
        async with self._to_client:
            await self._client.send_all(frame)
