"""Entries as bytes: the layout, the checksum, and that nothing damaged passes for an entry."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.log_numbers import LogIndex, Term
from raftlog.segment.checksum import crc32
from raftlog.segment.codec import (
    HEADER_BYTES,
    NOOP,
    NORMAL,
    EntryRef,
    blank,
    frame,
    initial_chain,
    is_blank,
    place,
    scan_entries,
)
from raftlog.segment.errors import FrameCorrupt

SEED = initial_chain("cluster")


def framed(bodies: list[bytes], *, first: int = 1, term: int = 1, pos: int = 0, chain: int = SEED) -> bytes:
    parts: list[bytes] = []
    for index, body in enumerate(bodies, first):
        header, chain = frame(NORMAL, LogIndex(index), Term(term), pos, body, chain)
        parts += (header, body)
        pos += HEADER_BYTES + len(body)
    return b"".join(parts)


def test_header_has_the_documented_layout() -> None:
    header, chain = frame(NOOP, LogIndex(7), Term(3), 4096, b"body", SEED)
    fields = struct.unpack(">IIQQQIIII", header)
    assert fields == (2, 52, 7, 3, 4096, 1, chain, zlib.crc32(b"body"), 4)
    assert chain == zlib.crc32(header[:36] + struct.pack(">I", zlib.crc32(b"body")), SEED)


def test_header_bytes_never_change() -> None:
    """A log written by any version must be readable by every later one."""
    header, _ = frame(NORMAL, LogIndex(1), Term(1), 0, b"a", initial_chain("8c5b1f0e2d7a4c4b9f6d3e2a1b0c9d8e"))
    assert header.hex() == (
        "000000010000003100000000000000010000000000000001000000000000000000000001de1c4bc3e8b7be4300000001"
    )


@given(st.lists(st.binary(max_size=200), max_size=8), st.integers(0, 2**40), st.integers(0, 2**40))
def test_scan_returns_framed_entries(bodies: list[bytes], index: int, pos: int) -> None:
    data = framed(bodies, first=index + 1, pos=pos)
    refs = scan_entries(memoryview(data), SEED)
    at = 0
    for number, (ref, body) in enumerate(zip(refs, bodies, strict=True), 1):
        chain = struct.unpack_from(">I", data, at + 36)[0]
        assert ref == EntryRef(LogIndex(index + number), Term(1), NORMAL, pos + at, HEADER_BYTES + len(body), chain)
        at += ref.size
    assert at == len(data)


def test_scan_detects_every_flipped_bit() -> None:
    data = framed([b"first", b"second"])
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameCorrupt):
            scan_entries(memoryview(damaged), SEED)


def test_scan_detects_every_cut() -> None:
    data = framed([b"first", b"second"])
    whole = HEADER_BYTES + 5
    for length in range(1, len(data)):
        if length == whole:
            continue
        with pytest.raises(FrameCorrupt, match="cut off"):
            scan_entries(memoryview(data)[:length], SEED)


def test_entry_of_another_predecessor_does_not_link() -> None:
    data = framed([b"body"])
    with pytest.raises(FrameCorrupt, match="chain does not link") as caught:
        scan_entries(memoryview(data), initial_chain("another cluster"))
    assert caught.value.physical_offset == 0


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"first": 3}, "index is not the next one: expected 2, found 3"),
        ({"term": 0}, "term is lower than in the previous entry: expected 1, found 0"),
        ({"pos": 10}, "entry overlaps the previous entry: expected 49, found 10"),
    ],
)
def test_non_consecutive_entry_is_refused(second: dict[str, int], reason: str) -> None:
    head, chain = frame(NORMAL, LogIndex(1), Term(1), 0, b"a", SEED)
    data = head + b"a" + framed([b"b"], **({"first": 2, "pos": 49, "chain": chain} | second))
    with pytest.raises(FrameCorrupt, match=reason):
        scan_entries(memoryview(data), SEED)


def test_position_may_jump_to_the_next_file() -> None:
    head, chain = frame(NORMAL, LogIndex(1), Term(1), 0, b"a", SEED)
    data = head + b"a" + framed([b"b"], first=2, pos=4096, chain=chain)
    assert [ref.pos for ref in scan_entries(memoryview(data), SEED)] == [0, 4096]


@pytest.mark.parametrize(
    ("end_pos", "size", "position"),
    [
        (0, 100, 0),
        (100, 148, 100),  # leaves the eight bytes of the smallest blank
        (100, 149, 256),  # would leave seven
        (100, 156, 256),  # would fill the file
        (0, 248, 0),  # the largest entry there is
        (248, 48, 256),
        (248, 248, 256),
        (256 + 10, 48, 266),
    ],
)
def test_place_leaves_room_for_a_blank(end_pos: int, size: int, position: int) -> None:
    assert place(end_pos, size, 256) == position


def test_place_refuses_entries_larger_than_a_file() -> None:
    with pytest.raises(ValueError, match="entry of 249 bytes, a segment holds 248 at most"):
        place(0, 249, 256)


def test_blank_starts_with_its_length() -> None:
    assert blank(8) == b"\xff\xff\xff\xff\x00\x00\x00\x08"
    assert is_blank(blank(300), 300)
    assert not is_blank(blank(300), 299)
    assert not is_blank(bytes(8), 8)


@given(st.binary(max_size=400), st.integers(0, 2**32 - 1))
def test_small_pieces_continue_any_checksum(data: bytes, start: int) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert crc32(data, start) == zlib.crc32(data, start)
    assert crc32(memoryview(data)[3:], start) == zlib.crc32(data[3:], start)


def test_large_entries_at_any_place_in_memory() -> None:
    data = memoryview(random.Random(1).randbytes(300_000))
    for start in range(20):
        for end in (5_000, 65_536 + start, 299_990, 300_000):
            assert crc32(data[start:end], 7) == zlib.crc32(data[start:end], 7)
