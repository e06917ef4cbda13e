"""Blocks of a consume queue file, each with a checksum over its entries and their identity.

A block has room for `ENTRIES_PER_BLOCK` entries of 20 bytes, followed by 16 bytes, the *trailer*, big-endian:

======  ==========  ==========================================================================================
offset  field       meaning
======  ==========  ==========================================================================================
0       first       queue offset of the block's first entry
8       count       how many entries the checksum covers; the rest of the block is zero, or no longer valid
12      checksum    CRC-32 of these entries, seeded with that of "<topic>/<queue id>/" and ``first`` as 8 bytes
======  ==========  ==========================================================================================

The seed makes a block of another queue, or of another place in this one, as invalid as a flipped bit.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final

from mq.protocol.numbers import QueueOffset
from mq.store.dispatch import QUEUE_ENTRY_BYTES

ENTRIES_PER_BLOCK: Final = 204
"""With this number a block is 4096 bytes: one page, and one block of the disk."""

TRAILER: Final = Struct(">QII")


class BlockDamaged(Exception):
    """A block differs from what was written. ``expected`` and ``actual`` are the differing values."""

    def __init__(self, reason: str, expected: int, actual: int) -> None:
        super().__init__(f"{reason}: expected {expected}, found {actual}")
        self.reason = reason
        self.expected = expected
        self.actual = actual


def block_bytes(entries_per_block: int) -> int:
    """Size of a block in a file."""
    return entries_per_block * QUEUE_ENTRY_BYTES + TRAILER.size


def queue_seed(topic: str, queue_id: int) -> int:
    """Return the seed of the checksums of a queue's blocks."""
    return zlib.crc32(f"{topic}/{queue_id}/".encode())


def seed_of(queue: int, first: QueueOffset) -> int:
    """Return the checksum of an empty block of the queue with this `queue_seed`."""
    return zlib.crc32(first.to_bytes(8, "big"), queue)


def seal(entries: bytes | bytearray, first: QueueOffset, seed: int, entries_per_block: int) -> tuple[bytes, int]:
    """Return a block for writing, made of all its entries so far, and the checksum of the entries."""
    count, rest = divmod(len(entries), QUEUE_ENTRY_BYTES)
    assert rest == 0, f"a block at {first} of {len(entries)} bytes"
    assert count <= entries_per_block, f"a block at {first} of {count} entries, {entries_per_block} fit"
    checksum = zlib.crc32(entries, seed)
    padding = bytes((entries_per_block - count) * QUEUE_ENTRY_BYTES)
    return b"".join((entries, padding, TRAILER.pack(first, count, checksum))), checksum


def verify_count(data: bytes, first: QueueOffset, count: int, seed: int, entries_per_block: int) -> int:
    """Verify the first ``count`` entries of a block by its own trailer, which may cover more.

    Returns the checksum of these ``count`` entries. Raises BlockDamaged.
    """
    if len(data) != block_bytes(entries_per_block):
        raise BlockDamaged("the block is too short", block_bytes(entries_per_block), len(data))
    its_first, its_count, its_checksum = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    if its_first != first:
        raise BlockDamaged("the block belongs to a different queue offset", first, its_first)
    if not count <= its_count <= entries_per_block:
        raise BlockDamaged("number of entries in the block", count, its_count)
    if count == its_count:
        checksum = whole = zlib.crc32(memoryview(data)[: count * QUEUE_ENTRY_BYTES], seed)
    else:
        view = memoryview(data)
        checksum = zlib.crc32(view[: count * QUEUE_ENTRY_BYTES], seed)
        whole = zlib.crc32(view[count * QUEUE_ENTRY_BYTES : its_count * QUEUE_ENTRY_BYTES], checksum)
    if whole != its_checksum:
        raise BlockDamaged("checksum of the block", its_checksum, whole)
    return checksum
