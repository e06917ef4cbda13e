"""The gRPC calls of one HTTP/2 connection: turns received bytes into calls, and messages into bytes to send.

Neither reads nor writes: the shell feeds it, takes the bytes to send, and hands in the time in monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mq.protocol.incoming.partial_requests import SMALL_BYTES, PartialRequests
from mq.proxy.grpc.call_stream import CallStream
from mq.proxy.grpc.floods import FloodGuard
from mq.proxy.grpc.frames import ErrorCode, FrameSplitter, Http2Error
from mq.proxy.grpc.framing import ENCODINGS
from mq.proxy.grpc.header_blocks import Field, encode_fields
from mq.proxy.grpc.http2 import Http2
from mq.proxy.grpc.limits import GrpcLimits
from mq.proxy.grpc.request_headers import MalformedRequest, NoGrpc, RequestHead, announced_bytes, parse_head
from mq.proxy.grpc.status import BrokenCall, CallRefused, Status, percent_encoded

_LAST_STREAM: Final = 2**31 - 1
_PING: Final = b"raftmq--"
_DRAIN_PING: Final = b"draining"
_SECONDS_TO_HEAR: Final = 1.0
"""Between the two GOAWAY frames of a drain, if the ping between them is not answered earlier: calls that a client sends
before it has read the first one are served.
"""
_SECONDS_TO_END: Final = 1.0
"""After its answer has ended, a call whose client has not ended it is reset. Clients on hyper (Rust) that see the reset
before they have read the status lose it, and some of them never end then.
"""
_UNENDED_MAX: Final = 100
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_OK: Final = encode_fields((b":status", b"200"), (b"content-type", b"application/grpc"))
_COMPRESSED: Final = encode_fields((b"grpc-encoding", b"gzip"))
_STATUS: Final = {status: encode_fields((b"grpc-status", b"%d" % status)) for status in Status}
_ACCEPTED: Final = encode_fields((b"grpc-accept-encoding", ",".join(ENCODINGS).encode()))


class ConnectionFailed(Exception):
    """Close the connection once its last bytes, a GOAWAY frame, are sent.

    Attributes:
        flood: the client sent too many frames that need no work.
        of_client: the client broke the protocol; false if the server closes the connection for a reason of its own,
            such as a stop.
    """

    def __init__(self, reason: str, *, flood: bool = False, of_client: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.flood = flood
        self.of_client = of_client


class GrpcConnection:
    """The gRPC calls of one client connection. Takes and returns bytes; has no socket.

    Args:
        partial_requests: of the messages of all connections that have not arrived whole.
        on_call: called for each call that begins; it may set the callbacks of the stream.

    Attributes:
        streams: the open calls.
    """

    def __init__(
        self,
        limits: GrpcLimits,
        partial_requests: PartialRequests[CallStream],
        now: float,
        on_call: Callable[[CallStream], None],
    ) -> None:
        self._limits = limits
        self._partial_requests = partial_requests
        self._on_call = on_call
        self._splitter = FrameSplitter()
        self._guard = FloodGuard(limits, now)
        self._http2 = Http2(
            self,
            streams_max=limits.streams_max,
            header_bytes_max=limits.header_list_bytes_max,
            stream_window=limits.stream_window_bytes,
            connection_window=limits.connection_window_bytes,
        )
        self.streams: dict[int, CallStream] = {}
        # Those with something to send: in turns, or when their own window opens.
        self._ready_streams: dict[int, CallStream] = {}
        self._shut: dict[int, CallStream] = {}
        self._ended_at: dict[int, float] = {}
        self._now = now
        self._begun_at = now
        self._received_at = now
        self._pinged_at: float | None = None
        self._idle_since = now
        self._handshake_done = False
        self._failed = False
        self._drained_at: float | None = None
        self._last_stream: int | None = None

    # ---------------------------------------------------------------------------------- from the client

    def receive(self, data: bytes, now: float) -> None:
        """Handle bytes from the client. Raises ConnectionFailed after it has ended all calls."""
        self._now = self._received_at = now
        self._pinged_at = None
        guard, http2 = self._guard, self._http2
        try:
            for kind, flags, stream_id, payload in self._splitter.split(data):
                self._handshake_done = True
                guard.frame(kind, flags, len(payload), now)
                http2.receive(kind, flags, stream_id, payload)
        except Http2Error as error:
            reason = f"the client floods: {error.reason}" if error.flood else error.reason
            raise self._fail(error.code, reason, flood=error.flood) from error

    def on_loss(self) -> None:
        """End all calls, because the connection is lost. Has no effect the second time."""
        self._failed = True
        for stream in list(self.streams.values()):
            self._close(stream)
            stream.on_end()

    def _fail(self, code: ErrorCode, reason: str, *, flood: bool = False, of_client: bool = True) -> ConnectionFailed:
        self._http2.go_away(code, self._http2.last_stream)
        self.on_loss()
        return ConnectionFailed(reason, flood=flood, of_client=of_client)

    # What `Requests` of HTTP/2 needs.

    def request(self, stream_id: int, fields: list[Field], *, ended: bool) -> None:
        """Start a call, or refuse it."""
        over = len(self.streams) >= self._limits.streams_max
        if over or (self._last_stream is not None and stream_id > self._last_stream):
            self._http2.reset(stream_id, ErrorCode.REFUSED_STREAM)
            self._guard.reset(self._now)
            return
        head: RequestHead | None = None
        refusal: CallRefused | NoGrpc | None = None
        content_length: int | None = None
        try:
            content_length = announced_bytes(fields)
            head = parse_head(fields)
        except MalformedRequest:
            self._http2.reset(stream_id, ErrorCode.PROTOCOL_ERROR)
            self._guard.reset(self._now)
            return
        except (CallRefused, NoGrpc) as error:
            refusal = error
        stream = CallStream(self, stream_id, head, self._limits.message_bytes_max)
        stream.half_closed = ended
        self.streams[stream_id] = stream
        if content_length is not None:
            self._http2.expect(stream_id, content_length)
        if stream.closed:
            return
        match refusal:
            case CallRefused():
                self.finish(stream, refusal.status, refusal.reason, encodings=refusal.accepts_encodings)
            case NoGrpc():
                # Answered when all of the request is there, as HTTP has it.
                stream.text = refusal
                if ended:
                    self._respond_with_text(stream, refusal)
            case None:
                self._on_call(stream)

    def _respond_with_text(self, stream: CallStream, response: NoGrpc) -> None:
        stream.headers_sent = stream.is_finishing = True
        block = encode_fields((b":status", b"%d" % response.http_status), _TEXT)
        self._http2.send_headers(stream.stream_id, block, end=False)
        stream.unsent = memoryview(response.text.encode())
        self._send_rest(stream)

    def reset(self, stream_id: int) -> None:
        """End a call that the client cancelled, or whose stream the client broke."""
        self._ended_at.pop(stream_id, None)
        if (stream := self.streams.get(stream_id)) is not None:
            self._close(stream)
            stream.on_end()

    def rule_broken(self) -> None:
        """Count a stream that the server reset because the client broke a rule of HTTP/2."""
        self._guard.reset(self._now)

    def window_opened(self, stream_id: int) -> None:
        """Send more of a call, whose window may have grown; 0 means the window that all calls share."""
        if stream_id:
            self._reopen(stream_id)
        self.pump()

    def windows_changed(self) -> None:
        """Send more of all calls, whose windows may have grown."""
        for stream_id in list(self._shut):
            self._reopen(stream_id)
        self.pump()

    def _reopen(self, stream_id: int) -> None:
        if stream_id in self._shut and self._http2.window(stream_id) > 0:
            self._ready_streams[stream_id] = self._shut.pop(stream_id)

    def ping_answered(self, data: bytes) -> None:
        """Refuse new calls from now on, if the client answered the ping of a drain."""
        if data == _DRAIN_PING and self._drained_at is not None and self._last_stream is None:
            self._refuse_new_calls()

    def on_end(self, stream_id: int) -> None:
        """Record that the client sends no more for a call."""
        self._ended_at.pop(stream_id, None)
        if (stream := self.streams.get(stream_id)) is not None:
            stream.half_closed = True
            self._half_close(stream)

    def data(self, stream_id: int, data: bytes, nbytes: int, *, ended: bool) -> None:
        """Add received data to a call."""
        stream = self.streams.get(stream_id)
        if stream is None:
            if ended:
                self._ended_at.pop(stream_id, None)
            self._http2.give_back(stream_id, nbytes)
            return
        stream.half_closed = ended
        if stream.head is None or stream.refusal is not None:
            self._http2.give_back(stream_id, nbytes)
        else:
            self._call_data(stream, data, nbytes)
        if ended and not stream.closed:
            self._half_close(stream)

    def _call_data(self, stream: CallStream, data: bytes, nbytes: int) -> None:
        stream.unacked_bytes += nbytes
        has_begun = stream.reader.has_begun
        try:
            messages = stream.reader.feed(data)
        except CallRefused as error:
            self.refuse(stream, error)
            return
        if messages:
            if has_begun:
                self._partial_requests.on_frame_end(stream)
                has_begun = False
            stream.is_waiting = False
            stream.messages.extend(messages)
            stream.on_message()
        if stream.reader.has_begun and not has_begun and stream.reader.announced_bytes > SMALL_BYTES:
            stream.is_waiting = not self._partial_requests.begin(stream, stream.reader.announced_bytes)
        self.give_back(stream)

    def _half_close(self, stream: CallStream) -> None:
        if stream.text is not None:
            self._respond_with_text(stream, stream.text)
        if stream.head is None or stream.refusal is not None:
            return
        try:
            stream.reader.end()
        except CallRefused as error:
            self.refuse(stream, error)
            return
        self.give_back(stream)
        stream.on_message()

    # ------------------------------------------------------------------------------------ from the method

    def take(self, stream: CallStream) -> bytes | None:
        """Remove and return the next message of a call; None if there is none now."""
        if not stream.messages:
            return None
        message = stream.messages.popleft()
        self.give_back(stream)
        return message

    def send(self, stream: CallStream, frame: bytes) -> bool:
        """Send a message with its prefix, after the previous message was sent. Returns whether all of it can be sent
        now; if not, `on_sent` is called later. Raises BrokenCall.
        """
        if stream.closed:
            raise BrokenCall("the client has cancelled the call, or is gone")
        assert not stream.unsent, f"{len(stream.unsent)} bytes of the last message are not sent"
        self._send_headers(stream)
        stream.unsent = memoryview(frame)
        self._send_rest(stream)
        return not stream.unsent

    def finish(self, stream: CallStream, status: Status, reason: str = "", *, encodings: bool = False) -> None:
        """End the call. The unsent rest of its last message is dropped unless the status is OK. No effect if it has
        ended.
        """
        if stream.closed or stream.is_finishing:
            return
        stream.trailers = _STATUS[status]
        if reason:
            stream.trailers += encode_fields((b"grpc-message", percent_encoded(reason)))
        if encodings:
            stream.trailers += _ACCEPTED
        stream.is_finishing = True
        if status is not Status.OK:
            stream.unsent = memoryview(b"")
        self._guard.finished_call()
        self._send_rest(stream)

    def refuse(self, stream: CallStream, refusal: CallRefused) -> None:
        """End a call because of the transport. The caller then stops its method and finishes the call."""
        if stream.closed or stream.refusal is not None:
            return
        stream.refusal = refusal
        self._forget_input(stream)
        stream.on_end()

    def abandon(self, stream: CallStream) -> None:
        """Reset the stream of a client that does not read, and stop its method, which may wait for the client. Has no
        effect if the call has ended.
        """
        if not stream.closed:
            self._http2.reset(stream.stream_id, ErrorCode.CANCEL)
            self._close(stream)
            stream.on_end()

    # ------------------------------------------------------------------------------------- to the client

    def bytes_to_send(self) -> bytes:
        """Remove and return the bytes to send to the client."""
        return self._http2.bytes_to_send()

    @property
    def heard_at(self) -> float:
        """The time at which the client last sent something."""
        return self._received_at

    @property
    def is_lost(self) -> bool:
        """Whether data can no longer arrive, or be sent."""
        return self._failed

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that `bytes_to_send` would return."""
        return len(self._http2.unsent)

    def pump(self) -> None:
        """Send more messages of calls, in turns, after a window grew or bytes were taken to be sent.

        A call whose own window is used up costs nothing until that opens.
        """
        while self._ready_streams and self._has_room():
            stream_id = next(iter(self._ready_streams))
            stream = self._ready_streams.pop(stream_id)
            has_sent = self._send_frame(stream)
            if not stream.unsent:
                self._on_sent(stream)
                continue
            self._wait(stream)
            if not has_sent and stream_id in self._ready_streams:
                return  # the window of the connection is used up

    def _wait(self, stream: CallStream) -> None:
        streams = self._ready_streams if self._http2.window(stream.stream_id) > 0 else self._shut
        streams[stream.stream_id] = stream

    def _has_room(self) -> bool:
        return not self._failed and len(self._http2.unsent) < self._limits.output_bytes_max

    def _send_rest(self, stream: CallStream) -> None:
        stream_id = stream.stream_id
        if stream.unsent and not self._ready_streams and stream_id not in self._shut:
            while stream.unsent and self._has_room() and self._send_frame(stream):
                pass
        if not stream.unsent:
            self._ready_streams.pop(stream_id, None)
            self._shut.pop(stream_id, None)
            if stream.is_finishing:
                self._end(stream)
        elif stream_id not in self._ready_streams and stream_id not in self._shut:
            self._wait(stream)

    def _on_sent(self, stream: CallStream) -> None:
        if stream.is_finishing:
            self._end(stream)
        else:
            stream.on_sent()

    def _send_frame(self, stream: CallStream) -> bool:
        """Send as much as one frame takes. Returns whether anything could be sent."""
        room = self._http2.room(stream.stream_id)
        if room <= 0:
            return False
        self._http2.send_data(stream.stream_id, bytes(stream.unsent[:room]))
        stream.unsent = stream.unsent[room:]
        self._guard.sent_data()
        return True

    def _send_headers(self, stream: CallStream) -> None:
        if not stream.headers_sent:
            stream.headers_sent = True
            is_gzip = stream.head is not None and stream.head.gzip_answers
            self._http2.send_headers(stream.stream_id, _OK + _COMPRESSED if is_gzip else _OK, end=False)

    def _end(self, stream: CallStream) -> None:
        if stream.text is not None:
            self._http2.send_data(stream.stream_id, b"", end=True)
        else:
            # Without a message before them, the trailers are the headers, too.
            block = stream.trailers if stream.headers_sent else _OK + stream.trailers
            self._http2.send_headers(stream.stream_id, block, end=True)
        if not stream.half_closed:
            self._ended_at[stream.stream_id] = self._now
            if len(self._ended_at) > _UNENDED_MAX:
                self._reset_unended(next(iter(self._ended_at)))
        self._close(stream)

    def _reset_unended(self, stream_id: int) -> None:
        del self._ended_at[stream_id]
        self._http2.reset(stream_id, ErrorCode.NO_ERROR)

    def _close(self, stream: CallStream) -> None:
        stream.closed = True
        self.streams.pop(stream.stream_id, None)
        self._ready_streams.pop(stream.stream_id, None)
        self._shut.pop(stream.stream_id, None)
        stream.unsent = memoryview(b"")
        if not self.streams:
            self._idle_since = self._now
        self._forget_input(stream)

    def _forget_input(self, stream: CallStream) -> None:
        self._partial_requests.on_frame_end(stream)
        stream.messages.clear()
        stream.is_waiting = False
        nbytes, stream.unacked_bytes = stream.unacked_bytes, 0
        self._acknowledge(stream.stream_id, nbytes)

    def give_back(self, stream: CallStream) -> None:
        """Let the client send more, unless its last message was not taken, or no memory is free for the next one."""
        if stream.unacked_bytes and not stream.is_waiting and (stream.half_closed or not stream.messages):
            nbytes, stream.unacked_bytes = stream.unacked_bytes, 0
            self._acknowledge(stream.stream_id, nbytes)

    def _acknowledge(self, stream_id: int, nbytes: int) -> None:
        if nbytes and not self._failed:
            self._http2.give_back(stream_id, nbytes)

    # --------------------------------------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Check time limits; call it about once a second. Raises ConnectionFailed if the connection must be closed."""
        limits, self._now = self._limits, now
        for stream_id in [each for each, ended_at in self._ended_at.items() if now - ended_at >= _SECONDS_TO_END]:
            self._reset_unended(stream_id)
        if not self._handshake_done and now - self._begun_at >= limits.handshake_seconds_max:
            raise self._fail(ErrorCode.SETTINGS_TIMEOUT, "the client sent no HTTP/2 frame in time")
        if self._pinged_at is not None and now - self._pinged_at >= limits.ping_seconds_max:
            raise self._fail(ErrorCode.NO_ERROR, "the client does not answer a ping", of_client=False)
        if self._pinged_at is None and self._handshake_done and now - self._received_at >= limits.ping_after_seconds:
            self._pinged_at = now
            self._http2.ping(_PING)
        if not self.streams and now - self._idle_since >= limits.idle_seconds_max:
            raise self._fail(ErrorCode.NO_ERROR, "no call for too long", of_client=False)
        if self._drained_at is not None:
            self._drain_on(self._drained_at, now)

    def drain(self, now: float) -> None:
        """Announce to the client that no new calls are taken. Once it knows, refuse those that it still starts."""
        if self._drained_at is None and not self._failed:
            self._drained_at = now
            self._http2.go_away(ErrorCode.NO_ERROR, _LAST_STREAM)
            self._http2.ping(_DRAIN_PING)

    def _drain_on(self, drained_at: float, now: float) -> None:
        if self._last_stream is None and now - drained_at >= _SECONDS_TO_HEAR:
            self._refuse_new_calls()
        if self._last_stream is not None and not self.streams:
            self.on_loss()
            raise ConnectionFailed("the server stops", of_client=False)

    def _refuse_new_calls(self) -> None:
        self._last_stream = self._http2.last_stream
        self._http2.go_away(ErrorCode.NO_ERROR, self._last_stream)
