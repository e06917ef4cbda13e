"""Connections of peers with or without TLS, distinguished by the first byte."""

from __future__ import annotations

import socket
import ssl
from typing import Final

import trio

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]

_HANDSHAKE: Final = b"\x16"


class TlsFailed(Exception):
    """The TLS handshake with this peer failed; the message says why."""


async def secured(stream: trio.SocketStream, context: ssl.SSLContext, *, must: bool) -> Stream:
    """The stream itself for a peer without TLS, unless it ``must`` use it; a TLS stream for one with TLS.

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
