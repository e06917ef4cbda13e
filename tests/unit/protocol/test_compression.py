"""Bodies inflate with every codec, never beyond the bound, and never half."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard

from mq.protocol.messages.compression import DecompressionError, inflate

BODY = b"a message body, many times over; " * 1000


def zstd_without_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


CODECS = [
    pytest.param(0x001, zlib.compress, id="zlib of old producers"),
    pytest.param(0x301, zlib.compress, id="zlib"),
    pytest.param(0x101, lz4.frame.compress, id="lz4"),
    pytest.param(0x201, zstandard.compress, id="zstd"),
    pytest.param(0x201, zstd_without_size, id="zstd without its size"),
]


@pytest.mark.parametrize(("sys_flag", "compress"), CODECS)
def test_bodies_inflate_up_to_their_limit(sys_flag: int, compress: Callable[[bytes], bytes]) -> None:
    data = compress(BODY)
    assert len(data) < len(BODY)
    assert inflate(sys_flag, data, len(BODY)) == BODY
    assert inflate(sys_flag, compress(b""), 0) == b""
    with pytest.raises(DecompressionError, match=f"more than {len(BODY) - 1}"):
        inflate(sys_flag, data, len(BODY) - 1)
    with pytest.raises(DecompressionError, match="more than 10"):
        inflate(sys_flag, data, 10)


@pytest.mark.parametrize(("sys_flag", "compress"), CODECS)
def test_damaged_compressed_bodies_are_refused(sys_flag: int, compress: Callable[[bytes], bytes]) -> None:
    data = compress(BODY)
    for bad in (data[:-5], data[: len(data) // 2], data[:3], b"", b"garbage and more of it"):
        with pytest.raises(DecompressionError):
            inflate(sys_flag, bad, len(BODY))


def test_uncompressed_body_is_returned_unchanged() -> None:
    assert inflate(0, BODY, 10) is BODY
    assert inflate(0x300, BODY, 10) is BODY


def test_unknown_codec_is_refused() -> None:
    with pytest.raises(DecompressionError, match="codec 7"):
        inflate(0x701, BODY, 10)
