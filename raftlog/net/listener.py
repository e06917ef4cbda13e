"""Establishes connections in a reactor: listening sockets and connection attempts."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable

from raftlog.net.reactor import EPOLLOUT, Reactor
from raftlog.net.tls_socket import TlsSocket


def configure_replication_socket(sock: socket.socket | TlsSocket, silence_seconds: float) -> None:
    """Make the kernel close a connection when sent data stays unacknowledged for ``silence_seconds``.

    Without it, a silently cut link recovers up to two minutes after it healed, because TCP backs off.
    """
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_seconds * 1000))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # a Unix socket notices at once
            raise
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Listener:
    """A listening TCP socket in a reactor; ``on_accept(sock)`` gets each new connection.

    Raises:
        OSError: the address cannot be bound (``EADDRINUSE``, ``EACCES``, …).
    """

    def __init__(self, reactor: Reactor, host: str, port: int, on_accept: Callable[[socket.socket], None]) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind((host, port))
            self._sock.listen(1024)
        except OSError:
            self._sock.close()
            raise
        self._sock.setblocking(False)
        # A spare descriptor lets a process without free ones accept and drop a caller, instead of spinning on a ready
        # listener.
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._reactor = reactor
        self._on_accept = on_accept
        self.port: int = self._sock.getsockname()[1]
        self.closed = False
        reactor.add(self._sock.fileno(), self._on_ready)

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        self.closed = True
        self._reactor.remove(self._sock.fileno())
        self._sock.close()
        if self._spare is not None:
            os.close(self._spare)

    def _on_ready(self, events: int) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    return
                self._drop_caller()
                return
            self._on_accept(sock)

    def _drop_caller(self) -> None:
        """Release the spare descriptor for a moment; another thread may be faster and take it."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        with contextlib.suppress(OSError):
            self._sock.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


class Dialing:
    """A non-blocking connection attempt.

    ``on_connected(sock)`` or ``on_failed(reason)`` is called once, in a later turn or at once, unless `close` was
    called. ``address`` is an IP address and a port: name lookup would block.
    """

    def __init__(
        self,
        reactor: Reactor,
        address: tuple[str, int],
        on_connected: Callable[[socket.socket], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._reactor = reactor
        self._on_connected = on_connected
        self._on_failed = on_failed
        self._sock: socket.socket | None = None
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        except OSError as error:
            on_failed(error.strerror or str(error))
            return
        failure = sock.connect_ex(address)
        if failure in (0, errno.EINPROGRESS):
            self._sock = sock
            reactor.add(sock.fileno(), self._on_ready, EPOLLOUT)
        else:
            sock.close()
            on_failed(os.strerror(failure))

    def close(self) -> None:
        """Abandon the attempt; no callback is called afterwards."""
        if self._sock is not None:
            self._reactor.remove(self._sock.fileno())
            self._sock.close()
            self._sock = None

    def _on_ready(self, events: int) -> None:
        sock = self._sock
        assert sock is not None, "an attempt to connect that was given up became ready"
        self._sock = None
        self._reactor.remove(sock.fileno())
        if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            sock.close()
            self._on_failed(os.strerror(error))
        else:
            self._on_connected(sock)
