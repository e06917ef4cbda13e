"""A file of the key index: the places of the records with a key in one part of the log.

A file is built once, from a part that no longer changes, and is complete or absent. All numbers are big-endian:

    magic (8 bytes), CRC-32 of the rest of the head (u32), number of blocks (u32)
    begin and end of its entries (u64), position, index and chain of the last entry (u64, u64, u32),
    first and last store time (i64)
    for each block: its first hash (u32), CRC-32 of the block (u32)
    blocks of 4096 rows, the last one less: hash of a key (u32), physical offset of the record less ``begin`` (u32),
    sorted

A reader finds the blocks of a hash in the head, and reads and verifies only these.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from raftlog.log_numbers import LogIndex
from raftlog.segment.codec import HEADER, HEADER_BYTES

_MAGIC: Final = b"RAFTMQK2"
_START: Final = Struct(">8sII")
_FIELDS: Final = Struct(">QQQQIqq")
_BLOCK: Final = Struct(">II")
_ROW: Final = Struct(">II")
_BLOCK_ROWS: Final = 4096
_BLOCK_BYTES: Final = _BLOCK_ROWS * _ROW.size

Read = Callable[[int, int], bytes]
"""``read(physical_offset, nbytes)`` of the log."""


class KeyFileDamaged(Exception):
    """The file is damaged, or belongs to another log. Without it the log itself is searched."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class Scope(NamedTuple):
    """The range of entries that a file covers, the last entry, and store times; without any, the last is before the
    first.
    """

    begin: int
    end: int
    last_pos: int
    last_index: LogIndex
    last_chain: int
    first_ms: int
    last_ms: int


def encode_key_file(scope: Scope, rows: bytes) -> bytes:
    """Return the content of a file with these sorted rows."""
    assert len(rows) % _ROW.size == 0, f"rows of {len(rows)} bytes, each has {_ROW.size}"
    assert scope.begin <= scope.end, f"a file for the log from {scope.begin} to {scope.end}"
    blocks = [rows[at : at + _BLOCK_BYTES] for at in range(0, len(rows), _BLOCK_BYTES)]
    table = [_BLOCK.pack(_ROW.unpack_from(block)[0], zlib.crc32(block)) for block in blocks]
    head = b"".join((_FIELDS.pack(*scope), *table))
    return b"".join((_START.pack(_MAGIC, zlib.crc32(head), len(blocks)), head, rows))


class KeyFile:
    """An open file of the index, for one thread; must be closed. Raises KeyFileDamaged, OSError."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            start = os.pread(self._fd, _START.size, 0)
            if len(start) < _START.size:
                raise KeyFileDamaged(path, f"the file has {len(start)} bytes, fewer than a header")
            magic, crc, blocks = _START.unpack(start)
            if magic != _MAGIC:
                raise KeyFileDamaged(path, f"the file begins with {magic!r} instead of {_MAGIC!r}")
            size = os.fstat(self._fd).st_size
            self._rows_at = _START.size + _FIELDS.size + blocks * _BLOCK.size
            if not self._rows_at <= size <= self._rows_at + blocks * _BLOCK_BYTES:
                raise KeyFileDamaged(path, f"a file of {size} bytes cannot have {blocks} blocks")
            head = os.pread(self._fd, self._rows_at - _START.size, _START.size)
            if zlib.crc32(head) != crc:
                raise KeyFileDamaged(
                    path, f"the checksum of the head is {zlib.crc32(head):#010x}, but {crc:#010x} was written"
                )
            self.scope = Scope(*_FIELDS.unpack_from(head))
            self._table = list(_BLOCK.iter_unpack(head[_FIELDS.size :]))
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def check_part(self, part: int, behind: int) -> None:
        """Raise KeyFileDamaged if the entries of this file do not begin in the part between these physical offsets."""
        assert part < behind, f"a part from {part} to {behind}"
        scope = self.scope
        if scope.begin != scope.end and not part <= scope.begin < behind:
            raise KeyFileDamaged(
                self._path, f"the file covers the log from {scope.begin} to {scope.end}, not this part"
            )

    def check_log(self, read: Read) -> None:
        """Raise KeyFileDamaged unless the log contains the last entry of this file; or the errors of ``read``."""
        scope = self.scope
        if scope.begin == scope.end:
            return
        _, size, index, _, pos, _, chain, _, _ = HEADER.unpack(read(scope.last_pos, HEADER_BYTES))
        if (index, pos, chain, pos + size) != (scope.last_index, scope.last_pos, scope.last_chain, scope.end):
            raise KeyFileDamaged(
                self._path,
                f"the entry at log index {scope.last_index}, position {scope.last_pos}, differs from the one that the "
                "key file was built from",
            )

    def places(self, hash_value: int) -> Iterator[int]:
        """Physical offsets of the records with this hash, descending, block by block."""
        table = self._table
        first = max(0, bisect_left(table, hash_value, key=_first) - 1)
        for number in range(bisect_right(table, hash_value, key=_first) - 1, first - 1, -1):
            block = self._block(number)
            rows = range(len(block) // _ROW.size)

            def hash_at(row: int, block: bytes = block) -> int:
                return int(_ROW.unpack_from(block, row * _ROW.size)[0])

            begin = bisect_left(rows, hash_value, key=hash_at)
            for row in range(bisect_right(rows, hash_value, key=hash_at) - 1, begin - 1, -1):
                yield self.scope.begin + int(_ROW.unpack_from(block, row * _ROW.size)[1])

    def _block(self, number: int) -> bytes:
        block = os.pread(self._fd, _BLOCK_BYTES, self._rows_at + number * _BLOCK_BYTES)
        if zlib.crc32(block) != self._table[number][1]:
            raise KeyFileDamaged(self._path, f"the checksum of block {number} differs")
        return block


def _first(row: tuple[int, int]) -> int:
    return row[0]
