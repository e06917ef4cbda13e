"""Splits received bytes into frames of HTTP/2 (RFC 9113, section 4), and makes frames."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
FRAME_BYTES_MAX: Final = 16_384
"""The longest payload in both directions: we announce no more, and every client takes as much."""

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

_STREAM_ID: Final = 0x7FFF_FFFF
_HEADER: Final = struct.Struct("!IBI")


class Kind(enum.IntEnum):
    """The types of HTTP/2 frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class ErrorCode(enum.IntEnum):
    """The reasons for which a stream or connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(Exception):
    """The client broke the rules of HTTP/2. Its connection must end with this code.

    Attributes:
        flood: it sends too much, and not something wrong.
    """

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason

    @property
    def flood(self) -> bool:
        """Whether the client sent too much, rather than something invalid."""
        return self.code is ErrorCode.ENHANCE_YOUR_CALM


class FrameSplitter:
    """Splits the bytes of one connection into frames, and keeps the incomplete one."""

    def __init__(self) -> None:
        self._preface = PREFACE
        self._rest = bytearray()
        self._needed_bytes = HEADER_BYTES

    def split(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield the type, flags, stream and payload of each frame that ``data`` completes.

        Raises Http2Error as soon as the preface is wrong, or the header of a frame that is too long has arrived.
        """
        if self._preface:
            nbytes = min(len(self._preface), len(data))
            if data[:nbytes] != self._preface[:nbytes]:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the client did not send the HTTP/2 connection preface")
            self._preface, data = self._preface[nbytes:], data[nbytes:]
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed_bytes:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at, end = 0, len(data)
        while end - at >= HEADER_BYTES:
            length_and_kind, flags, stream_id = _HEADER.unpack_from(data, at)
            nbytes = length_and_kind >> 8
            if nbytes > FRAME_BYTES_MAX:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame has {nbytes} bytes; maximum: {FRAME_BYTES_MAX}")
            start = at + HEADER_BYTES
            if end - start < nbytes:
                self._needed_bytes = HEADER_BYTES + nbytes
                break
            at = start + nbytes
            yield length_and_kind & 0xFF, flags, stream_id & _STREAM_ID, data[start:at]
        else:
            self._needed_bytes = HEADER_BYTES
        if at < end:
            self._rest += data[at:]


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Make a frame."""
    return _HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload
