"""A connection from a replica to the client port of another one, which authenticates both."""

from __future__ import annotations

import socket
from collections.abc import Callable

from mq.broker.replication.peer_authentication import PeerAuthentication, PeerCall
from mq.protocol.errors import ProtocolError
from mq.protocol.frames import split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from raftlog import Reactor, StreamSocket, TlsSocket, configure_replication_socket, parse_address, this_machine
from raftlog.net.authentication import AuthenticationFailed
from raftlog.net.machine import Attempt

_SILENCE_SECONDS_MAX = 3.0
"""Maximum time that sent data may stay unacknowledged by the leader's machine."""

OnResponse = Callable[[Response, bytes], None]


class PeerConnection:
    """Sends requests to one replica, and receives their responses.

    ``on_connected()`` is called when the connection is open and authenticated, ``on_response(response, body)`` for each
    answer, and ``on_closed(reason)`` exactly once unless `close` was called: not connected, broken, or closed by the
    other side.
    """

    def __init__(
        self,
        reactor: Reactor,
        address: str,
        authentication: PeerAuthentication,
        *,
        on_connected: Callable[[], None],
        on_response: OnResponse,
        on_closed: Callable[[str], None],
    ) -> None:
        self.address = address
        self._reactor = reactor
        self._authentication = authentication
        self._call: PeerCall | None = None
        self._tls_socket: TlsSocket | None = None
        self._authenticated = False
        self._on_connected = on_connected
        self._on_response = on_response
        self._on_closed: Callable[[str], None] | None = on_closed
        self._stream: StreamSocket | None = None
        self._attempt: Attempt | None = None

    def dial(self) -> None:
        """Start to connect."""
        assert self._attempt is None, f"{self.address} is called twice"
        address = parse_address(self.address)
        self._attempt = this_machine().dial(self._reactor, address, self._on_connect, self._on_close)

    @property
    def connected(self) -> bool:
        """Whether the connection is open and authenticated, so that frames may be sent."""
        return self._authenticated and self._stream is not None and not self._stream.closed

    @property
    def waiting_bytes(self) -> int:
        """Bytes of frames that wait to be sent."""
        return 0 if self._stream is None else self._stream.out_bytes

    def send(self, frame: bytes) -> None:
        """Queue a frame to be sent. Only while connected."""
        assert self._stream is not None, f"nothing is connected to {self.address} yet"
        self._stream.send(frame)

    def close(self) -> None:
        """Close the connection. It calls no callback afterwards."""
        self._on_closed = None
        if self._attempt is not None:
            self._attempt.close()
        if self._stream is not None:
            self._stream.close("given up")

    def _on_connect(self, sock: socket.socket) -> None:
        assert self._stream is None, f"{self.address} is connected twice"
        configure_replication_socket(sock, _SILENCE_SECONDS_MAX)
        tls = self._authentication.tls()
        # No authority is asked about the other side's certificate: the proofs cover it.
        if tls is not None:
            self._tls_socket = TlsSocket(sock, tls, lambda reason: None, server_side=False)
        self._stream = StreamSocket(self._reactor, self._tls_socket or sock, self._on_data, self._on_close)
        self._call = self._authentication.call(self.address, uses_tls=tls is not None)
        self._stream.send(self._call.initial_frame())

    def _on_data(self, data: memoryview) -> int:
        try:
            frames, nbytes = split_frames(data)
            for serialization, header, body in frames:
                response = decode_header(serialization, header)
                # The other side sends no requests to us; ignore anything that looks like one.
                if isinstance(response, Response):
                    if self._authenticated:
                        self._on_response(response, bytes(body))
                    else:
                        self._authenticate(response)
        except ProtocolError as error:
            assert self._stream is not None, "data came without a connection"
            self._stream.close(f"sent garbage: {error}")
            return 0
        except AuthenticationFailed as error:
            assert self._stream is not None, "data came without a connection"
            self._stream.close(f"authentication failed: {error}")
            return 0
        return nbytes

    def _authenticate(self, response: Response) -> None:
        assert self._stream is not None, "an answer came without a connection"
        assert self._call is not None, "an answer came before the call"
        certificate = None if self._tls_socket is None else self._tls_socket.peer_certificate()
        proof = self._call.next_frame(response, certificate)
        if proof is not None:
            self._stream.send(proof)
        else:
            self._authenticated = True
            self._on_connected()

    def _on_close(self, reason: str) -> None:
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(reason)
