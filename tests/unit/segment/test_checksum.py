"""The checksum of entries is that of zlib, whichever library computes it."""

from __future__ import annotations

import random
import zlib

from hypothesis import given
from hypothesis import strategies as st

from raftlog.segment.checksum import crc32


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
