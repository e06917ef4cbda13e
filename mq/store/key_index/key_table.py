"""Extracts the keys of all records in a range of the log at once, with numpy, for key files.

A *row* is one key of one record, as an unsigned 64-bit integer: the hash of the key above the record's distance from
the beginning of the file's entries. Only the process that builds key files imports this.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from mq.protocol import properties as props
from mq.protocol.messages.records import (
    BORN_HOST_IPV6,
    FIXED,
    MAGIC_V1,
    MAGIC_V2,
    ROLLBACK,
    STORE_HOST_IPV6,
    TRANSACTION_MASK,
)
from mq.store.key_index.record_keys import (
    FINAL_FACTOR,
    HASHED_BYTES_MAX,
    KEY_HASH_BITS,
    TOPIC_FACTOR,
    WORD_FACTORS,
    EntriesDamaged,
)

Integers = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint64]

_SIZE: Final = struct.Struct(">i")
_END: Final = props.VALUE_END.encode()
_BLANK: Final = ord(" ")
_UNIQUE: Final = f"{props.UNIQUE_KEY}{props.NAME_END}".encode()
_KEYS: Final = f"{props.KEYS}{props.NAME_END}".encode()
PADDING: Final = bytes(max(8, len(_UNIQUE), len(_KEYS)))
"""Appended, since a name or a word may be read starting at the last byte."""
_HASH_SHIFT: Final = np.uint64(32)


def record_starts(data: bytes, at: int, end: int) -> list[int]:
    """The positions in ``data[at:end]``, the body of an entry, at which its records begin. Raises EntriesDamaged."""
    starts: list[int] = []
    append, size_at = starts.append, _SIZE.unpack_from
    last = end - FIXED
    while at <= last:
        append(at)
        size = size_at(data, at)[0]
        if size < FIXED:
            raise EntriesDamaged(at, f"a record has {size} bytes; minimum: {FIXED}")
        at += size
    if at != end:
        raise EntriesDamaged(at, f"no record begins here, and the entry ends at {end}")
    return starts


def key_rows(data: bytes, starts: Integers, shift: int) -> tuple[Rows, Integers]:
    """The rows of the records that begin at ``starts`` in ``data``, and the store times of records with keys.

    ``data`` ends with `PADDING`. ``shift`` plus a start is the distance in the file. Rolled-back records have no keys.
    Raises EntriesDamaged. For the layout of records see `mq.protocol.messages.records`.
    """
    flags = _integers(data, starts + 36, ">i4")
    born_more = 12 * ((flags & BORN_HOST_IPV6) != 0)
    body_at = starts + 88 + born_more + 12 * ((flags & STORE_HOST_IPV6) != 0)
    stop = starts + _integers(data, starts, ">i4")
    _check(starts, body_at + 3 <= stop, "it has no room for its hosts")
    topic_at = body_at + _integers(data, body_at - 4, ">i4") + 1
    _check(starts, (body_at < topic_at) & (topic_at + 2 <= stop), "it has no room for its body")
    magic = _integers(data, starts + 4, ">u4")
    is_v2 = magic == MAGIC_V2 & 0xFFFFFFFF
    _check(starts, is_v2 | (magic == MAGIC_V1 & 0xFFFFFFFF), "its magic number is not that of a record")
    topic_bytes = np.where(is_v2, _integers(data, topic_at - 1, ">u2"), _integers(data, topic_at - 1, "u1"))
    topic_at += is_v2
    text_at = topic_at + topic_bytes + 2
    _check(starts, text_at <= stop, "it has no room for its topic")

    seen = np.flatnonzero((text_at < stop) & ((flags & TRANSACTION_MASK) != ROLLBACK))
    texts, owner, key_at, key_end = _keys(data, text_at[seen], stop[seen])
    record = seen[owner]
    has_keys = np.zeros(len(starts), np.bool_)
    has_keys[record] = True
    with_keys = np.flatnonzero(has_keys)
    store_ms = _integers(data, starts[with_keys] + 56 + born_more[with_keys], ">i8")
    topics = np.zeros(len(starts), np.uint64)
    topics[with_keys] = hashes(data, topic_at[with_keys], topic_bytes[with_keys])
    key_hashes = mix(topics[record], hashes(texts, key_at, key_end - key_at))
    return key_hashes << _HASH_SHIFT | (starts[record] + shift).astype(np.uint64), store_ms


def _keys(data: bytes, begin: Integers, end: Integers) -> tuple[bytes, Integers, Integers, Integers]:
    """The keys in the property texts ``data[begin:end]``.

    Returns the texts joined, and for each key the number of its text, and its range in the joined texts.
    """
    # The last property of a text may lack the separator that ends a value. An additional one is harmless.
    texts = _END.join([data[first:last] for first, last in zip(begin.tolist(), end.tolist(), strict=True)])
    texts = b"".join((texts, _END, PADDING))
    flat = np.frombuffer(texts, np.uint8)
    ends = np.flatnonzero(flat == _END[0])
    starts = np.append(0, ends[:-1] + 1)
    unique, keys = _with_name(flat, starts, _UNIQUE), _with_name(flat, starts, _KEYS)
    word_at, word_end = starts[keys] + len(_KEYS), ends[keys]
    if word_at.size:
        # A blank within the value of KEYS separates words.
        blanks = np.flatnonzero(flat == _BLANK)
        value = np.searchsorted(word_at, blanks, "right") - 1
        blanks = blanks[(value >= 0) & (blanks < word_end[value])]
        word_at, word_end = np.sort(np.append(word_at, blanks + 1)), np.sort(np.append(word_end, blanks))
    key_at = np.append(starts[unique] + len(_UNIQUE), word_at)
    key_end = np.append(ends[unique], word_end)
    filled = key_at < key_end
    key_at, key_end = key_at[filled], key_end[filled]
    owner = np.searchsorted(np.cumsum(end - begin + 1), key_at, "right")
    return texts, owner, key_at, key_end


def _with_name(flat: npt.NDArray[np.uint8], starts: Integers, name: bytes) -> Integers:
    """The indices of the properties that have this name, including its separator, of those that begin at ``starts``."""
    # From the last byte backwards: few names match there, and many share a prefix.
    matches = np.arange(len(starts))
    for number in reversed(range(len(name))):
        matches = matches[flat[starts[matches] + number] == name[number]]
    return matches


def mix(topics: Rows, keys: Rows) -> Rows:
    """Return the second half of `key_hash`, from the hashes of topics and keys."""
    both = topics * np.uint64(TOPIC_FACTOR) + keys
    both ^= both >> np.uint64(32)
    both *= np.uint64(FINAL_FACTOR)
    return both >> np.uint64(64 - KEY_HASH_BITS)


def hashes(data: bytes, at: Integers, lengths: Integers) -> Rows:
    """`text_hash` of the texts at these places in ``data``, which ends with `PADDING`."""
    result = lengths.astype(np.uint64)
    words = np.ndarray((max(0, len(data) - 7),), "<u8", data, strides=(1,))
    remaining = np.minimum(lengths, HASHED_BYTES_MAX)
    rows = np.arange(len(at))
    for number, factor in enumerate(WORD_FACTORS):
        rows = rows[remaining[rows] > 8 * number]
        if not rows.size:
            break
        surplus = np.maximum(0, 8 * number + 8 - remaining[rows]).astype(np.uint64) * np.uint64(8)
        word = words[at[rows] + 8 * number] << surplus >> surplus
        result[rows] += word * np.uint64(factor)
    return result


def _integers(data: bytes, at: Integers, kind: str) -> Integers:
    """Integers of this kind that lie anywhere in ``data``."""
    everywhere = np.ndarray((len(data) - np.dtype(kind).itemsize + 1,), kind, data, strides=(1,))
    return everywhere[at].astype(np.int64)


def _check(starts: Integers, is_right: npt.NDArray[np.bool_], reason: str) -> None:
    wrong = np.flatnonzero(~is_right)
    if wrong.size:
        raise EntriesDamaged(int(starts[wrong[0]]), reason)
