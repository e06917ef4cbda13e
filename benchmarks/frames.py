"""The frames that the load generator sends, built once, like a stock client's SEND_MESSAGE_V2."""

from __future__ import annotations

import json
import re
import struct
from typing import Any

from mq.protocol.access.signing import signed
from mq.protocol.properties import LITE_TOPIC

OPAQUE = re.compile(rb'"opaque":(\d+)')
CODE = re.compile(rb'"code":(-?\d+)')
REMARK = re.compile(rb'"remark":"([^"]*)"')

SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320
TOPIC = "Bench"
QUEUES = 8
_BATCH_MESSAGE = struct.Struct(">iiiii")


def topic_name(number: int) -> str:
    """The topics of loads that have many: the first one is `TOPIC`."""
    return f"{TOPIC}{number}" if number else TOPIC


def lite_name(number: int) -> str:
    """The lite topics of loads that send to some; all names are equally long."""
    return f"lite-{number:07d}"


def send_frame(
    opaque: int,
    body_bytes: int,
    queue_id: int,
    *,
    topic: str = TOPIC,
    batch: int = 1,
    keys: tuple[str, str] | None = None,
    lite_topic: str | None = None,
    body: bytes | None = None,
    more: str = "",
) -> bytes:
    """A whole frame: length, header length, a JSON header of about 360 bytes, and a body.

    With ``batch`` the body is so many messages of ``body_bytes`` each, and the request a SEND_BATCH_MESSAGE. The same
    frame may be sent repeatedly: a broker does not look at the unique key. With ``keys``, access key and secret key, it
    is signed. With ``body``, each message has this one. ``more`` are further properties, encoded.
    """
    properties = f"UNIQ_KEY\x017F0000010000{opaque:020X}\x02WAIT\x01true\x02TAGS\x01TagA{more}"
    if lite_topic is not None:
        properties += f"\x02{LITE_TOPIC}\x01{lite_topic}"
    header: dict[str, Any] = {
        "code": SEND_MESSAGE_V2 if batch == 1 else SEND_BATCH_MESSAGE,
        "extFields": {
            "a": "bench_producers",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue_id),
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "false" if batch == 1 else "true",
        },
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 409,
    }
    if body is None:
        body = bytes((opaque + i) % 251 for i in range(body_bytes))
    if batch > 1:
        text = properties.encode()
        size = _BATCH_MESSAGE.size + len(body) + 2 + len(text)
        message = _BATCH_MESSAGE.pack(size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(text)) + text
        body = message * batch
    if keys is not None:
        header["extFields"] = signed(*keys, header["extFields"], body)
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


def complete_bytes(buffer: bytes | bytearray | memoryview) -> tuple[int, int]:
    """How many whole frames ``buffer`` begins with, and their bytes in total."""
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
