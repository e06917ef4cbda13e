"""Stores the index of each closed file next to it, so that opening a long log reads only its last file.

A sidecar (``NNN.index``) is synced before it gets its name, and may be missing or outdated: it has a checksum, and it
is valid only if the file's first entry continues the previous file, its last one is where the sidecar says, with that
chain, and a blank follows. An equal chain means equal entries all the way, so a sidecar of earlier content cannot be
wrong. It does not prove that the bytes in between are still intact. One with another format version, the last character
of its first eight, is rebuilt.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from raftlog.log_numbers import LogIndex
from raftlog.segment.codec import BLANK_BYTES_MIN, FLAGS, HEADER, HEADER_BYTES, EntryRef, chain_after, is_blank
from raftlog.segment.files import SegmentFiles
from raftlog.segment.index import IndexPart, SparseIndex
from raftlog.segment.recovery import Read, StopReason, is_intact, scan_file

_MAGIC: Final = b"rfqindx1"
_CRC_BYTES: Final = 4
_PAYLOAD_AT: Final = len(_MAGIC) + _CRC_BYTES


class ClosedFileIndex(msgspec.Struct, frozen=True):
    """One closed file: ``chain_before`` its first entry, its ``last`` one, and its index."""

    chain_before: int
    last: EntryRef
    part: IndexPart


_DECODER = msgspec.msgpack.Decoder(ClosedFileIndex)


def encode_sidecar(sidecar: ClosedFileIndex) -> bytes:
    """Return the content of a sidecar's file."""
    payload = msgspec.msgpack.encode(sidecar)
    return _MAGIC + zlib.crc32(payload).to_bytes(_CRC_BYTES, "big") + payload


def decode_sidecar(data: bytes) -> ClosedFileIndex | None:
    """Decode a sidecar; None for anything but a complete one of this version."""
    payload = data[_PAYLOAD_AT:]
    crc = int.from_bytes(data[len(_MAGIC) : _PAYLOAD_AT], "big")
    # The checksum of nothing is 0, as is a checksum that is missing: a file that was cut short may be its magic alone.
    if data[: len(_MAGIC)] != _MAGIC or not payload or zlib.crc32(payload) != crc:
        return None
    return _DECODER.decode(payload)


def agrees(read: Read, sidecar: ClosedFileIndex, start: int, segment_bytes: int, previous: EntryRef) -> bool:
    """Whether a sidecar matches the file at ``start``, which follows the entry ``previous``."""
    part, last = sidecar.part, sidecar.last
    file_end, last_end = start + segment_bytes, last.pos + last.size
    if (
        part.first_index != previous.index + 1
        or sidecar.chain_before != previous.chain
        or part.positions[0] != start
        or part.term_runs[0][1] < previous.term
        or not start <= last.pos < last_end <= file_end - BLANK_BYTES_MIN
    ):
        return False
    header = read(start, HEADER_BYTES)
    _, _, index, _, pos, _, chain, _, _ = HEADER.unpack(header)
    if (index, pos) != (part.first_index, start) or chain_after(header, previous.chain) != chain:
        return False
    kind, size, index, term, pos, flags, chain, _, _ = HEADER.unpack(read(last.pos, HEADER_BYTES))
    return (
        EntryRef(index, term, kind, pos, size, chain) == last
        # Format versions never decrease, so the last entry has the newest one of its file.
        and flags == FLAGS
        and is_blank(read(last_end, BLANK_BYTES_MIN), file_end - last_end)
    )


def closed_files(
    index: SparseIndex, start: int, end_pos: int, segment_bytes: int, locate: Callable[[LogIndex], EntryRef]
) -> list[tuple[int, bytes]]:
    """The start and the sidecar of each complete file from ``start`` on, of a log that ends at ``end_pos``.

    ``locate`` finds an entry by index, including the one before the first, and may raise.
    """
    sidecars: list[tuple[int, bytes]] = []
    while (behind := start + segment_bytes) <= end_pos:
        first_index, end_index = index.first_at(start), index.first_at(behind)
        assert first_index is not None, f"no entry begins at {start}"
        assert end_index is not None, f"no entry begins at {behind}"
        assert first_index < end_index, f"entries {first_index} to {end_index} in the file at {start}"
        part = index.part(first_index, end_index)
        sidecar = ClosedFileIndex(locate(first_index - 1).chain, locate(end_index - 1), part)
        sidecars.append((start, encode_sidecar(sidecar)))
        start = behind
    return sidecars


def scan_log(
    files: SegmentFiles, base: EntryRef, trusted_end: int, index: SparseIndex
) -> tuple[EntryRef, StopReason, Sequence[tuple[int, bytes]]]:
    """Determine the content of a log: from valid sidecars, and by verifying every entry elsewhere.

    Args:
        base: the entry before the first file, which begins where that ends.
        trusted_end: sidecars are only used for files that end at or below it; 0 verifies everything.
        index: receives the entries.

    Returns:
        The last good entry, where the scan stopped and why, and the start and content of sidecars to write.
    """
    segment_bytes, read = files.segment_bytes, files.pread_padded
    present = set(files.starts)
    new_sidecars: list[tuple[int, bytes]] = []
    last, start, is_trusted = base, base.pos, False
    while start in present:
        before, file_end = last, start + segment_bytes
        has_sidecar = file_end <= trusted_end and file_end in present and files.size(start) == segment_bytes
        sidecar = decode_sidecar(files.read_sidecar(start)) if has_sidecar else None
        if sidecar is not None and agrees(read, sidecar, start, segment_bytes, last):
            index.extend(sidecar.part)
            last, is_trusted = sidecar.last, True
        else:
            last, stop = scan_file(read, start, segment_bytes, last, index)
            if stop is not None:
                if last is before and is_trusted and is_intact(read, start, file_end):
                    # A good entry that does not continue the sidecars: then scan the entries.
                    index.truncate(base.index + 1)
                    return scan_log(files, base, 0, index)
                return last, stop, new_sidecars
            if file_end in present and last is not before:
                part = index.part(before.index + 1, last.index + 1)
                new_sidecars.append((start, encode_sidecar(ClosedFileIndex(before.chain, last, part))))
        start = file_end
    return last, StopReason(start, "the segment file is missing"), new_sidecars
