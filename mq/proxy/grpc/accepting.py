"""Starts accepted connections: reads the header of HAProxy's protocol, and does the TLS handshake."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

import trio

from mq.proxy.grpc.certificate import ALPN, TlsContext
from mq.proxy.grpc.first_bytes import (
    TLS_HANDSHAKE,
    Addresses,
    BadProxyHeader,
    may_be_proxy_header,
    parse_proxy_header,
)

RECEIVE_BYTES: Final = 64 * 1024

Trusts = Callable[[str], bool]
"""Whether the host with this address may name other addresses, in a header of HAProxy's protocol."""


class HandshakeFailed(Exception):
    """An accepted connection never reached HTTP/2; the message says why."""


class AcceptedConnection(NamedTuple):
    """A connection that has finished its handshakes: all its bytes are HTTP/2.

    Attributes:
        peer: ``host:port`` of the client.
        local_address: to which it connected.
        secure: it uses TLS.
    """

    stream: trio.abc.Stream
    peer: str
    local_address: tuple[str, int]
    secure: bool


class ReadAhead(trio.abc.Stream):
    """A stream whose first bytes were read already."""

    def __init__(self, stream: trio.abc.Stream, data: bytes) -> None:
        self._stream = stream
        self._data = data

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive bytes, as trio's streams do."""
        if self._data:
            await trio.lowlevel.checkpoint_if_cancelled()
            nbytes = len(self._data) if max_bytes is None else max_bytes
            data, self._data = self._data[:nbytes], self._data[nbytes:]
            return data
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all bytes, as trio's streams do."""
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait for room to send, as trio's streams do."""
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:  # noqa: ASYNC910 - TLS has no such end, and nothing is sent
        """Send no more, and tell the peer if the stream can."""
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the stream, as trio's streams do."""
        await self._stream.aclose()


async def accept(stream: trio.abc.Stream, tls: TlsContext | None, trusts: Trusts) -> AcceptedConnection:
    """Detect the client's protocol and do the handshakes. Raises HandshakeFailed. The caller limits time and closes."""
    addresses, data = _socket_addresses(stream), b""
    try:
        data = bytes(await stream.receive_some(RECEIVE_BYTES))
        if data and may_be_proxy_header(data):
            data, proxy_addresses = await _read_proxy_header(stream, data, trusts(addresses.client[0]))
            addresses = proxy_addresses or addresses
            data = data or bytes(await stream.receive_some(RECEIVE_BYTES))
        if not data:
            raise HandshakeFailed("the client closed the connection")
        secure = data[0] == TLS_HANDSHAKE
        client_stream: trio.abc.Stream = ReadAhead(stream, data)
        if secure:
            client_stream = await _shake_hands(client_stream, tls)
    except (trio.BrokenResourceError, OSError) as error:
        raise HandshakeFailed(f"the connection broke: {error.__cause__ or error}") from error
    host, port = addresses.client
    return AcceptedConnection(
        client_stream, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", addresses.server, secure
    )


async def _read_proxy_header(stream: trio.abc.Stream, data: bytes, trusted: bool) -> tuple[bytes, Addresses | None]:
    """Read the HAProxy header. Returns the bytes after it, and the addresses in it."""
    while True:
        try:
            header = parse_proxy_header(data)
        except BadProxyHeader as error:
            raise HandshakeFailed(f"a bad HAProxy header: {error}") from error
        if header is not None:
            if not trusted:
                raise HandshakeFailed("an HAProxy header came from an address that may not send one")
            return data[header.nbytes :], header.addresses  # noqa: ASYNC910 - the first bytes, which were waited for, have all of the header
        more = await stream.receive_some(RECEIVE_BYTES)
        if not more:
            raise HandshakeFailed("the client closed the connection within an HAProxy header")
        data += more
        if not may_be_proxy_header(data):
            return data, None


async def _shake_hands(stream: trio.abc.Stream, tls: TlsContext | None) -> trio.abc.Stream:
    if tls is None:
        raise HandshakeFailed("the client uses TLS, and this server has no certificate")
    tls_stream = trio.SSLStream(stream, tls.context(), server_side=True, https_compatible=True)
    try:
        await tls_stream.do_handshake()
    except (trio.BrokenResourceError, ssl.SSLError) as error:
        cause = error.__cause__ or error
        reason = cause.reason if isinstance(cause, ssl.SSLError) else None
        raise HandshakeFailed(
            "TLS: " + (reason or str(cause) or "the client left").replace("_", " ").lower()
        ) from error
    protocol = tls_stream.selected_alpn_protocol()
    if protocol not in (ALPN, None):
        raise HandshakeFailed(f"TLS: ALPN chose {protocol!r}; this server supports only {ALPN!r}")
    return tls_stream


def _socket_addresses(stream: trio.abc.Stream) -> Addresses:
    """Return the addresses of a socket; none for a stream in memory."""
    socket = getattr(stream, "socket", None)
    if socket is None:
        return Addresses(("memory", 0), ("", 0))
    try:
        client, server = socket.getpeername(), socket.getsockname()
    except OSError as error:
        raise HandshakeFailed(f"the client closed the connection: {error.strerror}") from error
    return Addresses(_host_and_port(client), _host_and_port(server))


def _host_and_port(address: object) -> tuple[str, int]:
    match address:
        case (str(host), int(port), *_):
            return host, port
        case _:
            return "unix", 0
