"""The frames that the load generator sends, built once: what a stock client's SEND_MESSAGE_V2 looks like."""

from __future__ import annotations

import json
import re
import struct

OPAQUE = re.compile(rb'"opaque":(\d+)')
CODE = re.compile(rb'"code":(-?\d+)')
REMARK = re.compile(rb'"remark":"([^"]*)"')

SEND_MESSAGE_V2 = 310
TOPIC = "Bench"
QUEUES = 8


def send_frame(opaque: int, body_bytes: int, queue_id: int) -> bytes:
    """A whole frame: length, header length, a JSON header of about 360 bytes, and a body.

    The same frame may be sent again and again: a broker does not look at the unique key.
    """
    properties = f"UNIQ_KEY\x017F0000010000{opaque:020X}\x02WAIT\x01true\x02TAGS\x01TagA"
    header = {
        "code": SEND_MESSAGE_V2,
        "extFields": {
            "a": "bench_producers",
            "b": TOPIC,
            "c": "TBW102",
            "d": "4",
            "e": str(queue_id),
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "false",
        },
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 409,
    }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    body = bytes((opaque + i) % 251 for i in range(body_bytes))
    return struct.pack(">II", 4 + len(encoded) + body_bytes, len(encoded)) + encoded + body


def complete_bytes(buffer: bytes | bytearray | memoryview) -> tuple[int, int]:
    """How many whole frames ``buffer`` begins with, and how many bytes they take."""
    unpack = _LENGTH.unpack_from
    position, frames, end = 0, 0, len(buffer) - 4
    while position <= end:
        following = position + 4 + unpack(buffer, position)[0]
        if following > end + 4:
            break
        position = following
        frames += 1
    return frames, position


_LENGTH = struct.Struct(">I")
