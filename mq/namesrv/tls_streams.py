"""Connections to a name server whose peers use TLS or not: their first byte tells."""

from __future__ import annotations

import socket
import ssl
from typing import Final

import trio

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]

_HANDSHAKE: Final = b"\x16"


class TlsFailed(Exception):
    """There is no TLS connection to be had with this peer; why is in the message."""


async def secured(stream: trio.SocketStream, context: ssl.SSLContext, *, must: bool) -> Stream:
    """The stream itself for a peer that does not use TLS, unless it ``must``; a TLS stream for one that does.

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
