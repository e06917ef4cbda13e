"""Connects a broker to its name servers, with or without TLS, and receives their responses."""

from __future__ import annotations

import ssl

import trio

from mq.protocol.frames import split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from raftlog import this_machine

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


async def open_stream(address: tuple[str, int], tls: ssl.SSLContext | None) -> Stream:
    """Connect to a name server. With ``tls``, its certificate must match the host name in the address.

    Raises OSError if the connection or the TLS handshake fails.
    """
    stream = await this_machine().open_stream(address)
    if tls is None:
        return stream
    tls_stream = trio.SSLStream(stream, tls, server_hostname=address[0], https_compatible=True)
    try:
        await tls_stream.do_handshake()
    except (trio.BrokenResourceError, ssl.SSLError) as error:
        await trio.aclose_forcefully(tls_stream)
        cause = error.__cause__ or error
        raise OSError(f"TLS failed: {cause}") from error
    return tls_stream


async def receive_response(stream: Stream, opaque: int) -> tuple[Response, memoryview]:
    """Return the header and the body of the response to request ``opaque``, ignoring other frames.

    Raises ProtocolError, trio.BrokenResourceError, and OSError if the name server closes the connection.
    """
    buffer = bytearray()
    while True:
        chunk = await stream.receive_some(65536)
        if not chunk:
            raise OSError("the name server closed the connection")
        buffer += chunk
        frames, _ = split_frames(memoryview(bytes(buffer)))
        for serialization, header, body in frames:
            response = decode_header(serialization, header)
            if isinstance(response, Response) and response.opaque == opaque:
                return response, body
