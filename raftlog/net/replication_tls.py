"""TLS between the replicas of a group: which connections use it, and the binding of a connection to the group secret.

Replicas authenticate with the group's secret (`raftlog.net.authentication`), so certificates need no authority.
Instead, the proofs cover the listener's certificate: a man in the middle with another certificate gets no proof that
either side accepts.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import trio

from raftlog.net.frames import WireError
from raftlog.net.tls_sniffing import SniffingSocket
from raftlog.net.tls_socket import TlsSocket

_RECEIVE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ReplicationTls:
    """The TLS settings of replicas.

    Attributes:
        server: the context for the next caller, which must not be asked for a certificate; and the certificate of that
            context (DER).
        required: callers without TLS are refused, and every call uses TLS. Otherwise both are possible, and a failed
            call is retried without TLS: an attacker can prevent TLS then.
    """

    server: Callable[[], tuple[ssl.SSLContext, bytes]]
    required: bool

    def accept(self, sock: socket.socket, on_failed: Callable[[str], None]) -> TlsSocket | SniffingSocket:
        """Return the socket for a caller. ``on_failed`` gets the reason if its TLS handshake fails."""
        context, certificate = self.server()
        kind = TlsSocket if self.required else SniffingSocket
        return kind(sock, context, on_failed, certificate=certificate)

    def next_call_uses(self, error: Exception, *, used: bool) -> bool:
        """Whether to use TLS for the call after a failed one: once without it if the peer seems not to support it."""
        return self.required or not (used and isinstance(error, ssl.SSLError | ConnectionResetError | WireError))


def caller_context() -> ssl.SSLContext:
    """The TLS context of a call: it accepts any certificate of the listener; `bound_purpose` binds the proofs to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def bound_purpose(purpose: bytes, certificate: bytes | None) -> bytes:
    """The purpose of a connection with this certificate of the listener (DER); None without TLS."""
    return purpose if certificate is None else b"%s, TLS %s" % (purpose, hashlib.sha256(certificate).digest())


def shown_certificate(sock: socket.socket | TlsSocket | SniffingSocket) -> bytes | None:
    """The certificate (DER) that this listener has presented to the caller; None if the caller does not use TLS."""
    return None if isinstance(sock, socket.socket) else sock.shown_certificate


class TlsStream:
    """A `TlsSocket` of a caller, for a task that waits for it. Unusable after cancellation."""

    def __init__(self, sock: TlsSocket) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    async def send_all(self, data: bytes) -> None:  # noqa: ASYNC910 - waits only while the socket is full
        """Send everything, as far as the TLS handshake allows: the rest is sent when something is received.

        Raises OSError.
        """
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock.fileno())

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for data and return it; b"" at the end. Raises OSError."""
        while True:
            try:
                nbytes = self._sock.recv_into(self._buffer, len(self._buffer))
                return bytes(self._buffer[:nbytes])  # noqa: ASYNC910 - waits only while there is nothing
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock.fileno())
