"""Blocks of headers (HPACK, RFC 7541): decodes them with a dynamic table, and encodes them without one."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Final

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from mq.proxy.grpc.frames import ErrorCode, Http2Error

Field = tuple[bytes, bytes]

FIELD_BYTES: Final = 32
"""The size that is added to the name and the value of a field."""
_STATIC: Final[tuple[Field, ...]] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_DYNAMIC_FROM: Final = len(_STATIC)
_TABLE_BYTES_MAX: Final = 4096
_INTEGER_BYTES_MAX: Final = 5
_REMEMBERED_BYTES_MAX: Final = 64


class HeaderDecoder:
    """Decodes the header blocks of one connection, in the order in which they arrive.

    Args:
        bytes_max: limit for the fields of one block.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._table: deque[Field] = deque()
        self._table_bytes = 0
        self._table_bytes_max = _TABLE_BYTES_MAX

    def decode(self, block: bytes) -> list[Field]:
        """Decode the fields of a block. After Http2Error, later blocks cannot be decoded."""
        try:
            return self._decode(block)
        except IndexError as error:
            raise _block_error("a field that is not in the table, or an end within a field") from error

    def _decode(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        at, end, nbytes = 0, len(block), 0
        while at < end:
            first = block[at]
            if first & 0x80:
                index, at = (first & 0x7F, at + 1) if first != 0xFF else _integer(block, at, 0x7F)
                field = self._field(index)
            elif first & 0xE0 == 0x20:
                size, at = _integer(block, at, 0x1F)
                if fields or size > _TABLE_BYTES_MAX:
                    raise _block_error(f"a table of {size} bytes")
                self._table_bytes_max = size
                self._evict()
                continue
            else:
                mask = 0x3F if first & 0x40 else 0x0F
                index, at = (first & mask, at + 1) if first & mask != mask else _integer(block, at, mask)
                if index:
                    name = self._field(index)[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                field = name, value
                if first & 0x40:
                    self._table.appendleft(field)
                    self._table_bytes += len(name) + len(value) + FIELD_BYTES
                    self._evict()
            fields.append(field)
            nbytes += len(field[0]) + len(field[1]) + FIELD_BYTES
            if nbytes > self._bytes_max:
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"headers of more than {self._bytes_max} bytes")
        return fields

    def _field(self, index: int) -> Field:
        if index >= _DYNAMIC_FROM:
            return self._table[index - _DYNAMIC_FROM]
        if not index:
            raise _block_error("a field with the index 0")
        return _STATIC[index]

    def _evict(self) -> None:
        while self._table_bytes > self._table_bytes_max:
            name, value = self._table.pop()
            self._table_bytes -= len(name) + len(value) + FIELD_BYTES


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Parse an integer that starts in the byte at ``at``. Returns it, and the position after it."""
    number = block[at] & mask
    at += 1
    if number < mask:
        return number, at
    for shift in range(0, 7 * _INTEGER_BYTES_MAX, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise _block_error("an integer that is too long")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    first = block[at]
    length, start = (first & 0x7F, at + 1) if first & 0x7F != 0x7F else _integer(block, at, 0x7F)
    end = start + length
    if end > len(block):
        raise _block_error("a block that ends within a field")
    text = block[start:end]
    if first < 0x80:
        return text, end
    try:
        return (_cached_text(text) if length <= _REMEMBERED_BYTES_MAX else decode_huffman(text)), end
    except HPACKDecodingError as error:
        raise _block_error("bytes that are not a Huffman code") from error


@lru_cache(maxsize=1024)
def _cached_text(code: bytes) -> bytes:
    """Decode a Huffman code; cached, since names and most values are repeated."""
    return bytes(decode_huffman(code))


def _block_error(what: str) -> Http2Error:
    return Http2Error(ErrorCode.COMPRESSION_ERROR, f"the header block has {what}")


# ------------------------------------------------------------------------------------------- encoding

NO_TABLE: Final = b"\x20"
"""Begins the first block of a connection: this side uses no dynamic table, whatever its client allows."""
_STATIC_INDEX: Final = {field: index for index, field in reversed(list(enumerate(_STATIC)))}


def encode_fields(*fields: Field) -> bytes:
    """Encode fields without any table or Huffman code, so that the bytes are the same on every connection."""
    return b"".join(_encode_field(field) for field in fields)


def _encode_field(field: Field) -> bytes:
    if (index := _STATIC_INDEX.get(field)) is not None:
        return bytes([0x80 | index])
    return b"\x00" + b"".join(_length(len(text)) + text for text in field)


def _length(nbytes: int) -> bytes:
    if nbytes < 0x7F:
        return bytes([nbytes])
    rest, parts = nbytes - 0x7F, bytearray(b"\x7f")
    while rest >= 0x80:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)
