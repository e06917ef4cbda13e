"""Speaks etcd's gRPC protocol: one put for each message, or a transaction of puts for a batch, each on a new stream.

The headers of all requests are the same bytes (HPACK without its table). Those of responses are not decoded: a failed
request has no message in its response, only trailers.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterable, Sequence

from benchmarks.wires.wire import LoadFailed, Slots

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACKNOWLEDGED, _END_HEADERS = 1, 1, 4
_FRAME_BYTES_MAX = 16384
_WINDOW_BYTES = 65535
_WINDOW_BYTES_MAX = 2**31 - 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = struct.Struct(">BHBBI")
"""The head of a frame: length (one byte and two), type, flags, stream."""


class EtcdWire:
    """Speaks gRPC to etcd. The stream id, an odd number that increases, identifies a request."""

    def __init__(self, slots: Slots) -> None:
        puts = [_put(b"bench/%d" % slot, slots.body(slot)) for slot in slots.numbers]
        if slots.batch == 1:
            path, messages = b"/etcdserverpb.KV/Put", puts
        else:
            path = b"/etcdserverpb.KV/Txn"
            messages = [
                _transaction([_put(b"bench/%d/%d" % (slot, number), slots.body(slot)) for number in range(slots.batch)])
                for slot in slots.numbers
            ]
        self._headers = _request_headers(path)
        self._messages = [b"\x00" + struct.pack(">I", len(message)) + message for message in messages]
        self._stream = 1
        self._answered_slots: set[int] = set()
        self._window = _WINDOW_BYTES
        self._control = b""
        self._held_requests: deque[tuple[int, bytes]] = deque()
        """Frames that wait until the server has room, with the bytes that they take of its window."""

    def open(self, sock: socket.socket) -> None:
        """Send HTTP/2 settings, and a window that is large enough for all responses."""
        more = struct.pack(">I", _WINDOW_BYTES_MAX - _WINDOW_BYTES)
        sock.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_WINDOW, 0, 0, more))

    def initial(self) -> tuple[Iterable[int], bytes]:
        """Encode the put of each slot. Returns the stream ids, and the bytes to send."""
        return self._ask(len(self._messages))

    def idle(self) -> Sequence[int]:
        """Return a key for each slot. Only their number matters, because the stream ids increase."""
        return range(len(self._messages))

    def read_responses(self, data: bytes) -> tuple[Sequence[int], int]:
        """Read responses. Each of them must contain a message."""
        keys, position, end = list[int](), 0, len(data)
        while position + 9 <= end:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, position)
            begin = position + 9
            next_frame = begin + (high << 16 | low)
            if next_frame > end:
                break
            position = next_frame
            if kind == _DATA:
                self._answered_slots.add(stream)
            elif kind == _HEADERS:
                if flags & _END_STREAM:
                    if stream not in self._answered_slots:
                        raise LoadFailed(f"etcd refused a request: {data[begin:next_frame]!r}")
                    self._answered_slots.remove(stream)
                    keys.append(stream)
            elif kind == _WINDOW:
                if not stream:
                    self._window += int.from_bytes(data[begin:next_frame], "big")
            elif kind in (_SETTINGS, _PING):
                if not flags & _ACKNOWLEDGED:
                    payload = data[begin:next_frame] if kind == _PING else b""
                    self._control += _frame(kind, _ACKNOWLEDGED, 0, payload)
            elif kind in (_RESET, _GO_AWAY):
                raise LoadFailed(f"etcd ended a stream: {data[begin:next_frame]!r}")
        return keys, position

    def repeat(self, keys: Sequence[int]) -> tuple[Iterable[int], bytes]:
        """Encode the puts again on new streams, as many as the server's window allows."""
        control, self._control = self._control, b""
        streams, data = self._ask(len(keys))
        return streams, control + data

    def _ask(self, count: int) -> tuple[Iterable[int], bytes]:
        streams = range(self._stream, self._stream + 2 * count, 2)
        self._stream += 2 * count
        for stream in streams:
            message = self._messages[stream // 2 % len(self._messages)]
            parts = [message[at : at + _FRAME_BYTES_MAX] for at in range(0, len(message), _FRAME_BYTES_MAX)]
            frames = [_frame(_DATA, 0, stream, part) for part in parts[:-1]]
            frames.append(_frame(_DATA, _END_STREAM, stream, parts[-1]))
            headers = _frame(_HEADERS, _END_HEADERS, stream, self._headers)
            self._held_requests.append((len(message), headers + b"".join(frames)))
        ready = []
        while self._held_requests and self._held_requests[0][0] <= self._window:
            size, frames_of_request = self._held_requests.popleft()
            self._window -= size
            ready.append(frames_of_request)
        return streams, b"".join(ready)


def _request_headers(path: bytes) -> bytes:
    """Encode the headers of a POST over http, as indexes into HPACK's static table, and texts below 127 bytes."""
    return (
        b"\x83\x86"
        + _indexed_name(0x04, path)
        + _indexed_name(0x01, b"127.0.0.1")
        + b"\x0f\x10"  # content-type is number 31
        + _text(b"application/grpc")
        + b"\x00"
        + _text(b"te")
        + _text(b"trailers")
    )


def _indexed_name(number: int, value: bytes) -> bytes:
    return bytes((number,)) + _text(value)


def _text(value: bytes) -> bytes:
    return bytes((len(value),)) + value


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload)
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def _put(key: bytes, value: bytes) -> bytes:
    """Encode a PutRequest."""
    return _field(1, key) + _field(2, value)


def _transaction(puts: Sequence[bytes]) -> bytes:
    """Encode a TxnRequest without conditions."""
    return b"".join(_field(2, _field(2, put)) for put in puts)


def _field(number: int, value: bytes) -> bytes:
    """Encode a field of Protocol Buffers that has a length."""
    return bytes((number << 3 | 2,)) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)
