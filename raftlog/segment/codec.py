"""Entry framing: the bytes on disk and between replicas.

An *entry* is a 48-byte header and a body; all header fields are unsigned big-endian:

======  ==========  =================================================================================================
offset  field       meaning
======  ==========  =================================================================================================
0       type        1 normal, 2 no-op, 3 configuration; 0xFFFFFFFF begins a blank
4       size        48 + body length
8       index       Raft index, first is 1
16      term        term of the leader that appended it
24      pos         physical offset of this header, equal on all replicas
32      flags       bits 0-7 format version (1), bits 8-11 checksum algorithm (0 = CRC-32), others 0
36      chain       CRC-32 of header[0:36] and body_crc, seeded with the previous entry's chain
40      body_crc    CRC-32 of the body
44      body_len    length of the body
======  ==========  =================================================================================================

Every later format version keeps this header with both checksums, so that older software can distinguish an unsupported
entry from a damaged one. The version never decreases within a log.

The chain proves order and distinguishes an entry from older bytes at the same place; two replicas with equal chains
have equal logs up to there. A *blank* fills the rest of a file into which the next entry does not fit. Only its first
eight bytes are written (type, size to the end of the file). The rest is zero, because everything after the end of the
log always is; recovery needs only the eight bytes.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from raftlog.log_numbers import NO_TERM, LogIndex, Term
from raftlog.segment.checksum import crc32 as _crc32
from raftlog.segment.errors import EntryTooNew, FrameCorrupt

HEADER_BYTES: Final = 48
BLANK_BYTES_MIN: Final = 8
SYNC_BYTES_MAX: Final = 1024 * 1024
"""Maximum bytes of one file that are written but not synced, unless a single entry is larger.

Recovery relies on it: a crash leaves at most this much of a log uncertain.
"""

NORMAL: Final = 1
NOOP: Final = 2
CONFIG: Final = 3
BLANK: Final = 0xFFFFFFFF
FLAGS: Final = 1
"""Format version 1, checksum algorithm 0."""
_VERSION_MASK: Final = 0xFF

HEADER: Final = struct.Struct(">IIQQQIIII")
# The chained part with body_crc directly after it, so that one checksum call covers both.
_CHAINED = struct.Struct(">IIQQQII")
_REST = struct.Struct(">III")
_BLANK = struct.Struct(">II")


class EntryRef(msgspec.Struct, frozen=True, gc=False):
    """Place and identity of an entry; ``size`` includes the header, ``chain`` is the one after this entry."""

    index: LogIndex
    term: Term
    kind: int
    pos: int
    size: int
    chain: int


class TailEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry in memory, ready to be written and sent.

    ``size`` is header and body; ``annotation`` is an opaque hint of the appending side that is never written to disk.
    """

    index: LogIndex
    term: Term
    kind: int
    pos: int
    size: int
    chain: int
    header: bytes
    body: bytes
    annotation: bytes = b""


def initial_chain(cluster_id: str) -> int:
    """Return the chain before the first entry. It differs between clusters, so that their logs do not connect."""
    return _crc32(cluster_id.encode())


def place(end_pos: int, size: int, segment_bytes: int) -> int:
    """Return the position of the next entry if the log ends at ``end_pos``.

    An entry of ``size`` bytes (including the header) needs ``size + 8`` free bytes in its file, so that a blank always
    fits after it; otherwise the rest of the file becomes a blank and the entry begins the next file.

    Raises:
        ValueError: it fits into no file.
    """
    if size > segment_bytes - BLANK_BYTES_MIN:
        raise ValueError(f"entry of {size} bytes, a segment holds {segment_bytes - BLANK_BYTES_MIN} at most")
    rest = segment_bytes - end_pos % segment_bytes
    return end_pos if rest >= size + BLANK_BYTES_MIN else end_pos + rest


def frame(kind: int, index: LogIndex, term: Term, pos: int, body: bytes, chain: int) -> tuple[bytes, int]:
    """Build an entry's header; returns it and the chain after the entry. ``chain`` is the one before it."""
    body_crc = _crc32(body)
    body_len = len(body)
    fields = _CHAINED.pack(kind, HEADER_BYTES + body_len, index, term, pos, FLAGS, body_crc)
    chain = _crc32(fields, chain)
    return fields[:36] + _REST.pack(chain, body_crc, body_len), chain


def chain_after(header: bytes | memoryview, chain: int) -> int:
    """Return the chain after an entry with this header, if ``chain`` is the one before it."""
    return _crc32(header[40:44], _crc32(header[:36], chain))


def blank(nbytes: int) -> bytes:
    """Return the first eight bytes of a blank of ``nbytes`` bytes."""
    assert nbytes >= BLANK_BYTES_MIN, f"blank of {nbytes} bytes, {BLANK_BYTES_MIN} are needed"
    return _BLANK.pack(BLANK, nbytes)


def is_blank(start: bytes | memoryview, nbytes: int) -> bool:
    """Whether ``start`` begins a blank that fills ``nbytes`` bytes."""
    return nbytes >= BLANK_BYTES_MIN and start[:BLANK_BYTES_MIN] == _BLANK.pack(BLANK, nbytes)


def is_newer(flags: int) -> bool:
    """Whether the flags of an entry mean a newer format version."""
    return FLAGS < flags <= _VERSION_MASK


def _has_checksums(entry: memoryview, chain: int | None) -> bool:
    """Whether header and body of a complete entry are intact; ``chain`` is the one before it, if known."""
    its_chain, body_crc, _ = _REST.unpack_from(entry, 36)
    return _crc32(entry[HEADER_BYTES:]) == body_crc and (chain is None or chain_after(entry, chain) == its_chain)


def verify_entry(
    buffer: memoryview, at: int, index: LogIndex | None, term: Term, pos: int | None, chain: int | None
) -> EntryRef:
    """Verify the entry at ``buffer[at:]`` against its predecessor.

    Args:
        index, pos: expected header values, or None if unknown; then only the chain verifies them.
        term: the predecessor's; terms never decrease.
        chain: after the predecessor; None if unknown: then only the body's checksum is verified.

    Raises:
        FrameCorrupt: with the first wrong field; `EntryTooNew` for an intact entry of a newer format version.
    """
    rest = len(buffer) - at
    if rest < HEADER_BYTES:
        raise FrameCorrupt(pos or 0, "header is cut off", HEADER_BYTES, rest)
    kind, size, its_index, its_term, its_pos, flags, its_chain, body_crc, body_len = HEADER.unpack_from(buffer, at)
    offset = its_pos if pos is None else pos
    if not NORMAL <= kind <= CONFIG:
        raise FrameCorrupt(offset, "unknown type", NORMAL, kind)
    if size != HEADER_BYTES + body_len:
        raise FrameCorrupt(offset, "size differs from header plus body", HEADER_BYTES + body_len, size)
    if size > rest:
        raise FrameCorrupt(offset, "entry is cut off", size, rest)
    if index is not None and its_index != index:
        raise FrameCorrupt(offset, "index is not the next one", index, its_index)
    if its_term < term:
        raise FrameCorrupt(offset, "term is lower than in the previous entry", term, its_term)
    if its_pos != offset:
        raise FrameCorrupt(offset, "the entry's header names a different position", offset, its_pos)
    if flags != FLAGS and is_newer(flags) and _has_checksums(buffer[at : at + size], chain):
        raise EntryTooNew(offset, flags, FLAGS)
    if flags != FLAGS:
        raise FrameCorrupt(offset, "unknown format", FLAGS, flags)
    if (crc := _crc32(buffer[at + HEADER_BYTES : at + size])) != body_crc:
        raise FrameCorrupt(offset, "checksum of the body differs", body_crc, crc)
    if chain is not None and (chain := chain_after(buffer[at : at + HEADER_BYTES], chain)) != its_chain:
        raise FrameCorrupt(offset, "chain does not link", chain, its_chain)
    return EntryRef(its_index, its_term, kind, its_pos, size, its_chain)


def scan_entries(buffer: memoryview, chain: int) -> list[EntryRef]:
    """Verify complete entries back to back, as replicas send them.

    Blanks are not sent: a position may jump to the beginning of the next file. ``chain`` is the one before the first
    entry.

    Raises:
        FrameCorrupt: an entry is damaged, incomplete, or does not follow its predecessor.
    """
    refs: list[EntryRef] = []
    at, end = 0, len(buffer)
    index: LogIndex | None = None
    term, pos_min = NO_TERM, 0
    while at < end:
        ref = verify_entry(buffer, at, index, term, None, chain)
        if ref.pos < pos_min:
            raise FrameCorrupt(ref.pos, "entry overlaps the previous entry", pos_min, ref.pos)
        refs.append(ref)
        at += ref.size
        index, term, chain, pos_min = ref.index + 1, ref.term, ref.chain, ref.pos + ref.size
    return refs
