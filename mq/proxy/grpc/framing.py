"""Splits a stream into gRPC messages: a flag, a length and the message, which is compressed if the flag says so."""

from __future__ import annotations

import gzip
import zlib
from typing import Final

from mq.proxy.grpc.status import CallRefused, Status

PREFIX_BYTES: Final = 5
ENCODINGS: Final = ("identity", "gzip")
"""Encodings that both directions support."""
COMPRESS_FROM_BYTES: Final = 1024
"""Shorter answers are not compressed."""
_GZIP_WINDOW: Final = 31
_FAST: Final = 1


class MessageReader:
    """Splits the bytes of one call into messages.

    Args:
        encoding: of the messages that are compressed, one of `ENCODINGS`.
        bytes_max: limit for one message, also after its decompression.

    Attributes:
        announced_bytes: the length of the message that has not arrived whole; 0 if there is none.
    """

    __slots__ = ("_buffer", "_bytes_max", "_encoding", "_is_compressed", "announced_bytes", "has_begun")

    def __init__(self, encoding: str, bytes_max: int) -> None:
        self._encoding = encoding
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._is_compressed = False
        self.has_begun = False
        self.announced_bytes = 0

    @property
    def unfinished_bytes(self) -> int:
        """The number of received bytes of the incomplete message."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that ``data`` completes, decompressed. After CallRefused, nothing more can be read."""
        buffer = self._buffer
        if not buffer and not self.has_begun and len(data) >= PREFIX_BYTES:
            # One message in one frame is the rule, and needs no copy into the buffer.
            self._begin(data)
            if len(data) == PREFIX_BYTES + self.announced_bytes:
                return [self._complete(data[PREFIX_BYTES:])]
            self.has_begun = False
        buffer += data
        messages = []
        while True:
            if not self.has_begun:
                if len(buffer) < PREFIX_BYTES:
                    break
                self._begin(buffer)
                del buffer[:PREFIX_BYTES]
            if len(buffer) < self.announced_bytes:
                break
            body = bytes(memoryview(buffer)[: self.announced_bytes])
            del buffer[: self.announced_bytes]
            messages.append(self._complete(body))
        return messages

    def end(self) -> None:
        """Check that no message is incomplete, when the client sends no more. Raises CallRefused."""
        if self.has_begun or self._buffer:
            raise CallRefused(Status.INTERNAL, "the last message is incomplete")

    def _begin(self, prefix: bytes | bytearray) -> None:
        flag = prefix[0]
        nbytes = int.from_bytes(prefix[1:PREFIX_BYTES], "big")
        if flag > 1:
            raise CallRefused(Status.INTERNAL, f"the message has the unknown flags {flag:#x}")
        if flag and self._encoding == "identity":
            raise CallRefused(Status.INTERNAL, "the message is compressed: expected its encoding in grpc-encoding")
        if nbytes > self._bytes_max:
            raise _too_large(self._bytes_max)
        self.has_begun, self._is_compressed, self.announced_bytes = True, bool(flag), nbytes

    def _complete(self, body: bytes) -> bytes:
        self.has_begun, self.announced_bytes = False, 0
        return decompress(body, self._bytes_max) if self._is_compressed else body


def _too_large(bytes_max: int) -> CallRefused:
    return CallRefused(Status.RESOURCE_EXHAUSTED, f"the message has more than {bytes_max} bytes")


def decompress(data: bytes, bytes_max: int) -> bytes:
    """Decompress a gzip member. Raises CallRefused if it is damaged, or if its content exceeds ``bytes_max``; it
    decompresses no more than that.
    """
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        content = inflater.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise CallRefused(Status.INTERNAL, f"the message is not gzip: {error}") from error
    if len(content) > bytes_max:
        raise _too_large(bytes_max)
    if not inflater.eof or inflater.unused_data:
        raise CallRefused(Status.INTERNAL, "the message is not exactly one gzip member")
    return content


def frame_message(message: bytes, *, compress: bool) -> bytes:
    """Add the prefix to a message. With ``compress``, use gzip if the message is long enough and becomes shorter."""
    data = bytes(message)
    if compress and len(data) >= COMPRESS_FROM_BYTES:
        compressed_message = gzip.compress(data, _FAST, mtime=0)
        if len(compressed_message) < len(data):
            return b"\x01" + len(compressed_message).to_bytes(4, "big") + compressed_message
    return b"\x00" + len(data).to_bytes(4, "big") + data
