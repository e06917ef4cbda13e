"""TLS, or none, on one port: a socket that detects by the first byte whether its peer uses TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.net.tls_socket import Buffer, TlsSocket

_HANDSHAKE: Final = b"\x16"
"""The first byte of a TLS client; none of our frames begins with it, since it would have 352 MiB."""


class SniffingSocket:
    """A connected TCP socket that detects by the peer's first byte whether it uses TLS."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        on_failed: Callable[[str], None],
        *,
        certificate: bytes | None = None,
    ) -> None:
        self._sock: socket.socket | TlsSocket = sock
        self._context = context
        self._on_failed = on_failed
        self._certificate = certificate
        self.fileno = sock.fileno
        self.setsockopt = sock.setsockopt
        self.setblocking = sock.setblocking
        self.getpeername = sock.getpeername
        self.getsockname = sock.getsockname

    @property
    def shown_certificate(self) -> bytes | None:
        """Return the certificate that the peer has presented; None unless it uses TLS."""
        return self._sock.shown_certificate if isinstance(self._sock, TlsSocket) else None

    def recv_into(self, buffer: memoryview, nbytes: int) -> int:
        """Receive like a socket; the first byte of the peer tells whether it uses TLS."""
        sock = self._sock
        if isinstance(sock, socket.socket):
            first = sock.recv(1, socket.MSG_PEEK)
            if first == _HANDSHAKE:
                self._sock = TlsSocket(sock, self._context, self._on_failed, certificate=self._certificate)
                self.fileno = self._sock.fileno
            # From now on use the methods of the detected socket.
            self.__dict__.update(recv_into=self._sock.recv_into, send=self._sock.send, sendmsg=self._sock.sendmsg)
        return self._sock.recv_into(buffer, nbytes)

    def send(self, data: Buffer) -> int:
        """Raise BlockingIOError: a server that sends first would not know whether to encrypt."""
        raise BlockingIOError

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        """Raise BlockingIOError: nothing can be sent before the first byte was received."""
        raise BlockingIOError

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()
