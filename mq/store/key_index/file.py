"""One file of the key index: where in one part of the log the records with a key are.

A file is made once, from a part that never changes any more, and is complete or absent. All numbers are big endian:

    magic (8 bytes), CRC-32 of the rest of the head (u32), number of blocks (u32)
    begin and end of the entries it is about (u64), position, index and chain of the last of these (u64, u64, u32),
    first and last store time (i64)
    for each block: its first hash (8 bytes), CRC-32 of the block (u32)
    blocks of 4096 keys, the last one less: hash (8 bytes), physical offset of the record less ``begin`` (u32), sorted

A reader finds the blocks of a hash by the head, and reads and checks these alone.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from mq.store.key_index.record_keys import KEY_HASH_BYTES, key_hash, keys_of, records_in
from raftlog.segment.codec import HEADER, HEADER_BYTES, NORMAL, EntryRef, verify_entry
from raftlog.segment.errors import FrameCorrupt

_MAGIC: Final = b"RAFTMQK1"
_START: Final = Struct(">8sII")
_FIELDS: Final = Struct(">QQQQIqq")
_BLOCK: Final = Struct(">8sI")
_OFFSET: Final = Struct(">I")
_KEY_BYTES: Final = KEY_HASH_BYTES + _OFFSET.size
_BLOCK_KEYS: Final = 4096
_BLOCK_BYTES: Final = _BLOCK_KEYS * _KEY_BYTES
_WINDOW_BYTES: Final = 4 * 1024 * 1024

Read = Callable[[int, int], bytes]
"""``read(physical_offset, nbytes)`` of the log."""


class KeyFileDamaged(Exception):
    """The file is not what was written, or is not about this log. Without it the log itself is searched."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class Scope(NamedTuple):
    """What a file is about: entries, the last one of these, and store times; the last is before the first for none."""

    begin: int
    end: int
    last_pos: int
    last_index: int
    last_chain: int
    first_ms: int
    last_ms: int


def build_key_file(read: Read, begin: int, end: int) -> bytes:
    """The content of a file about the entries that lie back to back at ``begin`` to ``end``, 4 GiB at most.

    ``read`` may return bytes straight from the disk: every entry is verified here.

    Raises:
        FrameCorrupt: an entry is damaged, or the bytes are not entries.
        Damaged: an intact entry does not hold records.
        Exception: what ``read`` raises.
    """
    assert end - begin < 1 << 32, f"{end - begin} bytes are more than one file can be about"
    buckets = [bytearray() for _ in range(256)]
    first_ms, last_ms = 2**63 - 1, -(2**63)
    last_pos = last_index = last_chain = 0
    pack = _OFFSET.pack
    for data, at, entry in _verified_entries(read, begin, end):
        last_pos, last_index, last_chain = entry.pos, entry.index, entry.chain
        if entry.kind != NORMAL:
            continue
        behind = entry.pos - begin - at
        for record in records_in(data, at + HEADER_BYTES, at + entry.size):
            if keys := keys_of(data, record):
                first_ms, last_ms = min(first_ms, record.store_ms), max(last_ms, record.store_ms)
                place = pack(behind + record.at)
                for key in keys:
                    hashed = key_hash(record.topic, key)
                    buckets[hashed[0]] += hashed + place
    scope = Scope(begin, end, last_pos, last_index, last_chain, first_ms, last_ms)
    return _encode(scope, b"".join([_sorted(bucket) for bucket in buckets]))


def _verified_entries(read: Read, begin: int, end: int) -> Iterator[tuple[bytes, int, EntryRef]]:
    """Some bytes of the log, where in them an entry begins, and the entry; ascending. Raises FrameCorrupt.

    The predecessor of the first entry is not known, so of that one only the body, size and position are verified.
    """
    pos, nbytes = begin, _WINDOW_BYTES
    index: int | None = None
    chain: int | None = None
    term = 0
    while pos < end:
        data = read(pos, min(nbytes, end - pos))
        view = memoryview(data)
        is_last = pos + len(data) == end or len(data) < nbytes
        at = 0
        while at < len(data):
            rest = len(data) - at
            if not is_last and (rest < HEADER_BYTES or HEADER.unpack_from(data, at)[1] > rest):
                break
            entry = verify_entry(view, at, index, term, pos + at, chain)
            yield data, at, entry
            index, term, chain = entry.index + 1, entry.term, entry.chain
            at += entry.size
        if is_last and pos + at < end:
            raise FrameCorrupt(pos + at, "the file is too short", end, pos + at)
        pos, nbytes = pos + at, _WINDOW_BYTES if at else nbytes * 4


def _sorted(bucket: bytearray) -> bytes:
    raw = bytes(bucket)
    keys = [raw[at : at + _KEY_BYTES] for at in range(0, len(raw), _KEY_BYTES)]
    keys.sort()
    return b"".join(keys)


def _encode(scope: Scope, keys: bytes) -> bytes:
    blocks = [keys[at : at + _BLOCK_BYTES] for at in range(0, len(keys), _BLOCK_BYTES)]
    table = [_BLOCK.pack(block[:KEY_HASH_BYTES], zlib.crc32(block)) for block in blocks]
    head = b"".join((_FIELDS.pack(*scope), *table))
    return b"".join((_START.pack(_MAGIC, zlib.crc32(head), len(blocks)), head, keys))


class KeyFile:
    """An open file of the index; for one thread, and to be closed. Raises KeyFileDamaged, OSError."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            start = os.pread(self._fd, _START.size, 0)
            if len(start) < _START.size:
                raise KeyFileDamaged(path, f"{len(start)} bytes are less than a head")
            magic, crc, blocks = _START.unpack(start)
            if magic != _MAGIC:
                raise KeyFileDamaged(path, f"begins with {magic!r} instead of {_MAGIC!r}")
            size = os.fstat(self._fd).st_size
            self._keys_at = _START.size + _FIELDS.size + blocks * _BLOCK.size
            if not self._keys_at <= size <= self._keys_at + blocks * _BLOCK_BYTES:
                raise KeyFileDamaged(path, f"{size} bytes with {blocks} blocks")
            head = os.pread(self._fd, self._keys_at - _START.size, _START.size)
            if zlib.crc32(head) != crc:
                raise KeyFileDamaged(
                    path, f"checksum of the head {zlib.crc32(head):#010x} where {crc:#010x} was written"
                )
            self.scope = Scope(*_FIELDS.unpack_from(head))
            self._table = list(_BLOCK.iter_unpack(head[_FIELDS.size :]))
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def check_log(self, read: Read) -> None:
        """Raise KeyFileDamaged unless the log has the entry that is the last one here; or what ``read`` raises."""
        scope = self.scope
        if scope.begin == scope.end:
            return
        _, size, index, _, pos, _, chain, _, _ = HEADER.unpack(read(scope.last_pos, HEADER_BYTES))
        if (index, pos, chain, pos + size) != (scope.last_index, scope.last_pos, scope.last_chain, scope.end):
            raise KeyFileDamaged(self._path, f"the log has another entry {scope.last_index} at {scope.last_pos}")

    def places(self, hashed: bytes) -> Iterator[int]:
        """Physical offsets of the records with this hash of a key, descending, block by block."""
        table = self._table
        first = max(0, bisect_left(table, hashed, key=_first) - 1)
        for number in range(bisect_right(table, hashed, key=_first) - 1, first - 1, -1):
            block = self._block(number)
            keys = range(len(block) // _KEY_BYTES)

            def hash_at(key: int, block: bytes = block) -> bytes:
                return block[key * _KEY_BYTES : key * _KEY_BYTES + KEY_HASH_BYTES]

            begin = bisect_left(keys, hashed, key=hash_at)
            for key in range(bisect_right(keys, hashed, key=hash_at) - 1, begin - 1, -1):
                yield self.scope.begin + _OFFSET.unpack_from(block, key * _KEY_BYTES + KEY_HASH_BYTES)[0]

    def _block(self, number: int) -> bytes:
        block = os.pread(self._fd, _BLOCK_BYTES, self._keys_at + number * _BLOCK_BYTES)
        if zlib.crc32(block) != self._table[number][1]:
            raise KeyFileDamaged(self._path, f"checksum of block {number} differs")
        return block


def _first(row: tuple[bytes, int]) -> bytes:
    return row[0]
