"""The two kinds of message ids: an offset message id names a stored record, a unique key a message of a producer."""

from __future__ import annotations

import datetime as dt
import ipaddress
import struct
from collections.abc import Callable
from typing import NamedTuple

from mq.protocol.errors import ProtocolError
from mq.protocol.numbers import PhysicalOffset


class MessageIdInvalid(ProtocolError):
    """The text is not an offset message id."""


class OffsetMessageId(NamedTuple):
    """The place of one stored record: the broker's IP address and port, and the record's physical offset."""

    ip: str
    port: int
    physical_offset: PhysicalOffset


def offset_message_id(host: bytes, port: int, physical_offset: PhysicalOffset) -> str:
    """Format the id of one stored record: upper-case hex of 4 or 16 address bytes, port and physical offset."""
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
        """Return a new unique key."""
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
