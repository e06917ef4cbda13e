"""Compresses and inflates message bodies. Producers compress, brokers store bodies unchanged, consumers inflate."""

from __future__ import annotations

import zlib
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Literal, assert_never, get_args

from mq.protocol.errors import ProtocolError

COMPRESSED: Final = 0x1
CODEC_MASK: Final = 0x700
LZ4: Final = 0x100
ZSTD: Final = 0x200
ZLIB: Final = 0x300

_ZSTD_WINDOW_BYTES_MAX: Final = 32 * 1024 * 1024


Codec = Literal["zlib", "lz4", "zstd"]
"""The codec of a body. All clients support zlib; Java supports the others since 4.9.4, Go does not."""
CODECS: Final = get_args(Codec)


_LIBRARIES: Final = {"lz4": "lz4", "zstd": "zstandard"}


class DecompressionError(ProtocolError):
    """A body cannot be inflated, or would become larger than allowed."""


class CodecMissing(ProtocolError):
    """The library for a codec is not installed. The body itself need not be damaged."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(f"bodies compressed with {codec} need another package: pip install 'raftmq[{codec}]'")
        self.codec = codec


def require_codec(codec: Codec) -> None:
    """Raises CodecMissing if the library for ``codec`` is not installed, ValueError if there is no such codec.

    Does not import the library.
    """
    if codec not in CODECS:
        raise ValueError(f"compress {codec!r} is not one of {', '.join(CODECS)}, nor None")
    if codec in _LIBRARIES and find_spec(_LIBRARIES[codec]) is None:
        raise CodecMissing(codec)


# Imported when first needed: most applications use neither, and both together are larger than the rest of the SDK.


def _lz4() -> Any:
    try:
        return import_module("lz4.frame")
    except ImportError as error:
        raise CodecMissing("lz4") from error


def _zstd() -> Any:
    try:
        return import_module("zstandard")
    except ImportError as error:
        raise CodecMissing("zstd") from error


def deflate(codec: Codec, body: bytes) -> tuple[int, bytes]:
    """Compress a body. Returns the bits for the system flag and the compressed body, or 0 and ``body`` itself if that
    would not be smaller. Raises CodecMissing.
    """
    match codec:
        case "zlib":
            flag, content = ZLIB, zlib.compress(body, level=5)
        case "lz4":
            flag, content = LZ4, _lz4().compress(body)
        case "zstd":
            flag, content = ZSTD, _zstd().ZstdCompressor().compress(body)
        case _:
            assert_never(codec)
    return (COMPRESSED | flag, content) if len(content) < len(body) else (0, body)


def inflate(sys_flag: int, body: bytes, bytes_max: int) -> bytes:
    """Return the original body: inflated, or ``body`` itself if it is not compressed.

    Never produces more than ``bytes_max`` bytes, whatever the body claims. Raises DecompressionError, CodecMissing.
    """
    if not sys_flag & COMPRESSED:
        return body
    codec = sys_flag & CODEC_MASK
    try:
        match codec:
            case 0 | 0x300:  # producers from before the codec bits used zlib
                content, complete = _inflate_zlib(body, bytes_max)
            case 0x100:
                content, complete = _inflate_lz4(body, bytes_max)
            case 0x200:
                content, complete = _inflate_zstd(body, bytes_max)
            case _:
                raise DecompressionError(f"compression codec {codec >> 8} is unknown (system flag {sys_flag:#x})")
    except (zlib.error, RuntimeError, EOFError) as error:
        raise DecompressionError(f"body of {len(body)} bytes, codec {codec >> 8}: {error}") from error
    if len(content) > bytes_max:
        raise DecompressionError(f"body of {len(body)} bytes inflates to more than {bytes_max}")
    if not complete:
        raise DecompressionError(f"body of {len(body)} bytes, codec {codec >> 8}, is cut off")
    return content


def _inflate_zlib(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj()
    content = stream.decompress(body, bytes_max + 1)
    return content, stream.eof


def _inflate_lz4(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    stream = _lz4().LZ4FrameDecompressor()
    content: bytes = stream.decompress(body, max_length=bytes_max + 1)
    return content, bool(stream.eof)


def _inflate_zstd(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    zstandard = _zstd()
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    parts: list[bytes] = []
    room = bytes_max + 1
    try:
        with decompressor.stream_reader(body, read_across_frames=False) as stream:
            while room and (part := stream.read(room)):
                parts.append(part)
                room -= len(part)
        content = b"".join(parts)
        size = zstandard.frame_content_size(body)
        if size >= 0 or not room:
            return content, bool(size == len(content))
        # Without a declared size only the other interface can tell whether the frame ended; the output is limited by
        # now.
        check = decompressor.decompressobj()
        check.decompress(body)
    except zstandard.ZstdError as error:
        raise DecompressionError(f"body of {len(body)} bytes, codec 2: {error}") from error
    return content, bool(check.eof)
