"""Computes Java's string hash, and the hash of tags by which brokers filter."""

from __future__ import annotations

import struct
from functools import lru_cache
from operator import mul
from typing import Final

_CACHED_CHARACTERS_MAX: Final = 128
_POWERS: list[int] = [1]


def java_string_hash(text: str) -> int:
    """Compute Java's ``String.hashCode`` of ``text``: over UTF-16 code units, as a signed 32-bit number."""
    data = text.encode("utf-16-be", "surrogatepass")
    count = len(data) // 2
    while len(_POWERS) < count:
        _POWERS.append(_POWERS[-1] * 31 & 0xFFFFFFFF)
    units = struct.unpack(f">{count}H", data)
    total: int = sum(map(mul, units, reversed(_POWERS[:count]))) & 0xFFFFFFFF
    return total - (1 << 32) if total >= 1 << 31 else total


def tag_code(tags: str) -> int:
    """Return the number by which brokers filter a message: the hash of its TAGS value, 0 without tags."""
    # There are few distinct tags; a long text is not a tag, and caching it would cost memory.
    return _cached_hash(tags) if len(tags) <= _CACHED_CHARACTERS_MAX else java_string_hash(tags)


_cached_hash: Final = lru_cache(maxsize=4096)(java_string_hash)
