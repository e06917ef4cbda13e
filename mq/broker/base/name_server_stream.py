"""Connections of a broker to its name servers, with or without TLS."""

from __future__ import annotations

import ssl

import trio

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


async def open_stream(address: tuple[str, int], tls: ssl.SSLContext | None) -> Stream:
    """Connect to a name server; with ``tls`` its certificate must match the host name in the address.

    Raises OSError if the connection or the TLS handshake fails.
    """
    stream = await trio.open_tcp_stream(*address)
    if tls is None:
        return stream
    secured = trio.SSLStream(stream, tls, server_hostname=address[0], https_compatible=True)
    try:
        await secured.do_handshake()
    except (trio.BrokenResourceError, ssl.SSLError) as error:
        await trio.aclose_forcefully(secured)
        cause = error.__cause__ or error
        raise OSError(f"TLS failed: {cause}") from error
    return secured
