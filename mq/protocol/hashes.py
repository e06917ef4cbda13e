"""Java's string hash, and the two kinds of message ids."""

from __future__ import annotations

import datetime as dt
import ipaddress
import struct
from collections.abc import Callable
from functools import lru_cache
from operator import mul
from typing import Final, NamedTuple

from mq.protocol.errors import ProtocolError
from mq.protocol.numbers import PhysicalOffset

_CACHED_CHARACTERS_MAX: Final = 128
_POWERS: list[int] = [1]


def java_string_hash(text: str) -> int:
    """``String.hashCode`` of ``text``: over UTF-16 code units, wrapped to a signed 32-bit number."""
    data = text.encode("utf-16-be", "surrogatepass")
    count = len(data) // 2
    while len(_POWERS) < count:
        _POWERS.append(_POWERS[-1] * 31 & 0xFFFFFFFF)
    units = struct.unpack(f">{count}H", data)
    total: int = sum(map(mul, units, reversed(_POWERS[:count]))) & 0xFFFFFFFF
    return total - (1 << 32) if total >= 1 << 31 else total


def tag_code(tags: str) -> int:
    """The number that brokers filter by: the hash of a message's TAGS value, 0 without tags."""
    # There are few distinct tags; a long text is not a tag, and caching it would cost memory.
    return _cached_hash(tags) if len(tags) <= _CACHED_CHARACTERS_MAX else java_string_hash(tags)


_cached_hash: Final = lru_cache(maxsize=4096)(java_string_hash)


class MessageIdInvalid(ProtocolError):
    """A text is not an offset message id."""


class OffsetMessageId(NamedTuple):
    """The place of one stored record: the broker's IP address and port, and the record's physical offset."""

    ip: str
    port: int
    physical_offset: PhysicalOffset


def offset_message_id(host: bytes, port: int, physical_offset: PhysicalOffset) -> str:
    """The id of one stored record: upper-case hex of 4 or 16 address bytes, port and physical offset."""
    return f"{host.hex().upper()}{port:08X}{physical_offset:016X}"


def parse_offset_message_id(text: str) -> OffsetMessageId:
    """Parse an offset message id. Raises MessageIdInvalid."""
    if len(text) not in (32, 56):
        raise MessageIdInvalid(f"an offset message id has 32 or 56 characters, this has {len(text)}: {text[:60]!r}")
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise MessageIdInvalid(f"{text!r} is not a hexadecimal number") from error
    if len(data) * 2 != len(text):
        raise MessageIdInvalid(f"{text!r} is not a hexadecimal number")
    port, physical_offset = struct.unpack(">iq", data[-12:])
    return OffsetMessageId(str(ipaddress.ip_address(data[:-12])), port, physical_offset)


class UniqKeyGenerator:
    """Generates unique keys for messages: 32 hex characters for an IPv4 address, 56 for IPv6.

    A key is unique as long as no two generators share address, process id and salt, and one generates fewer than 65,536
    keys per millisecond.

    Args:
        ip: the address of this host.
        pid: the process id; its low 16 bits are used.
        salt: any 32 bits that differ between processes which may have the same address and process id.
        wall_clock_ms: epoch milliseconds.
    """

    __slots__ = ("_counter", "_month_end_ms", "_month_start_ms", "_prefix", "_wall_clock_ms")

    def __init__(self, *, ip: str, pid: int, salt: int, wall_clock_ms: Callable[[], int]) -> None:
        address = ipaddress.ip_address(ip).packed
        self._prefix = f"{address.hex().upper()}{pid & 0xFFFF:04X}{salt & 0xFFFFFFFF:08X}"
        self._wall_clock_ms = wall_clock_ms
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._counter = 0

    def next(self) -> str:
        """A new key."""
        now_ms = self._wall_clock_ms()
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._start_month(now_ms)
        self._counter = (self._counter + 1) & 0xFFFF
        return f"{self._prefix}{now_ms - self._month_start_ms:08X}{self._counter:04X}"

    def _start_month(self, now_ms: int) -> None:
        now = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = (start + dt.timedelta(days=32)).replace(day=1)
        self._month_start_ms = int(start.timestamp()) * 1000
        self._month_end_ms = int(end.timestamp()) * 1000
