"""Non-blocking TCP connections in a reactor."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable

from raftlog.net.reactor import EPOLLIN, EPOLLOUT, RECEIVE_BYTES, Reactor, Unsent
from raftlog.net.tls_sniffing import SniffingSocket
from raftlog.net.tls_socket import TlsSocket

EPOLLERR = select.EPOLLERR
EPOLLHUP = select.EPOLLHUP

_RECEIVES_MAX = 8
"""The number of times a turn receives from a connection between replicas: the entries of a round come in several
chunks, and a turn for each of them would cost more than receiving it.
"""
_IOVECS_MAX = 512
_JOIN_BYTES_MAX = 16 * 1024


class StreamSocket:
    """A non-blocking TCP connection in a reactor: chunks in, buffers out.

    ``on_data(chunk)`` gets everything received and not yet consumed and returns how many bytes it consumed; the memory
    is reused after it returns, so it must copy what it keeps. ``on_closed(reason)`` is called exactly once, whichever
    side closes. The received part of an incomplete message is kept per connection. Once ``closed`` is true, sending
    does nothing. A ``patient`` one may be left to a later turn, and receives only once in a turn. ``out_bytes`` wait to
    be sent; what the kernel did not accept at the end of a turn counts in ``unsent``. ``raw_fd`` is the descriptor of
    a socket without TLS, -1 for others.
    """

    __slots__ = (
        "_dirty",
        "_on_closed",
        "_on_data",
        "_out",
        "_partial",
        "_reactor",
        "_reading",
        "_receives_max",
        "_sock",
        "_unsent",
        "_unsent_bytes",
        "_writing",
        "closed",
        "out_bytes",
        "peer",
        "raw_fd",
    )

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket | TlsSocket | SniffingSocket,
        on_data: Callable[[memoryview], int],
        on_closed: Callable[[str], None],
        unsent: Unsent | None = None,
        *,
        patient: bool = False,
    ) -> None:
        sock.setblocking(False)
        _send_at_once(sock)
        self._reactor = reactor
        self._sock = sock
        self.raw_fd = -1 if isinstance(sock, TlsSocket | SniffingSocket) else sock.fileno()
        self._on_data = on_data
        self._on_closed = on_closed
        self._partial: bytes | bytearray = b""
        self._out: list[bytes | memoryview] = []
        self.out_bytes = 0
        self._dirty = False
        self._writing = False
        self._reading = True
        self._unsent = reactor.unsent if unsent is None else unsent
        self._unsent_bytes = 0
        self._receives_max = 1 if patient else _RECEIVES_MAX
        self.closed = False
        self.peer: tuple[str, int] = _peer_name(sock)
        reactor.add(sock.fileno(), self._on_ready, patient=patient)

    def send(self, data: bytes | memoryview) -> None:
        """Queue ``data`` (not copied, must not change) to be sent at the end of the turn."""
        if self.closed:
            return
        self._out.append(data)
        self.out_bytes += len(data)
        if not self._dirty:
            self._dirty = True
            self._reactor.mark_dirty(self)

    def send_all(self, buffers: list[bytes | memoryview], nbytes: int) -> None:
        """Queue several buffers of ``nbytes`` in total."""
        if self.closed:
            return
        self._out += buffers
        self.out_bytes += nbytes
        if not self._dirty:
            self._dirty = True
            self._reactor.mark_dirty(self)

    def flush(self) -> None:
        """Send as much as the kernel accepts; the rest follows when the socket is writable."""
        self._dirty = False
        if self._writing:
            self._count_unsent(self.out_bytes)
        elif self._out and not self.closed:
            self._write()

    def take_single_buffer(self) -> bytes | None:
        """Take the data to be sent, if it is one buffer of bytes for a socket without TLS that was not full.

        The caller sends it to `raw_fd` at once, and calls `put_back` unless all of it was sent. None: there is
        nothing, or only `flush` can send it.
        """
        out = self._out
        if len(out) != 1 or self.raw_fd < 0 or self._writing:
            return None
        data = out[0]
        if type(data) is not bytes:
            return None
        out.clear()
        self.out_bytes = 0
        self._dirty = False
        return data

    def put_back(self, data: bytes, sent_bytes: int) -> None:
        """Put back the unsent part of ``data``, after ``sent_bytes`` bytes; `take_single_buffer` has returned it."""
        self._out.append(memoryview(data)[sent_bytes:] if sent_bytes else data)
        self.out_bytes = len(data) - sent_bytes

    @property
    def unfinished_bytes(self) -> int:
        """Return the number of received bytes that the handler has not consumed."""
        return len(self._partial)

    def keep(self, data: bytes) -> None:
        """Keep the beginning of a message that other code received from the socket; nothing may be before it."""
        assert not self._partial, f"{self.peer}: {len(self._partial)} bytes before it are unfinished"
        if not self.closed:
            self._partial = data

    def stop_reading(self) -> None:
        """Stop receiving until `go_on_reading`: the kernel's buffers fill, and the peer has to wait."""
        self._set_reading(False)

    def go_on_reading(self) -> None:
        """Resume receiving."""
        self._set_reading(True)

    def close(self, reason: str) -> None:
        """Close now; queued output is dropped."""
        if self.closed:
            return
        self.closed = True
        self._reactor.remove(self._sock.fileno())
        self._sock.close()
        self._out.clear()
        self.out_bytes = 0
        self._writing = False
        self._count_unsent(0)
        self._partial = b""
        self._on_closed(reason)

    def _on_ready(self, events: int) -> None:
        if events & EPOLLOUT:
            self._write()
            if self.closed or not events & ~EPOLLOUT:
                return
        if not self._reading:
            if events & (EPOLLHUP | EPOLLERR):  # reported repeatedly even if reading is stopped
                self.close("closed by peer")
            return
        for _ in range(self._receives_max):
            nbytes = self._read_more() if self._partial else self._read()
            # The rest of an incomplete message is here already if the buffer was too small for it.
            if nbytes < RECEIVE_BYTES or not self._partial or not self._reading:
                break

    def _read(self) -> int:
        """Receive once; returns the number of bytes, 0 if there were none."""
        # Nearly always a chunk contains whole messages: nothing is kept, nothing is copied.
        buffer = self._reactor.receive_buffer
        try:
            nbytes = self._sock.recv_into(buffer, RECEIVE_BYTES)
        except OSError as error:
            self._receive_failed(error)
            return 0
        if nbytes == 0:
            self.close("closed by peer")
            return 0
        consumed = self._on_data(buffer[:nbytes])
        if consumed < nbytes and not self.closed:
            self._partial = bytes(buffer[consumed:nbytes])
        return nbytes

    def _read_more(self) -> int:
        """Works like `_read` with a kept partial message, which precedes the new data."""
        buffer = self._reactor.receive_buffer
        partial = self._partial
        partial_bytes = len(partial)
        in_front = partial_bytes <= RECEIVE_BYTES
        if in_front:
            buffer[:partial_bytes] = partial
        try:
            nbytes = self._sock.recv_into(buffer[partial_bytes:] if in_front else buffer, RECEIVE_BYTES)
        except OSError as error:
            self._receive_failed(error)
            return 0
        if nbytes == 0:
            self.close("closed by peer")
        elif in_front:
            total = partial_bytes + nbytes
            consumed = self._on_data(buffer[:total])
            if not self.closed:
                rest = buffer[consumed:total]
                self._partial = bytearray(rest) if total - consumed > RECEIVE_BYTES else bytes(rest)
        else:
            assert isinstance(partial, bytearray)
            partial += buffer[:nbytes]
            with memoryview(partial) as view:
                consumed = self._on_data(view)
            if consumed and not self.closed:
                del partial[:consumed]
                if len(partial) <= RECEIVE_BYTES:
                    self._partial = bytes(partial)
        return nbytes

    def _receive_failed(self, error: OSError) -> None:
        if not isinstance(error, BlockingIOError):
            self.close(f"receive failed: {error.strerror or error}")

    def _write(self) -> None:
        out = self._out
        try:
            while out:
                if self.out_bytes <= _JOIN_BYTES_MAX or len(out) == 1:
                    nbytes = self._sock.send(out[0] if len(out) == 1 else b"".join(out))
                else:
                    nbytes = self._sock.sendmsg(out[:_IOVECS_MAX])
                if nbytes == self.out_bytes:
                    out.clear()
                    self.out_bytes = 0
                else:
                    self._drop_sent(nbytes)
        except BlockingIOError:
            self._count_unsent(self.out_bytes)
            if not self._writing:
                self._writing = True
                self._watch()
            return
        except OSError as error:
            self.close(f"send failed: {error.strerror or error}")
            return
        if self._writing:
            self._writing = False
            self._count_unsent(0)
            self._watch()

    def _drop_sent(self, nbytes: int) -> None:
        self.out_bytes -= nbytes
        out = self._out
        for position, data in enumerate(out):
            if nbytes < len(data):
                out[position] = memoryview(data)[nbytes:]
                del out[:position]
                return
            nbytes -= len(data)

    def _count_unsent(self, nbytes: int) -> None:
        self._unsent.nbytes += nbytes - self._unsent_bytes
        self._unsent_bytes = nbytes

    def _set_reading(self, reading: bool) -> None:
        if reading is not self._reading and not self.closed:
            self._reading = reading
            self._watch()

    def _watch(self) -> None:
        events = (EPOLLIN if self._reading else 0) | (EPOLLOUT if self._writing else 0)
        self._reactor.modify(self._sock.fileno(), events)


def _peer_name(sock: socket.socket | TlsSocket | SniffingSocket) -> tuple[str, int]:
    try:
        name = sock.getpeername()
    except OSError:
        return ("?", 0)
    # A Unix socket has no names; its peer is on this machine.
    return (str(name[0]), int(name[1])) if name else ("127.0.0.1", 0)


def _send_at_once(sock: socket.socket | TlsSocket | SniffingSocket) -> None:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # a Unix socket never delays
            raise
