"""TLS for a `StreamSocket`: a socket that encrypts."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

_RECORD_BYTES_MAX: Final = 16 * 1024
"""Plaintext bytes in one record."""
_SEND_BYTES_MAX: Final = 64 * 1024
"""Maximum bytes passed to the TLS library at once."""
_HELD_MAX: Final = 16
"""Pieces of data held until the handshake is complete."""

_SOURCE_LINE: Final = re.compile(r" \(_ssl\.c:\d+\)$")
"""The line in the source of Python's ssl module that raised the error."""

Buffer = bytes | memoryview


class TlsSocket:
    """A connected TCP socket with TLS, with the socket methods that `StreamSocket` needs.

    The handshake progresses as data is received and sent. If nothing can be done, methods raise BlockingIOError, like a
    socket's; on a TLS error, ssl.SSLError, after ``on_failed`` was called with the reason.

    Args:
        sock: must not be used by the caller afterwards.
        server_hostname: for a client, the expected host; only if the context checks host names.
        certificate: for a server; the certificate (DER) of the context.

    Attributes:
        shown_certificate: the certificate (DER) that this side presents, if it was passed.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        on_failed: Callable[[str], None],
        *,
        server_side: bool = True,
        server_hostname: str | None = None,
        certificate: bytes | None = None,
    ) -> None:
        self.shown_certificate = certificate
        sock.setblocking(False)
        self._tls = context.wrap_socket(
            sock, server_side=server_side, do_handshake_on_connect=False, server_hostname=server_hostname
        )
        self._on_failed = on_failed
        self._shaken = False
        self._retry_data: Buffer | None = None
        self._held_data: list[bytes] = []
        self.fileno = self._tls.fileno
        self.setsockopt = self._tls.setsockopt
        self.setblocking = self._tls.setblocking
        self.getpeername = self._tls.getpeername
        self.getsockname = self._tls.getsockname

    def peer_certificate(self) -> bytes | None:
        """The other side's certificate (DER), if it presented one. Raises ValueError before the handshake."""
        return self._tls.getpeercert(binary_form=True)

    def recv_into(self, buffer: memoryview, nbytes: int) -> int:
        """Receive plaintext; 0 at the end of the connection.

        Reads whole records, so that no data stays in the TLS library, for which there would be no event. ``nbytes`` is
        at least `_RECORD_BYTES_MAX`.
        """
        assert nbytes >= _RECORD_BYTES_MAX, f"{nbytes} bytes are not enough for a record"
        total = 0
        try:
            if not self._shaken:
                self._shake_hands()
                self._send_held()
            while nbytes - total >= _RECORD_BYTES_MAX:
                count = self._tls.recv_into(buffer[total:nbytes], nbytes - total)
                if not count:
                    return total
                total += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except ssl.SSLError as error:
            if not total:
                self._report_failure(error)
                raise
        if not total:
            raise BlockingIOError
        return total

    def send(self, data: Buffer) -> int:
        """Encrypt and send; returns how many bytes of ``data`` were consumed.

        Data of a client is held here until the handshake is complete: otherwise the socket would be reported as
        writable all the time, although nothing can be sent.
        """
        try:
            if not self._shaken:
                self._shake_hands()
                self._send_held()
            # Data that the library has begun to send must be passed again unchanged, even if there is more by now.
            if self._retry_data is None:
                data = memoryview(data)[:_SEND_BYTES_MAX]
            count = self._tls.send(data if self._retry_data is None else self._retry_data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not self._shaken:
                assert len(self._held_data) < _HELD_MAX, "much is sent before the other side has answered anything"
                self._held_data.append(bytes(data))
                return len(data)
            if self._retry_data is None:
                self._retry_data = bytes(data)
            raise BlockingIOError from None
        except ssl.SSLError as error:
            self._report_failure(error)
            raise
        self._retry_data = None
        return count

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        """Encrypt and send the first of several buffers; returns how many bytes were consumed."""
        first: list[Buffer] = []
        nbytes = 0
        for buffer in buffers:
            first.append(buffer)
            nbytes += len(buffer)
            if nbytes >= _SEND_BYTES_MAX:
                break
        return self.send(b"".join(first) if len(first) > 1 else first[0])

    def close(self) -> None:
        """Close the connection; sends a close_notify if there is room."""
        if self._shaken:
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()
        self._tls.close()

    def _shake_hands(self) -> None:
        self._tls.do_handshake()
        self._shaken = True

    def _send_held(self) -> None:
        """Send the held data, for which the kernel has room: it is little."""
        for data in self._held_data:
            self._tls.sendall(data)
        self._held_data.clear()

    def _report_failure(self, error: ssl.SSLError) -> None:
        self._on_failed(error.reason or _SOURCE_LINE.sub("", error.strerror or str(error)))
