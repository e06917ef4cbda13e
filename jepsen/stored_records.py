"""Converts stored records to what histories have of them: offset, value, and a checksum of all bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from jepsen.derived_messages import DAMAGED, value_of
from mq.protocol.errors import ProtocolError
from mq.protocol.messages.compression import inflate
from mq.protocol.messages.records import BODY_BYTES_MAX, decode_record, iter_sizes
from mq.protocol.properties import TAGS

UNREADABLE = -1
"""The offset of an invalid record."""


def values_in(records: bytes) -> list[tuple[int, str, int]]:
    """Return offset, value and checksum of each record in the response to a pull.

    The checksum covers every byte, including the bytes that the broker adds; replicas must agree on it. The value of an
    invalid record says so; no checker takes it for a sent one.
    """
    return list(_values(records))


def _values(records: bytes) -> Iterator[tuple[int, str, int]]:
    try:
        view = memoryview(records)
        for at, size in iter_sizes(view):
            record = decode_record(view, offset=at)
            body = inflate(record.sys_flag, record.body, BODY_BYTES_MAX)
            value = value_of(body, record.properties, record.properties.get(TAGS))
            yield record.queue_offset, value, zlib.crc32(view[at : at + size])
    except ProtocolError as error:
        yield UNREADABLE, f"{DAMAGED}: {error}", zlib.crc32(records)
