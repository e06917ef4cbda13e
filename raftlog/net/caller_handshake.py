"""The caller's side of a new connection between replicas: both prove that they know the secret, then exchange hello and
welcome.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import Final, NamedTuple

import trio

from raftlog.net import authentication
from raftlog.net import frames as wire
from raftlog.net.authentication import NONCE_BYTES, TAG_BYTES, AuthenticationFailed, Seal
from raftlog.net.frames import Hello, Kind, Welcome, WireError
from raftlog.net.replication_tls import TlsStream, bound_purpose
from raftlog.net.tls_socket import TlsSocket
from raftlog.net.versions import HANDSHAKE_VERSION

PURPOSE: Final = b"replication, version %d" % HANDSHAKE_VERSION
PLAIN_BYTES_MAX: Final = 1024
"""Limit before the challenge, or before a proof."""
STRANGER_BYTES_MAX = 64 * 1024
"""Limit for a hello and a welcome, with members' names and addresses."""


class PeerRefused(Exception):
    """The peer refused the connection, with its reason."""


class HandshakeKeys(NamedTuple):
    """The caller's keys of an authenticated connection."""

    secret_id: bytes
    seal: Seal


async def shake_hands(
    sock: socket.socket | TlsSocket, hello: Hello, secrets: tuple[bytes, ...]
) -> tuple[HandshakeKeys, Welcome]:
    """Authenticate both sides, then say hello. The socket is as it was afterwards, and of no use if this is cancelled.

    Authenticate both sides, then send hello. The socket's mode is unchanged afterwards; if cancelled, it is unusable.
    """
    stream: trio.SocketStream | TlsStream
    stream = TlsStream(sock) if isinstance(sock, TlsSocket) else _unencrypted_stream(sock)
    call_payload = authentication.call(os.urandom(NONCE_BYTES), secrets)
    await stream.send_all(wire.encode_opening(Kind.CALL, call_payload))
    kind, frame, _ = await _one_frame(stream, 0, PLAIN_BYTES_MAX)
    challenge_payload = wire.decode_opening(Kind.CHALLENGE, kind, frame[8:])
    purpose = bound_purpose(PURPOSE, sock.peer_certificate() if isinstance(sock, TlsSocket) else None)
    keys = authentication.accept(purpose, call_payload, challenge_payload, secrets)
    seal = Seal(keys.caller)
    data = wire.encode_cold(hello)
    await stream.send_all(data + seal.tag(data))
    kind, frame, tag = await _one_frame(stream, TAG_BYTES, STRANGER_BYTES_MAX)
    Seal(keys.listener).check(tag, frame)
    welcome = wire.decode_cold(kind, frame[8:])
    if not isinstance(welcome, Welcome):
        raise WireError(f"the peer sent a {type(welcome).__name__} instead of a welcome")
    return HandshakeKeys(keys.secret_id, seal), welcome


def _unencrypted_stream(sock: socket.socket) -> trio.SocketStream:
    return trio.SocketStream(trio.socket.from_stdlib_socket(sock))


async def _one_frame(
    stream: trio.SocketStream | TlsStream, tag_bytes: int, bytes_max: int
) -> tuple[Kind, memoryview, memoryview]:
    """The next frame; the other side sends only one before it gets an answer."""
    data = bytearray()
    while True:
        chunk = await stream.receive_some(4096)
        if not chunk:
            raise WireError("the peer closed the connection during the handshake")
        data += chunk
        frames, consumed = wire.split_tagged(memoryview(bytes(data)), tag_bytes)
        if frames:
            if consumed != len(data) or len(frames) > 1:
                raise WireError("the peer sent more than one frame during the handshake")
            return frames[0]
        if len(data) > bytes_max:
            raise WireError(f"the peer sent {len(data)} bytes during the handshake, but no complete frame")


def failure_in_words(error: Exception) -> str:
    """Return the reason that a peer could not be called, as text."""
    if isinstance(error, trio.TooSlowError):
        return "no answer"
    if isinstance(error, AuthenticationFailed):
        return f"authentication failed: {error}"
    if isinstance(error, PeerRefused):
        return f"refused: {error}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or 'no reason given').replace('_', ' ').lower()}"
    if (
        isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode
    ):  # trio's own text repeats the address
        return os.strerror(error.errno).lower()
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
