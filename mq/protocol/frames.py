"""Splits and encodes frames: 4 bytes length of the rest, 1 header encoding, 3 header length, header, body."""

from __future__ import annotations

import struct
from typing import Final

from mq.protocol.errors import FrameError

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
HEADER_BYTES_MAX: Final = 256 * 1024
"""Properties may have 32,767 bytes, and JSON escapes their separators with six characters: a lower limit would refuse
valid messages.
"""
ANSWER_HEADER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Clients read answers with headers of up to this size, since the answer to a batch names each of its messages in the
header. Java's clients read any header in a frame of 16 MiB.
"""

JSON: Final = 0
BINARY: Final = 1

PREFIX_BYTES: Final = 8
_PREFIX: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")
_TLS_STARTS: Final = (0x1603, 0x1503)
"""The first two bytes of a TLS connection: a handshake or an alert record of version 3."""
_HTTP_START: Final = int.from_bytes(b"HTTP")
"""The first four bytes of an HTTP server's answer."""


def split_frames(
    data: memoryview, *, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = HEADER_BYTES_MAX
) -> tuple[list[tuple[int, memoryview, memoryview]], int]:
    """Split all complete frames off a received chunk.

    Returns:
        ``(serialization, header, body)`` of every complete frame, as views of ``data``, and their total size in bytes.
        The rest is the beginning of a frame: pass it again with the data that follows.

    Raises:
        FrameError: a frame cannot begin like this; detected as soon as its lengths are there. Complete frames before it
            are not returned, since the connection is about to be closed.
    """
    frames: list[tuple[int, memoryview, memoryview]] = []
    at = 0
    end = len(data)
    unpack = _PREFIX.unpack_from
    while end - at >= PREFIX_BYTES:
        length, word = unpack(data, at)
        header_length = word & 0xFFFFFF
        if (
            word > 0x1FFFFFF
            or length > frame_bytes_max
            or header_length + 4 > length
            or header_length > header_bytes_max
        ):
            raise FrameError(_fault(length, word, frame_bytes_max, header_bytes_max))
        header_start = at + PREFIX_BYTES
        header_end = header_start + header_length
        at_next = at + 4 + length
        if at_next > end:
            return frames, at
        frames.append((word >> 24, data[header_start:header_end], data[header_end:at_next]))
        at = at_next
    if end - at >= 4:
        (length,) = _LENGTH.unpack_from(data, at)
        if not 4 <= length <= frame_bytes_max:
            raise FrameError(_length_fault(length, frame_bytes_max))
    return frames, at


def encode_frame(serialization: int, header: bytes, body: bytes = b"") -> bytes:
    """Encode one frame as it is sent over the wire."""
    return b"".join((encode_prefix(serialization, len(header), len(body)), header, body))


def encode_prefix(serialization: int, header_bytes: int, body_bytes: int) -> bytes:
    """Encode the 8 bytes before a header, so that header and body can be sent as separate buffers."""
    assert header_bytes <= 0xFFFFFF, f"header of {header_bytes} bytes"
    return _PREFIX.pack(4 + header_bytes + body_bytes, serialization << 24 | header_bytes)


def _fault(length: int, word: int, frame_bytes_max: int, header_bytes_max: int) -> str:
    header_length = word & 0xFFFFFF
    if not 4 <= length <= frame_bytes_max:
        return _length_fault(length, frame_bytes_max)
    if word >> 24 > BINARY:
        return f"header encoding {word >> 24} is unknown"
    if header_length + 4 > length:
        return f"header of {header_length} bytes in a frame of length {length}"
    return f"header of {header_length} bytes; maximum: {header_bytes_max}"


def _length_fault(length: int, frame_bytes_max: int) -> str:
    if length >> 16 in _TLS_STARTS:
        return f"frame of length {length}: this is the beginning of a TLS handshake, and this port has no TLS"
    if length == _HTTP_START:
        return "it speaks HTTP, as a metrics port does; check host:port"
    signed_length = length - (1 << 32) if length >= 1 << 31 else length
    return f"frame of length {signed_length}; allowed: 4 to {frame_bytes_max}"
