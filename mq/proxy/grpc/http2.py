"""The server's side of one HTTP/2 connection (RFC 9113): stream states, flow control, errors. No I/O."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Final, Protocol

from mq.proxy.grpc.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    PADDED,
    PRIORITY,
    ErrorCode,
    Http2Error,
    Kind,
    frame,
)
from mq.proxy.grpc.header_blocks import NO_TABLE, Field, HeaderDecoder

WINDOW_AT_START: Final = 65_535
_WINDOW_MAX: Final = 2**31 - 1
_RESETS_KEPT: Final = 1_000
_PRIORITY_BYTES: Final = 5
_PING_BYTES: Final = 8
_SETTING: Final = struct.Struct("!HI")
_NUMBER: Final = struct.Struct("!I")
_WHOLE_STREAMS: Final = frozenset({Kind.DATA, Kind.HEADERS, Kind.PRIORITY, Kind.RST_STREAM, Kind.CONTINUATION})
_WHOLE_CONNECTION: Final = frozenset({Kind.SETTINGS, Kind.PING, Kind.GOAWAY})


class Setting:
    """The codes of HTTP/2 settings."""

    ENABLE_PUSH: Final = 2
    MAX_CONCURRENT_STREAMS: Final = 3
    INITIAL_WINDOW_SIZE: Final = 4
    MAX_FRAME_SIZE: Final = 5
    MAX_HEADER_LIST_SIZE: Final = 6


class Requests(Protocol):
    """Callbacks for received requests. Each may answer at once."""

    def request(self, stream_id: int, fields: list[Field], *, ended: bool) -> None:
        """Called when the client opens a stream."""

    def data(self, stream_id: int, data: bytes, nbytes: int, *, ended: bool) -> None:
        """Called with data of a stream. Call `give_back` with ``nbytes``, which includes padding, later."""

    def on_end(self, stream_id: int) -> None:
        """Called when the client sends no more on this stream."""

    def reset(self, stream_id: int) -> None:
        """Called when a stream ends because the client reset it or broke a rule on it."""

    def rule_broken(self) -> None:
        """Called when the client broke a rule that ends a stream, even if the stream was not open."""

    def window_opened(self, stream_id: int) -> None:
        """Called when the window of a stream grew; 0 means the window that all streams share."""

    def windows_changed(self) -> None:
        """Called when the window of any stream may have grown."""

    def ping_answered(self, data: bytes) -> None:
        """Called when the client answered a ping."""


class _Http2Stream:
    __slots__ = ("arrived_bytes", "length", "local_ended", "remote_ended", "window", "window_in", "window_update_bytes")

    def __init__(self, window: int, window_in: int) -> None:
        self.window = window
        self.window_in = window_in
        self.window_update_bytes = 0
        self.length: int | None = None
        self.arrived_bytes = 0
        self.local_ended = False
        self.remote_ended = False

    @property
    def lacks_data(self) -> bool:
        """Whether more or less data arrived than the client announced."""
        return self.length is not None and self.length != self.arrived_bytes


class Http2:
    """The server side of one HTTP/2 connection, without a socket.

    Attributes:
        last_stream: the highest stream that the client has begun.
        unsent: bytes for the client, to be taken by `bytes_to_send`.
    """

    def __init__(
        self, requests: Requests, *, streams_max: int, header_bytes_max: int, stream_window: int, connection_window: int
    ) -> None:
        self._requests = requests
        self._decoder = HeaderDecoder(header_bytes_max)
        self._streams: dict[int, _Http2Stream] = {}
        self._reset_by_us: OrderedDict[int, None] = OrderedDict()
        self.last_stream = 0
        self.unsent = bytearray()
        self._window = WINDOW_AT_START
        self._initial_window = WINDOW_AT_START
        self._stream_window = stream_window
        self._initial_window_in = WINDOW_AT_START
        self._window_in = max(connection_window, WINDOW_AT_START)
        self._window_update_bytes = 0
        self._give_stream_from = min(stream_window, WINDOW_AT_START) // 2
        self._give_connection_from = self._window_in // 2
        self._block: tuple[int, int, bytearray] | None = None
        self._first_block = NO_TABLE
        self._settings_seen = False
        self._settings_acknowledged = False
        settings = (
            (Setting.MAX_CONCURRENT_STREAMS, streams_max),
            (Setting.INITIAL_WINDOW_SIZE, stream_window),
            (Setting.MAX_HEADER_LIST_SIZE, header_bytes_max),
        )
        self.unsent += frame(Kind.SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in settings))
        if self._window_in > WINDOW_AT_START:
            self._send_window(0, self._window_in - WINDOW_AT_START)

    # ------------------------------------------------------------------------------------ from the client

    def receive(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a received frame. Raises Http2Error."""
        if self._block is not None and (kind != Kind.CONTINUATION or stream_id != self._block[0]):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "another frame came within a header block")
        if not self._settings_seen and kind != Kind.SETTINGS:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if (not stream_id and kind in _WHOLE_STREAMS) or (stream_id and kind in _WHOLE_CONNECTION):
            raise Http2Error(
                ErrorCode.PROTOCOL_ERROR,
                f"a {Kind(kind).name} frame came on stream {stream_id}, where it is not allowed",
            )
        match kind:
            case Kind.DATA:
                self._data(flags, stream_id, payload)
            case Kind.HEADERS:
                self._headers(flags, stream_id, payload)
            case Kind.CONTINUATION:
                self._continuation(flags, payload)
            case Kind.WINDOW_UPDATE:
                self._window_update(stream_id, payload)
            case Kind.PING:
                self._ping(flags, payload)
            case Kind.RST_STREAM:
                self._rst_stream(stream_id, payload)
            case Kind.SETTINGS:
                self._settings(flags, payload)
            case Kind.PRIORITY:
                self._priority(stream_id, payload)
            case Kind.PUSH_PROMISE:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the client pushes, which only servers may")
            case _:
                pass  # GOAWAY, too: the client closes the connection when it has the answers to its calls

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        nbytes = len(payload)
        self._window_in -= nbytes
        if self._window_in < 0:
            raise Http2Error(
                ErrorCode.FLOW_CONTROL_ERROR, "the client sent more data than the window of the connection allows"
            )
        data = _without_padding(flags, payload) if flags & PADDED else payload
        stream = self._streams.get(stream_id)
        if stream is None or stream.remote_ended:
            self._unexpected_data(stream_id, stream, nbytes)
            return
        stream.window_in -= nbytes
        stream.arrived_bytes += len(data)
        is_end = bool(flags & END_STREAM)
        if stream.window_in < 0:
            self._break(stream_id, ErrorCode.FLOW_CONTROL_ERROR, nbytes)
        elif stream.length is not None and (stream.arrived_bytes > stream.length or (is_end and stream.lacks_data)):
            self._break(stream_id, ErrorCode.PROTOCOL_ERROR, nbytes)
        else:
            if is_end:
                self._end_remote(stream_id, stream)
            self._requests.data(stream_id, data, nbytes, ended=is_end)

    def _unexpected_data(self, stream_id: int, stream: _Http2Stream | None, nbytes: int) -> None:
        self._give_connection(nbytes)
        if stream is None:
            self._check_begun(stream_id)
            if stream_id in self._reset_by_us:
                return
        self._break(stream_id, ErrorCode.STREAM_CLOSED, 0)

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = _without_padding(flags, payload) if flags & PADDED else payload
        if flags & PRIORITY:
            if len(block) < _PRIORITY_BYTES:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "the headers end within their priority")
            if _NUMBER.unpack_from(block)[0] & _WINDOW_MAX == stream_id:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
            block = block[_PRIORITY_BYTES:]
        if flags & END_HEADERS:
            self._header_block(flags, stream_id, block)
        else:
            self._block = stream_id, flags, bytearray(block)

    def _continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION came without HEADERS")
        stream_id, first_flags, block = self._block
        block += payload
        if flags & END_HEADERS:
            self._block = None
            self._header_block(first_flags, stream_id, bytes(block))

    def _header_block(self, flags: int, stream_id: int, block: bytes) -> None:
        # Every block must be decoded, whatever becomes of its stream: it changes the table.
        fields = self._decoder.decode(block)
        is_end = bool(flags & END_STREAM)
        if stream_id > self.last_stream:
            if not stream_id % 2:
                raise Http2Error(
                    ErrorCode.PROTOCOL_ERROR,
                    f"the client began stream {stream_id}, and a client's streams have odd numbers",
                )
            self.last_stream = stream_id
            stream = self._streams[stream_id] = _Http2Stream(self._initial_window, self._initial_window_in)
            stream.remote_ended = is_end
            self._requests.request(stream_id, fields, ended=is_end)
            return
        open_stream = self._streams.get(stream_id)
        if open_stream is None:
            if stream_id not in self._reset_by_us:
                raise Http2Error(ErrorCode.STREAM_CLOSED, f"headers came on stream {stream_id}, which is closed")
        elif open_stream.remote_ended:
            self._break(stream_id, ErrorCode.STREAM_CLOSED, 0)
        elif not is_end or open_stream.lacks_data or any(name.startswith(b":") for name, _ in fields):
            self._break(stream_id, ErrorCode.PROTOCOL_ERROR, 0)
        else:
            self._end_remote(stream_id, open_stream)
            self._requests.on_end(stream_id)

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != _NUMBER.size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE has {len(payload)} bytes")
        increment = _NUMBER.unpack(payload)[0] & _WINDOW_MAX
        if not stream_id:
            self._window += increment
            if not increment or self._window > _WINDOW_MAX:
                code = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
                raise Http2Error(code, f"WINDOW_UPDATE by {increment} is out of range")
        elif (stream := self._streams.get(stream_id)) is None:
            self._check_begun(stream_id)
            return
        else:
            stream.window += increment
            if not increment or stream.window > _WINDOW_MAX:
                self._break(stream_id, ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR, 0)
                return
        self._requests.window_opened(stream_id)

    def _ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != _PING_BYTES:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"PING has {len(payload)} bytes")
        if flags & ACK:
            self._requests.ping_answered(payload)
        else:
            self.unsent += frame(Kind.PING, ACK, 0, payload)

    def _rst_stream(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != _NUMBER.size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"RST_STREAM has {len(payload)} bytes")
        if self._streams.pop(stream_id, None) is None:
            self._check_begun(stream_id)
        else:
            self._requests.reset(stream_id)

    def _settings(self, flags: int, payload: bytes) -> None:
        if len(payload) % _SETTING.size or (flags & ACK and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS has {len(payload)} bytes")
        self._settings_seen = True
        if flags & ACK:
            if not self._settings_acknowledged:
                self._settings_acknowledged = True
                self._initial_window_in = self._stream_window
                for stream in self._streams.values():
                    stream.window_in += self._stream_window - WINDOW_AT_START
            return
        for code, value in _SETTING.iter_unpack(payload):
            match code:
                case Setting.ENABLE_PUSH if value > 1:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
                case Setting.INITIAL_WINDOW_SIZE:
                    self._change_windows(value)
                case Setting.MAX_FRAME_SIZE if not FRAME_BYTES_MAX <= value < 2**24:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
                case _:
                    pass
        self.unsent += frame(Kind.SETTINGS, ACK, 0)
        self._requests.windows_changed()

    def _change_windows(self, size: int) -> None:
        if size > _WINDOW_MAX:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {size}")
        change, self._initial_window = size - self._initial_window, size
        for stream in self._streams.values():
            stream.window += change
            if stream.window > _WINDOW_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {size}")

    def _priority(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != _PRIORITY_BYTES:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY has {len(payload)} bytes")
        if _NUMBER.unpack_from(payload)[0] & _WINDOW_MAX == stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def _check_begun(self, stream_id: int) -> None:
        if stream_id > self.last_stream or not stream_id % 2:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a frame came on stream {stream_id}, which was not opened")

    def _end_remote(self, stream_id: int, stream: _Http2Stream) -> None:
        stream.remote_ended = True
        if stream.local_ended:
            del self._streams[stream_id]

    def _break(self, stream_id: int, code: ErrorCode, nbytes: int) -> None:
        """Reset a stream on which the client broke a rule."""
        self._give_connection(nbytes)
        was_open = stream_id in self._streams
        self.reset(stream_id, code)
        if was_open:
            self._requests.reset(stream_id)
        self._requests.rule_broken()

    # ------------------------------------------------------------------------------------- to the client

    def expect(self, stream_id: int, nbytes: int) -> None:
        """Expect ``nbytes`` bytes of data on a stream, as the client announced. More or fewer break the rules."""
        if (stream := self._streams.get(stream_id)) is not None:
            stream.length = nbytes
            if stream.remote_ended and nbytes:
                self._break(stream_id, ErrorCode.PROTOCOL_ERROR, 0)

    def window(self, stream_id: int) -> int:
        """Return how many bytes the client accepts on this stream now; none if it is below 1."""
        return self._streams[stream_id].window

    def room(self, stream_id: int) -> int:
        """Return how many data bytes the next frame of this stream may have; none if it is below 1."""
        return min(self._streams[stream_id].window, self._window, FRAME_BYTES_MAX)

    def send_headers(self, stream_id: int, block: bytes, *, end: bool) -> None:
        """Send a block of headers. With ``end``, nothing more is sent on this stream."""
        payload, self._first_block = self._first_block + block, b""
        assert len(payload) <= FRAME_BYTES_MAX, f"a header block of {len(payload)} bytes"
        self.unsent += frame(Kind.HEADERS, END_HEADERS | END_STREAM if end else END_HEADERS, stream_id, payload)
        if end:
            self._end_local(stream_id)

    def send_data(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Send data, at most as much as `room` returns."""
        stream = self._streams[stream_id]
        stream.window -= len(data)
        self._window -= len(data)
        assert not data or (stream.window >= 0 and self._window >= 0), f"{len(data)} bytes exceed the window"
        self.unsent += frame(Kind.DATA, END_STREAM if end else 0, stream_id, data)
        if end:
            self._end_local(stream_id)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream at once, and ignore what the client still sends on it."""
        self._streams.pop(stream_id, None)
        self._reset_by_us[stream_id] = None
        if len(self._reset_by_us) > _RESETS_KEPT:
            self._reset_by_us.popitem(last=False)
        self.unsent += frame(Kind.RST_STREAM, 0, stream_id, _NUMBER.pack(code))

    def give_back(self, stream_id: int, nbytes: int) -> None:
        """Let the client send ``nbytes`` more, because that many bytes of its data were processed."""
        self._give_connection(nbytes)
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.remote_ended:
            stream.window_update_bytes += nbytes
            if stream.window_update_bytes >= self._give_stream_from:
                stream.window_in += stream.window_update_bytes
                self._send_window(stream_id, stream.window_update_bytes)
                stream.window_update_bytes = 0

    def ping(self, data: bytes) -> None:
        """Send a ping, which the client must answer."""
        self.unsent += frame(Kind.PING, 0, 0, data)

    def go_away(self, code: ErrorCode, last_stream: int) -> None:
        """Tell the client that no streams after ``last_stream`` are served."""
        self.unsent += frame(Kind.GOAWAY, 0, 0, _NUMBER.pack(last_stream) + _NUMBER.pack(code))

    def bytes_to_send(self) -> bytes:
        """Remove and return the bytes to send to the client."""
        data = bytes(self.unsent)
        self.unsent.clear()
        return data

    def _end_local(self, stream_id: int) -> None:
        stream = self._streams[stream_id]
        stream.local_ended = True
        if stream.remote_ended:
            del self._streams[stream_id]

    def _give_connection(self, nbytes: int) -> None:
        self._window_update_bytes += nbytes
        if self._window_update_bytes >= self._give_connection_from:
            self._window_in += self._window_update_bytes
            self._send_window(0, self._window_update_bytes)
            self._window_update_bytes = 0

    def _send_window(self, stream_id: int, increment: int) -> None:
        self.unsent += frame(Kind.WINDOW_UPDATE, 0, stream_id, _NUMBER.pack(increment))


def _without_padding(flags: int, payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]
