"""Serves connections with and without TLS on one port: tells them apart by their first byte.

For servers on trio's streams; those with sockets on a reactor have `raftlog.net.tls_sniffing`.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Final, Literal

import trio

TlsMode = Literal["disabled", "permissive", "enforcing"]
"""Clients must not, may, or must use TLS; `permissive` serves both on the same port."""

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]

_HANDSHAKE: Final = b"\x16"


class TlsFailed(Exception):
    """The TLS handshake with a peer failed. The message says why."""


async def secure(stream: trio.SocketStream, context: ssl.SSLContext, *, must: bool) -> Stream:
    """Return a TLS stream if the peer uses TLS, else the stream itself, unless the peer ``must`` use TLS.

    Raises TlsFailed.
    """
    try:
        first = await stream.socket.recv(1, socket.MSG_PEEK)
    except OSError as error:
        raise TlsFailed(error.strerror or str(error)) from error
    if first != _HANDSHAKE:
        if must and first:
            raise TlsFailed("the peer does not use TLS")
        return stream
    tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
    try:
        await tls.do_handshake()
    except (trio.BrokenResourceError, ssl.SSLError) as error:
        cause = error.__cause__ or error
        reason = cause.reason if isinstance(cause, ssl.SSLError) else None
        raise TlsFailed((reason or str(cause) or "the peer closed the connection").replace("_", " ").lower()) from error
    return tls


def check_tls(name: str, mode: TlsMode, certificate: Path | None, key: Path | None) -> None:
    """Raise ValueError unless the setting ``name`` is consistent with the other settings."""
    if mode != "disabled" and (certificate is None or key is None):
        raise ValueError(f"{name} = {mode!r} needs tls_certificate and tls_key")
