"""Forges frames as an attacker could: they are well-formed, and every node must refuse them in any state."""

from __future__ import annotations

import random
import struct
import zlib

import cbor2

from raftlog.net import frames
from raftlog.net.frames import Kind
from raftlog.terms import TERM_MAX

_CRC = struct.Struct(">I")
_TERM = struct.Struct(">Q")
_IMPLAUSIBLE_TERMS = (TERM_MAX, 2**63 - 1, 2**63, 2**64 - 1)
_CRC_AT, _PAYLOAD_AT = 8, 12


def forge(frame: bytes, rng: random.Random) -> bytearray | None:
    """Copy a frame with valid checksums and a term that no election can reach; None if the frame has no term."""
    ((kind, payload),), _ = frames.split_frames(memoryview(frame))
    term = rng.choice(_IMPLAUSIBLE_TERMS)
    copy = bytearray(frame)
    if kind in (Kind.APPEND, Kind.APPENDED):
        _TERM.pack_into(copy, _PAYLOAD_AT, term)
        crc = _append_crc(copy) if kind is Kind.APPEND else zlib.crc32(copy[_PAYLOAD_AT:], kind)
        _CRC.pack_into(copy, _CRC_AT, crc)
        return copy
    fields = cbor2.loads(bytes(payload[4:]))
    if "src" not in fields:
        return None
    body = cbor2.dumps(fields | {"term": term})
    return bytearray(frames._frame(kind, body, 0, zlib.crc32(body, kind)))


def _append_crc(frame: bytearray) -> int:
    fields = frames._APPEND.unpack_from(frame, _PAYLOAD_AT)
    entries_bytes, count = fields[-2:]
    head_end = _PAYLOAD_AT + frames._APPEND.size + 4 * count
    return zlib.crc32(frame[head_end + entries_bytes :], zlib.crc32(frame[_PAYLOAD_AT:head_end], Kind.APPEND))
