"""One TCP connection to one broker or name server, with many requests in flight.

Theory of operation. A request is one dictionary entry (opaque -> callback) and one element in the list of outgoing
frames: no task, event or timer. One task writes: everything queued since its last write is sent at once. One task
reads: all complete frames of a chunk are matched and their callbacks run before the next read. So hundreds of requests
need a handful of system calls, and waiting is built on top (see `request`).

When the connection ends, every callback gets a `ConnectionLost`, which says whether its request had been written to the
socket. A connection is never reopened; the pool opens a new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable

import anyio
import anyio.abc

from mq.client.errors import BrokerError, ConnectFailed, ConnectionLost, RequestTimeout
from mq.client.logs import log
from mq.client.net.credentials import Credentials
from mq.client.net.forks import guard_socket, release_socket
from mq.client.net.in_process import connect_in_process
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import FrameError, HeaderError
from mq.protocol.frames import ANSWER_HEADER_BYTES_MAX, split_frames
from mq.protocol.incoming.client_decoding import decode_from_broker
from mq.protocol.incoming.headers import Response, UnknownRequest
from mq.protocol.requests.forwarding import FORWARDED_TO
from mq.protocol.wire.encoding import ONEWAY_FLAG, encode_request, encode_response
from mq.protocol.wire.request import Request

ResponseOrLoss = Response | ConnectionLost
"""The result of a request. A `Response` may have any response code."""

OnResponse = Callable[[ResponseOrLoss, memoryview], None]
"""Called with the answer and its body, at most once, from the reading task: must neither block nor raise."""

RespondLater = Callable[[bytes], None]
"""Sends a frame to the server if the connection is still open."""

OnServerRequest = Callable[[Request | UnknownRequest, memoryview, RespondLater], bytes | None]
"""Called for each request from the server; the answer is a returned frame, or a later call of the last argument."""

OnForward = Callable[[str], None]
"""Called with the address of the connection when a broker had to forward a request to its leader."""

MAYBE_UNREACHABLE = "is the address right, and does a firewall drop packets?"

_RECEIVE_BYTES = 65536
_OPAQUE_MAX = 2**31 - 1


def refuse_server_request(
    request: Request | UnknownRequest, _body: memoryview, _respond_later: RespondLater
) -> bytes | None:
    """Answer a request that clients do not support with REQUEST_CODE_NOT_SUPPORTED; None if it is one-way."""
    if request.flag & ONEWAY_FLAG:
        return None
    return encode_response(
        request.opaque, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="this client does not handle the request"
    )


def split_address(address: str) -> tuple[str, int]:
    """Parse `"10.0.0.1:9876"` to `("10.0.0.1", 9876)`. Raises ValueError for anything else."""
    host, colon, port = address.strip().rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"not an address of the form host:port: {address!r}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"an IPv6 address needs brackets, as in [::1]:9876: {address!r}")
    return host.strip("[]"), int(port)


async def open_connection(
    address: str,
    *,
    connect_seconds: float = 3.0,
    silence_seconds: float = 1.0,
    on_server_request: OnServerRequest = refuse_server_request,
    on_forward: OnForward | None = None,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Connect to `host:port`. The caller must run `Connection.run` in a task. Raises ConnectFailed."""
    try:
        host, port = split_address(address)
        with anyio.fail_after(connect_seconds):
            stream: anyio.abc.ByteStream
            if (inner := await connect_in_process(host, port)) is not None:
                stream = inner
            elif tls is None:
                stream = await anyio.connect_tcp(host, port)
            else:
                # Brokers and name servers close connections without TLS's close_notify, as stock ones do.
                stream = await anyio.connect_tcp(host, port, ssl_context=tls, tls_standard_compatible=False)
    except TimeoutError:
        raise ConnectFailed(address, f"no connection within {connect_seconds:g} s; {MAYBE_UNREACHABLE}") from None
    except (anyio.BrokenResourceError, anyio.EndOfStream, ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        raise ConnectFailed(
            address, "the server closed the connection during the TLS handshake; does it use TLS?"
        ) from error
    except (OSError, ValueError) as error:
        raise ConnectFailed(address, _reason(error)) from error
    return Connection(
        address,
        stream,
        silence_seconds=silence_seconds,
        on_server_request=on_server_request,
        on_forward=on_forward,
        credentials=credentials,
        has_tls=tls is not None,
    )


def _end_of(error: Exception) -> str:
    """Return the reason that a connection ended, from the cause of AnyIO's error."""
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or repr(error)


def _reason(error: OSError | ValueError) -> str:
    """Return the reason that an attempt to connect failed: of several failed addresses, the error of the last one."""
    if isinstance(error, socket.gaierror):
        return f"the name does not resolve ({error.strerror or error}); is it spelled right, and known to the DNS here?"
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[-1]
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno in errno.errorcode:
        return os.strerror(cause.errno)
    return str(error) or type(error).__name__


class _FrameBuffer:
    """Keeps the received bytes of an incomplete frame.

    Chunks are joined only once the first frame can be complete, so a large frame costs one join.
    """

    __slots__ = ("_bytes_needed", "_chunks", "_size")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0
        self._bytes_needed = 4

    def receive(self, chunk: bytes) -> list[tuple[int, memoryview, memoryview]]:
        """Return the frames completed by `chunk`. Raises FrameError. The views keep the received bytes alive."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size < self._bytes_needed:
            return []
        data = memoryview(chunk if len(self._chunks) == 1 else b"".join(self._chunks))
        frames, consumed_bytes = split_frames(data, header_bytes_max=ANSWER_HEADER_BYTES_MAX)
        rest = data[consumed_bytes:]
        self._size = len(rest)
        self._chunks = [bytes(rest)] if rest else []
        self._bytes_needed = 4 + int.from_bytes(rest[:4], "big") if self._size >= 4 else 4
        return frames


class Connection:
    """A connection to one server. When it has ended, `failure` says why, and nothing can be sent."""

    def __init__(
        self,
        address: str,
        stream: anyio.abc.ByteStream,
        *,
        silence_seconds: float = 1.0,
        on_server_request: OnServerRequest = refuse_server_request,
        on_forward: OnForward | None = None,
        credentials: Credentials | None = None,
        has_tls: bool = False,
    ) -> None:
        self._credentials = credentials
        self._has_tls = has_tls
        self.address = address
        self.failure: ConnectionLost | None = None
        self.held_count = 0
        """Requests in flight that the server may hold for long."""
        self.heard_at = anyio.current_time()
        """When the last data arrived, on the event loop's clock."""
        self._has_received = False
        self._stream = stream
        self._silence_seconds = silence_seconds
        self._on_server_request = on_server_request
        self._on_forward = on_forward
        self._callbacks: dict[int, OnResponse] = {}
        self._unsent_frames: list[bytes] = []
        self._outgoing_opaques: list[int] = []
        self._wake_writer = anyio.Event()
        self._scope = anyio.CancelScope()
        self._next_opaque = 0
        self._socket = stream.extra(anyio.abc.SocketAttribute.raw_socket, None)  # noqa: S610 - not Django's
        if self._socket is not None:
            guard_socket(self)

    def fileno(self) -> int:
        """Return the file descriptor of the socket, -1 if it is closed."""
        return -1 if self._socket is None else int(self._socket.fileno())

    @property
    def in_flight(self) -> int:
        """The number of requests that have no answer yet."""
        return len(self._callbacks)

    @property
    def owes_response(self) -> bool:
        """Whether the server has yet to answer a request that it may not hold."""
        return len(self._callbacks) > self.held_count

    # Sending: synchronous, so that a state change and its request are one step.

    def request_nowait(self, code: int, ext: dict[str, str] | None, body: bytes, on_response: OnResponse) -> int:
        """Queue a request and return its opaque. Raises ConnectionLost (not sent) if the connection has ended."""
        self._check_open()
        opaque = self._take_opaque()
        if self._credentials is not None:
            ext = self._credentials.sign(code, ext, body)
        frame = encode_request(code, opaque, ext=ext, body=body)
        self._callbacks[opaque] = on_response
        self._outgoing_opaques.append(opaque)
        self._queue(frame)
        return opaque

    def send_oneway(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Queue a request that gets no answer. Raises ConnectionLost (not sent) if the connection has ended."""
        self._check_open()
        if self._credentials is not None:
            ext = self._credentials.sign(code, ext, body)
        self._queue(encode_request(code, self._take_opaque(), ext=ext, body=body, oneway=True))

    def forget(self, opaque: int) -> None:
        """Ignore the answer to a request, because its caller no longer waits."""
        self._callbacks.pop(opaque, None)

    def _check_open(self) -> None:
        if self.failure is not None:
            raise ConnectionLost(self.address, self.failure.reason, sent=False)

    def _take_opaque(self) -> int:
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 if opaque < _OPAQUE_MAX else 0
        return opaque

    def _queue(self, frame: bytes) -> None:
        if not self._unsent_frames:
            self._wake_writer.set()
        self._unsent_frames.append(frame)

    def on_timeout(self, waited_seconds: float) -> None:
        """Close the connection if nothing at all arrived in the `waited_seconds` in which a request got no answer.

        A stopped process or a cut cable leaves a connection that looks open: without this, all further requests would
        time out as well, until the operating system gives up after minutes. Waits shorter than `silence_seconds` prove
        nothing.
        """
        silent_seconds = min(anyio.current_time() - self.heard_at, waited_seconds)
        if silent_seconds >= self._silence_seconds:
            self.close(f"no data for {silent_seconds:.1f} s")

    # Request and answer.

    async def request(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout: float = 3.0,
        may_be_held: bool = False,
        on_response: Callable[[Response, memoryview], None] | None = None,
    ) -> tuple[Response, memoryview]:
        """Send a request and wait for its answer, which may have any code.

        `may_be_held`: the server may delay the answer, so its silence is not suspicious. `on_response` gets the answer
        before this task runs again; it must not raise.

        Raises RequestTimeout after `timeout` seconds, and ConnectionLost. If cancelled, it drops the request; the
        server may still execute it.
        """
        response_event = anyio.Event()
        responses: list[tuple[ResponseOrLoss, memoryview]] = []

        def receive(response: ResponseOrLoss, response_body: memoryview) -> None:
            responses.append((response, response_body))
            response_event.set()
            if on_response is not None and isinstance(response, Response):
                on_response(response, response_body)

        opaque = self.request_nowait(code, ext, body, receive)
        self.held_count += may_be_held
        try:
            with anyio.move_on_after(timeout):
                await response_event.wait()
        finally:
            self.held_count -= may_be_held
            self.forget(opaque)
        if not responses:
            self.on_timeout(timeout)
            raise RequestTimeout(self.address, code, timeout)
        [(response, response_body)] = responses
        if isinstance(response, ConnectionLost):
            raise response
        return response, response_body

    async def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, timeout: float = 3.0
    ) -> tuple[Response, memoryview]:
        """Works like `request`, but raises BrokerError for any response code other than SUCCESS."""
        response, response_body = await self.request(code, ext, body, timeout=timeout)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, self.address)
        return response, response_body

    # The two tasks.

    async def run(self) -> None:
        """Read and write until the connection ends or the task is cancelled. Then all requests in flight fail."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._write_forever)
                    self.close(await self._read_until_end())
        finally:
            self._end("closed by this client")
            release_socket(self)
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)

    def close(self, reason: str) -> None:
        """Close the connection. All requests in flight fail at once, and `run` returns soon after."""
        self._end(reason)
        self._scope.cancel()

    def end_requests(self) -> None:
        """Tell the server that no request follows. It drops held requests and closes the connection.

        Answers that it has sent before still come.
        """
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._socket.shutdown(socket.SHUT_WR)

    async def _write_forever(self) -> None:
        while self.failure is None:
            if not self._unsent_frames:
                self._wake_writer = anyio.Event()
                await self._wake_writer.wait()
                continue
            frames = self._unsent_frames
            self._unsent_frames, self._outgoing_opaques = [], []
            try:
                await self._stream.send(frames[0] if len(frames) == 1 else b"".join(frames))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
                self.close(f"write failed: {error!r}")

    async def _read_until_end(self) -> str:
        buffer = _FrameBuffer()
        while True:
            try:
                chunk = await self._stream.receive(_RECEIVE_BYTES)
            except anyio.EndOfStream:
                return self._with_hint("closed by the server")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
                return self._with_hint(f"read failed: {_end_of(error)}")
            self._has_received = True
            self.heard_at = anyio.current_time()
            try:
                for serialization, header, body in buffer.receive(chunk):
                    self._receive_frame(serialization, header, body)
            except FrameError as error:
                return f"unreadable answer: {error}"

    def _with_hint(self, reason: str) -> str:
        if self._has_received or self._has_tls:
            return reason
        return f"{reason} before it sent anything; does it require TLS? If not, check whether host and port are right"

    def _receive_frame(self, serialization: int, header: memoryview, body: memoryview) -> None:
        try:
            message = decode_from_broker(serialization, header)
        except HeaderError as error:
            # Only this frame is invalid, not the stream. If it was an answer, the request times out.
            log.warning("frame_ignored", address=self.address, reason=str(error))
            return
        if isinstance(message, Response):
            if FORWARDED_TO in message.ext and self._on_forward is not None:
                self._on_forward(self.address)
            on_response = self._callbacks.pop(message.opaque, None)
            if on_response is not None:
                on_response(message, body)
        elif self.failure is None:
            frame = self._on_server_request(message, body, self._answer_server)
            if frame is not None:
                self._queue(frame)

    def _answer_server(self, frame: bytes) -> None:
        if self.failure is None:
            self._queue(frame)

    def _end(self, reason: str) -> None:
        if self.failure is not None:
            return
        self.failure = ConnectionLost(self.address, reason, sent=True)
        never_sent = frozenset(self._outgoing_opaques)
        callbacks, self._callbacks = self._callbacks, {}
        self._unsent_frames, self._outgoing_opaques = [], []
        for opaque, on_response in callbacks.items():
            on_response(ConnectionLost(self.address, reason, sent=opaque not in never_sent), memoryview(b""))
