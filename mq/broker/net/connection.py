"""One client connection of a broker: reads frames, calls the handlers of requests, and sends responses.

Errors of a request stay with the request: a refusal and a malformed header are answered, a frame that cannot be cut
closes this connection and no other.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import structlog

from mq.broker.access.control import AccessControl, AccessDenied
from mq.broker.base.archived_reads import ArchivedNotLoaded, ArchivedUnreadable
from mq.broker.net.client_requests import ClientRequests, NoResponse, OnResponse
from mq.broker.net.flow_control import MUCH_BYTES, UnreadReplies
from mq.broker.net.not_served import why_not_served
from mq.broker.net.refusals import RequestRefused
from mq.monitoring.error_answers import ERROR_ANSWERS
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import FrameError, HeaderError
from mq.protocol.incoming.chunks import Incoming, decode_chunk, missing_bytes
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.partial_requests import SMALL_BYTES, PartialRequests
from mq.protocol.wire.encoding import ONEWAY_FLAG, encode_request, encode_response
from mq.store.errors import QueueFileDamaged
from raftlog import Reactor, SegmentError, SniffingSocket, StreamSocket, TlsSocket, Unsent, format_address
from raftlog.net.replication_tls import shown_certificate

_LARGE_BYTES = 128 * 1024
_LENGTH_BYTES = 4
_REPORTS_MAX = 16
_SERVED_AT_ONCE = 16
"""Requests that are served before the client's share of the turn is checked."""
_CLIENT_FAULTS = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.MESSAGE_ILLEGAL})
_NO_ERRORS = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.CONSUMER_NOT_ONLINE,
        ResponseCode.NO_MESSAGE,
        ResponseCode.POLLING_FULL,
        ResponseCode.POLLING_TIMEOUT,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    }
)
"""Answers that say that there is nothing; and, of the last code, that a newer client has asked."""

_TLS_HANDSHAKE = b"\x16\x03"
_NO_TLS = "the client speaks TLS, and this broker does not: see tls_mode"
Log = structlog.stdlib.BoundLogger
SendKeys = Callable[[bytes, bytes], bytes | None]
"""The key that sends must be signed with, by access key and topic; None leaves them to `AccessControl.authorize`."""


class PlainSends(Protocol):
    """Receives plain sends. `mq.broker.produce` implements it."""

    def take(self, connection: ClientConnection, chunk: bytes) -> int: ...

    def forget(self, descriptor: int) -> None: ...

    def serve_here(self, here: bool) -> None: ...


class Requests(Protocol):
    """Serves the requests of a connection. `mq.broker.net.request_table` implements it."""

    @property
    def sends(self) -> PlainSends: ...

    def serve(self, connection: ClientConnection, requests: Iterable[Incoming]) -> None: ...


class ClientConnection:
    """Reads the requests of one client, and sends the responses.

    ``host`` is the peer's IPv4 address and port as a record stores them. ``requests`` serves the requests. ``heard``
    becomes true when data arrives; the search for idle connections resets it. ``questions`` are the broker's requests
    to clients. ``trusted`` is true for a replica of the same group; ``authentication`` is the state of its proof.
    ``partial_requests`` limits the memory of partly received requests of all connections, ``unread`` the memory of
    unread replies, which ``unsent`` counts. ``access`` decides which requests the client may make; None allows all.

    ``descriptor`` is that of its socket; -1 with TLS. While its last chunk consisted of plain sends, its next chunk may
    be received together with those of others, see `serve_rest`.
    """

    hold_seconds_max = 60.0
    """The maximum time for which a request may be held."""
    client_id: str | None = None
    """The client's id, if another replica forwards its request; None for clients of this replica."""

    __slots__ = (
        "_access",
        "_address",
        "_backlog",
        "_log",
        "_on_closed",
        "_partial_requests",
        "_questions",
        "_reactor",
        "_reports",
        "_requests",
        "_sock",
        "_stream",
        "_unfinished",
        "_unread",
        "_waits_for_reader",
        "_waits_for_room",
        "authentication",
        "descriptor",
        "heard",
        "held_pulls",
        "host",
        "output_bytes_max",
        "peer",
        "trusted",
    )

    def __init__(
        self,
        *,
        reactor: Reactor,
        sock: socket.socket | TlsSocket | SniffingSocket,
        requests: Requests,
        questions: ClientRequests[ClientConnection],
        on_closed: Callable[[ClientConnection], None],
        partial_requests: PartialRequests[ClientConnection],
        unread: UnreadReplies[ClientConnection],
        unsent: Unsent,
        output_bytes_max: int,
        access: AccessControl | None = None,
        log: Log,
    ) -> None:
        self._access = access
        self._requests = requests
        self._questions = questions
        self._on_closed = on_closed
        self._partial_requests = partial_requests
        self._unread = unread
        self._reactor = reactor
        # Deferred requests.
        self._backlog: list[Incoming] = []
        self._unfinished = False
        self._waits_for_room = False
        self._waits_for_reader = False
        self._log = log
        self._reports: tuple[tuple[str, int | None], ...] = ()
        self.output_bytes_max = output_bytes_max
        self.heard = True
        self.held_pulls = 0
        self.trusted = False
        self.authentication: object = None
        self._sock = sock
        self._stream = StreamSocket(reactor, sock, self._on_data, self._on_close, unsent, patient=True)
        self.descriptor = self._stream.raw_fd
        address, port = self._stream.peer
        self._address = address
        text = address.removeprefix("::ffff:")
        self.peer = format_address((text, port))
        # The sender of a record has four bytes: its layout does not depend on the client.
        self.host = (bytes(4) if ":" in text else socket.inet_aton(text)) + port.to_bytes(4, "big")

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        return self._stream.closed

    @property
    def shown_certificate(self) -> bytes | None:
        """The certificate (DER) that this broker has shown to the client; None without TLS."""
        return shown_certificate(self._sock)

    @property
    def waiting_bytes(self) -> int:
        """The bytes of responses that wait to be sent."""
        return self._stream.out_bytes

    @property
    def unfinished_bytes(self) -> int:
        """The bytes received of a request that is not complete yet."""
        return self._stream.unfinished_bytes

    def send(self, data: bytes) -> None:
        """Queue a frame. Closes the connection if the client leaves too much unread."""
        stream = self._stream
        stream.send(data)
        if stream.out_bytes > MUCH_BYTES:
            self._much_waits()

    def send_all(self, buffers: list[bytes | memoryview], nbytes: int) -> None:
        """Queue one frame that is in several buffers, ``nbytes`` in total."""
        self._stream.send_all(buffers, nbytes)
        if self._stream.out_bytes > MUCH_BYTES:
            self._much_waits()

    def ask(self, code: int, ext: dict[str, str], body: bytes, seconds: float, on_response: OnResponse) -> None:
        """Send a request of the broker to the client.

        ``on_response`` gets the response or a NoResponse within ``seconds``; at once if the client cannot be asked.
        """
        if self.closed:
            on_response(NoResponse.GONE, b"")
            return
        opaque = self._questions.add(self, seconds, on_response)
        if opaque is None:
            on_response(NoResponse.BUSY, b"")
        else:
            self.send(encode_request(code, opaque, ext=ext, body=body))

    def close(self, reason: str) -> None:
        """Close the connection."""
        self._stream.close(reason)

    def on_admit(self) -> None:
        """Read the rest of a large request, because there is room in memory for it now."""
        assert self._waits_for_room, f"{self.peer} did not wait for memory, {self.unfinished_bytes} bytes are here"
        self._waits_for_room = False
        self._read_or_wait()

    def wait_for_reader(self, waits: bool) -> None:
        """Stop reading requests until the client has read responses (``waits``), or resume."""
        self._waits_for_reader = waits
        if self._backlog and not waits:
            self._reactor.go_on_later(self._serve_deferred)
        self._read_or_wait()

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        """Serve one decoded request, and send the response if its handler returns one."""
        self._requests.serve(self, ((request, body, serialization),))

    def answer(self, request: Any, response: bytes) -> None:
        """Send the response to a request, unless its sender wants none."""
        if not request.flag & ONEWAY_FLAG:
            self.send(response)

    def refuse(self, request: Any, serialization: int, error: Exception) -> None:
        """Respond to a request that failed. Raises an AssertionError again."""
        response = self._refusal_response(request, serialization, error)
        if response is not None:
            self.answer(request, response)

    def send_keys(self) -> SendKeys | None:
        """Return the keys that must sign this client's sends; None if they need no signature."""
        access = None if self.trusted else self._access
        return None if access is None else access.keys_of_sends(self._address)

    def serve_rest(self, rest: bytes) -> None:
        """Serve data that the receiver of sends read from this client, but that does not begin with a plain send.

        All data before it is served.
        """
        if not self._stream.closed:
            self._stream.keep(rest[self._serve_frames(rest) :])

    def _on_data(self, data: memoryview) -> int:
        self.heard = True
        if len(data) > _LARGE_BYTES and missing_bytes(data):
            return 0  # do not copy an incomplete large frame once per chunk
        chunk = bytes(data)
        nbytes = self._requests.sends.take(self, chunk)
        assert nbytes <= len(chunk), f"{nbytes} of {len(chunk)} bytes were taken"
        if nbytes:
            self._end_partial()
        if nbytes == len(chunk):
            return nbytes
        return nbytes + self._serve_frames(chunk[nbytes:])

    def _serve_frames(self, chunk: bytes) -> int:
        """Serve all complete requests at the start of a chunk, and return their bytes."""
        try:
            requests, nbytes = decode_chunk(chunk)
        except FrameError as error:
            reason = _NO_TLS if chunk.startswith(_TLS_HANDSHAKE) else str(error)
            self._log.warning("bad_frame", client=self.peer, error=reason)
            self.close("bad frame")
            return 0
        assert nbytes <= len(chunk), f"{nbytes} of {len(chunk)} bytes were decoded"
        assert not self._backlog, f"{len(requests)} requests overtake {len(self._backlog)} of the same client"
        access = None if self.trusted else self._access
        if access is not None:
            requests = access.authorize(self._address, requests, chunk)
        if nbytes:
            self._end_partial()
        if len(requests) > _SERVED_AT_ONCE:
            self._serve_share(requests)
        else:
            self._requests.serve(self, requests)
        if len(chunk) - nbytes >= _LENGTH_BYTES and not self._unfinished:
            self._begin(_LENGTH_BYTES + int.from_bytes(chunk[nbytes : nbytes + _LENGTH_BYTES], "big"))
        return nbytes

    def _end_partial(self) -> None:
        """Free the room reserved for a partial request, because its rest has arrived."""
        if self._unfinished:
            self._unfinished = False
            self._partial_requests.on_frame_end(self)

    def _serve_share(self, requests: list[Incoming]) -> None:
        """Serve requests until this client's share of the turn is used, and defer the rest. Replicas have no limit.

        The connection is not read until the rest is served.
        """
        assert not self._backlog, f"{len(self._backlog)} deferred requests before {len(requests)} others"
        at, stretch = 0, 1
        while at < len(requests):
            if at and not self.trusted and (self._waits_for_reader or self._reactor.share_used()):
                self._backlog = requests[at:]
                self._read_or_wait()
                if not self._waits_for_reader:
                    self._reactor.go_on_later(self._serve_deferred)
                return
            self._requests.serve(self, requests[at : at + stretch])
            at += stretch
            stretch = min(2 * stretch, _SERVED_AT_ONCE)  # the first ones tell how long they take

    def _serve_deferred(self) -> None:
        """Serve some of the deferred requests."""
        requests, self._backlog = self._backlog, []
        self._serve_share(requests)
        self._read_or_wait()

    def _begin(self, nbytes: int) -> None:
        """Reserve memory for an arriving request of ``nbytes``. Without room, stop reading its rest."""
        if nbytes > SMALL_BYTES and not self.trusted and not self.closed:
            self._unfinished = True
            if not self._partial_requests.begin(self, nbytes):
                self._waits_for_room = True
                self._read_or_wait()

    def _read_or_wait(self) -> None:
        if self._waits_for_room or self._waits_for_reader or self._backlog:
            self._requests.sends.forget(self.descriptor)
            self._stream.stop_reading()
        else:
            self._stream.go_on_reading()

    def _much_waits(self) -> None:
        """Pass as much as possible to the kernel. Closes the connection if the client leaves too much unread."""
        stream = self._stream
        stream.flush()
        if stream.out_bytes > self.output_bytes_max:
            self._log.warning("client_too_slow", client=self.peer, waiting_bytes=stream.out_bytes)
            stream.close("too slow")
        elif stream.out_bytes > MUCH_BYTES:
            self._unread.add(self)

    def _refusal_response(self, request: Any, serialization: int, error: Exception) -> bytes | None:
        """Encode the response to a failed request. Raises an AssertionError again."""
        if isinstance(error, RequestRefused):
            if error.code in _CLIENT_FAULTS:
                self._report("request_refused", request.code, error.remark)
        elif isinstance(error, HeaderError):
            ERROR_ANSWERS.refused += 1
            self._report("bad_header", error.code, error.remark)
            code = ResponseCode.SYSTEM_ERROR
            self.send(encode_response(error.opaque, code, remark=error.remark, serialization=serialization))
            return None  # the invalid header would say whether the client wants a reply
        return answer_failure(error, request, serialization, self.peer, self._log)

    def _report(self, event: str, code: int | None, reason: str) -> None:
        """Log a client's mistake once per connection and kind, since clients repeat their mistakes."""
        if (event, code) not in self._reports and len(self._reports) < _REPORTS_MAX:
            self._reports += ((event, code),)
            self._log.warning(event, client=self.peer, code=code, reason=reason)

    def on_unsupported(self, request: Any, body: bytes) -> None:
        """Handle a frame without a handler: a client's response, or a request, for which it raises the refusal."""
        if isinstance(request, Response):
            if not self._questions.on_response(self, request, body):
                self._report("unexpected_response", None, f"response of code {request.code} to opaque {request.opaque}")
            return
        if isinstance(request, HeaderError):
            # A new error: the old one would be in a cycle with this frame, which keeps the whole chunk in memory.
            raise HeaderError(request.code, request.opaque, request.remark)
        if isinstance(request, AccessDenied):
            self._report("access_denied", request.code, request.remark)
            raise RequestRefused(ResponseCode.NO_PERMISSION, request.remark)
        raise RequestRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, why_not_served(request.code))

    def _on_close(self, reason: str) -> None:
        self._requests.sends.forget(self.descriptor)
        self._partial_requests.on_frame_end(self)
        self._unread.forget(self)
        self._questions.connection_closed(self)
        self._on_closed(self)


def answer_failure(error: Exception, request: Any, serialization: int, client: str, log: Log) -> bytes:
    """Encode the response to a request whose handler raised ``error``. Raises an AssertionError again."""
    if isinstance(error, RequestRefused):
        if error.code not in _NO_ERRORS:
            ERROR_ANSWERS.refused += 1
        return encode_response(
            request.opaque, error.code, remark=error.remark, ext=error.ext, serialization=serialization
        )
    if isinstance(error, AssertionError):
        raise error
    ERROR_ANSWERS.failed += 1
    if isinstance(error, QueueFileDamaged):
        # The damage is registered, and will be repaired from the log soon.
        remark = f"retry, or ask another replica: {error}"
        code = ResponseCode.SERVICE_NOT_AVAILABLE
        return encode_response(request.opaque, code, remark=remark, serialization=serialization)
    if isinstance(error, ArchivedNotLoaded | ArchivedUnreadable):  # logged by whoever reads the archive
        code = ResponseCode.SYSTEM_BUSY if isinstance(error, ArchivedNotLoaded) else ResponseCode.SYSTEM_ERROR
        return encode_response(request.opaque, code, remark=str(error), serialization=serialization)
    # Input from a client may make its own request fail, never the process.
    if isinstance(error, SegmentError):
        log.error("read_failed", client=client, code=request.code, error=str(error))
    else:
        log.error("request_failed", client=client, code=request.code, exc_info=error)
    remark = f"{type(error).__name__}: {error}"
    return encode_response(request.opaque, ResponseCode.SYSTEM_ERROR, remark=remark, serialization=serialization)
