"""Decompresses message bodies.

Executors import this module, so the compression libraries are imported when a body needs them: a cluster whose topics
use zlib only needs neither lz4 nor zstandard.
"""

from __future__ import annotations

import zlib
from typing import Final

COMPRESSED: Final = 0x1
_CODEC: Final = 0x700
_ZSTD_WINDOW_BYTES_MAX: Final = 32 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024


class InflateError(Exception):
    """A body is damaged, uses an unknown codec, becomes too large, or needs a library that is not installed."""


def inflate(sys_flag: int, body: bytes, bytes_max: int) -> bytes:
    """The body as the application sent it; ``body`` itself if the record is not compressed.

    Produces at most ``bytes_max`` + 1 bytes, whatever size the body declares. Raises InflateError.
    """
    if not sys_flag & COMPRESSED:
        return body
    match sys_flag & _CODEC:
        case 0 | 0x300:  # producers that know no codec bits use zlib
            inflated, complete = _zlib(body, bytes_max + 1)
        case 0x100:
            inflated, complete = _lz4(body, bytes_max + 1)
        case 0x200:
            inflated, complete = _zstd(body, bytes_max + 1)
        case codec:
            raise InflateError(f"codec {codec >> 8} is unknown")
    if len(inflated) > bytes_max:
        raise InflateError(f"more than {bytes_max} bytes")
    if not complete:
        raise InflateError("the compressed data ends too early")
    return inflated


def _zlib(body: bytes, wanted: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj()
    try:
        return stream.decompress(body, wanted), stream.eof
    except zlib.error as error:
        raise InflateError(str(error)) from error


def _lz4(body: bytes, wanted: int) -> tuple[bytes, bool]:
    try:
        import lz4.frame
    except ImportError as error:
        raise InflateError("the codec is lz4 and the package lz4 is not installed on this executor") from error
    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        return stream.decompress(body, max_length=wanted), bool(stream.eof)
    except (RuntimeError, EOFError) as error:
        raise InflateError(str(error)) from error


def _zstd(body: bytes, wanted: int) -> tuple[bytes, bool]:
    try:
        import zstandard
    except ImportError as error:
        raise InflateError("the codec is zstd and the package zstandard is not installed on this executor") from error
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    parts: list[bytes] = []
    left = wanted
    try:
        with decompressor.stream_reader(body, read_across_frames=False) as stream:
            while left and (part := stream.read(min(left, _PIECE_BYTES))):
                parts.append(part)
                left -= len(part)
        inflated = b"".join(parts)
        declared = zstandard.frame_content_size(body)
        if declared >= 0 or not left:
            return inflated, declared == len(inflated)
        # Without a declared size only this interface tells whether the frame ended; its output is bounded by now.
        check = decompressor.decompressobj()
        check.decompress(body)
        return inflated, bool(check.eof)
    except zstandard.ZstdError as error:
        raise InflateError(str(error)) from error
