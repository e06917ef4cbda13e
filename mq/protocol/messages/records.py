"""Encodes and decodes records: the form in which the log stores messages and brokers return them to consumers.

The layout is in `mq.protocol.record_layout`.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from mq.protocol import properties as props
from mq.protocol.errors import ProtocolError
from mq.protocol.hashes import java_string_hash
from mq.protocol.message_ids import offset_message_id
from mq.protocol.messages.compression import DecompressionError, inflate
from mq.protocol.numbers import LOG_BEGIN, PhysicalOffset, QueueOffset
from mq.protocol.record_layout import (
    ANY_HOST_IPV6,
    BORN_HOST_IPV6,
    FIXED,
    HEAD,
    IPV4_HOST_BYTES,
    IPV6_HOST_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_IPV6,
    SYS_FLAG_AT,
    head_of,
)

__all__ = [
    "BODY_BYTES_MAX",
    "BORN_HOST_IPV6",
    "COMMITTED",
    "CRC_MASK",
    "FIXED",
    "HEAD",
    "IN_LITE_TOPIC",
    "IPV4_HOST_BYTES",
    "IPV6_HOST_BYTES",
    "MAGIC_V1",
    "MAGIC_V2",
    "NO_HOST",
    "PREPARED",
    "ROLLBACK",
    "STORE_HOST_IPV6",
    "TRANSACTION_MASK",
    "DecompressionError",
    "Host",
    "RawRecord",
    "RecordError",
    "StoredMessage",
    "check_place",
    "check_records",
    "decode_record",
    "decode_records",
    "encode_host",
    "encode_message",
    "encode_record",
    "head_of_broker",
    "inflate",
    "iter_sizes",
    "latest_store_timestamp",
    "properties_text",
    "record_size",
    "scan_bodies",
    "scan_fixed",
    "split_record",
    "tag_code_of",
]

NO_HOST: Final = bytes(IPV4_HOST_BYTES)
"""The host of a sender with an IPv6 address."""

IN_LITE_TOPIC: Final = 0x100000
"""Ours, in the system flag: the message is in the queue of a lite topic, too. Its properties say where."""
PREPARED: Final = 0x4
COMMITTED: Final = 0x8
ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
CRC_MASK: Final = 0x7FFFFFFF

_FOR_DISPATCH: Final = struct.Struct(">ii4xi4xqqi44xi")
_FOR_CHECK: Final = struct.Struct(">ii20xqi44xI")
_FOR_STORED: Final = struct.Struct(">ii28xi16xq20xi")
_SIZE: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
_I64: Final = struct.Struct(">q")
_BORN_HOST_AT: Final = 48
_PHYSICAL_OFFSET_AT: Final = 28
_HEAD_BYTES: Final = HEAD.size
_TAGS: Final = b"TAGS\x01"


class RecordError(ProtocolError):
    """The bytes are not a valid record. ``offset`` is where the record starts in the input."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"record at byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class Host(NamedTuple):
    """The address of one end of a connection."""

    ip: str
    port: int


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A decoded record. Times are epoch milliseconds. The body may be compressed: see `messages.compression`."""

    topic: str
    queue_id: int
    flag: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_offset: PhysicalOffset
    body: bytes
    properties: dict[str, str]
    size: int

    @property
    def offset_message_id(self) -> str:
        """The id by which a broker finds this record."""
        ip_bytes = ipaddress.ip_address(self.store_host.ip).packed
        return offset_message_id(ip_bytes, self.store_host.port, self.physical_offset)


class RawRecord(NamedTuple):
    """The parts of a record that a copy of it repeats byte for byte."""

    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    reconsume_times: int
    prepared_offset: PhysicalOffset
    body: bytes
    properties: bytes
    store_timestamp_ms: int
    """The store time of this record; a copy gets its own."""


def record_size(body_bytes: int, topic_bytes: int, properties_bytes: int) -> int:
    """Return the size of a version 1 record with IPv4 hosts, in bytes."""
    return FIXED + body_bytes + topic_bytes + properties_bytes


def encode_host(ip: str, port: int) -> bytes:
    """Encode an address as records have it: 4 or 16 address bytes, then 4 bytes port."""
    return ipaddress.ip_address(ip).packed + _SIZE.pack(port)


def head_of_broker(store_host: bytes) -> tuple[struct.Struct, int]:
    """Return the layout and system flag of the records that a broker with this address writes for clients with IPv4."""
    flag = STORE_HOST_IPV6 if len(store_host) == IPV6_HOST_BYTES else 0
    return head_of(flag), flag


def encode_record(
    *,
    topic: str,
    queue_id: int,
    body: bytes,
    properties: str,
    queue_offset: QueueOffset,
    physical_offset: PhysicalOffset,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_offset: PhysicalOffset = LOG_BEGIN,
) -> bytes:
    """Encode one record, of version 2 if the topic has more than 127 bytes. Hosts are results of `encode_host`.

    The host bits of ``sys_flag`` are set by the hosts' lengths.
    """
    name = topic.encode()
    text = properties.encode()
    assert len(text) <= props.PROPERTIES_BYTES_MAX, f"properties of {len(text)} bytes"
    assert len(name) <= 32767, f"topic of {len(name)} bytes"
    sys_flag &= ~ANY_HOST_IPV6
    sys_flag |= BORN_HOST_IPV6 if len(born_host) == IPV6_HOST_BYTES else 0
    sys_flag |= STORE_HOST_IPV6 if len(store_host) == IPV6_HOST_BYTES else 0
    head = head_of(sys_flag)
    is_v1 = len(name) <= 127
    topic_length = bytes((len(name),)) if is_v1 else _I16.pack(len(name))
    size = head.size + len(body) + len(topic_length) + len(name) + _I16.size + len(text)
    head_bytes = head.pack(
        size,
        MAGIC_V1 if is_v1 else MAGIC_V2,
        zlib.crc32(body) & CRC_MASK,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp_ms,
        born_host,
        store_timestamp_ms,
        store_host,
        reconsume_times,
        prepared_offset,
        len(body),
    )
    return b"".join((head_bytes, body, topic_length, name, _I16.pack(len(text)), text))


def encode_message(message: StoredMessage, topic: str, queue_id: int, properties: str) -> bytes:
    """Encode a message as a record of this queue, with these properties. Its place in the log stays."""
    return encode_record(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=properties,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=encode_host(*message.born_host),
        store_timestamp_ms=message.store_timestamp_ms,
        store_host=encode_host(*message.store_host),
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_offset,
    )


def decode_record(data: memoryview, *, verify: bool = True, offset: int = 0) -> StoredMessage:
    """Decode the record at ``offset``; more data may follow it. Invalid UTF-8 becomes replacement characters.

    Raises:
        RecordError: it is damaged or incomplete, or (with ``verify``) its body does not match its checksum.
    """
    size, body_start, topic_start, text_start = _bounds(data, offset)
    head = head_of(_SIZE.unpack_from(data, offset + SYS_FLAG_AT)[0]).unpack_from(data, offset)
    _, _, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, *rest = head
    store_ms, store_host, reconsume_times, prepared_offset, body_length = rest
    body = bytes(data[body_start : body_start + body_length])
    if verify and (checksum := zlib.crc32(body) & CRC_MASK) != crc & CRC_MASK:
        raise RecordError(offset, f"the body's checksum is {checksum:#x}, but {crc:#x} is stored")
    # By position, in the order of the fields: names cost a third of the time.
    return StoredMessage(
        str(data[topic_start : text_start - 2], "utf-8", "replace"),
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_ms,
        _host(born_host),
        store_ms,
        _host(store_host),
        reconsume_times,
        prepared_offset,
        body,
        props.decode(str(data[text_start : offset + size], "utf-8", "replace")),
        size,
    )


def position_of(data: bytes) -> PhysicalOffset:
    """Read the physical offset that is stored in a record."""
    return PhysicalOffset(_I64.unpack_from(data, _PHYSICAL_OFFSET_AT)[0])


def split_record(data: bytes) -> RawRecord:
    """Split one record into its parts. Raises RecordError if the record or its body is damaged."""
    size, body_start, _, text_start = _bounds(data, 0)
    head = head_of(_SIZE.unpack_from(data, SYS_FLAG_AT)[0]).unpack_from(data)
    body_end = body_start + head[14]
    body = data[body_start:body_end]
    if zlib.crc32(body) & CRC_MASK != head[2] & CRC_MASK:
        raise RecordError(0, f"the body's checksum is {zlib.crc32(body) & CRC_MASK:#x}, but {head[2]:#x} is stored")
    _, _, _, _, flag, _, _, sys_flag, born_ms, born_host, store_ms, _, reconsume_times, prepared_offset, _ = head
    properties = data[text_start:size]
    return RawRecord(flag, sys_flag, born_ms, born_host, reconsume_times, prepared_offset, body, properties, store_ms)


def decode_records(data: memoryview | bytes, *, verify: bool = True) -> list[StoredMessage]:
    """Decode all records in ``data``, which has nothing else: the body of a pull's response. Raises RecordError.

    Runs for every message that a client receives, so the usual layout has its own loop: 2.5 us instead of 3.5.
    """
    raw = bytes(data)
    records: list[StoredMessage] = []
    end, at = len(raw), 0
    topic_bytes, topic = b"", ""
    while at < end:
        record = None
        if at + FIXED <= end:
            size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, *rest = (
                HEAD.unpack_from(raw, at)
            )
            body_length = rest[4]
            body_start = at + _HEAD_BYTES
            body_end = body_start + body_length
            after = at + size
            if (
                magic == MAGIC_V1
                and not sys_flag & ANY_HOST_IPV6
                and body_length >= 0
                and body_end + 3 <= after <= end
                and (topic_end := body_end + 1 + raw[body_end]) + 2 <= after
                and topic_end + 2 + (raw[topic_end] << 8 | raw[topic_end + 1]) == after
            ):
                body = raw[body_start:body_end]
                if not verify or zlib.crc32(body) & CRC_MASK == crc & CRC_MASK:
                    if raw[body_end + 1 : topic_end] != topic_bytes:
                        topic_bytes = raw[body_end + 1 : topic_end]
                        topic = topic_bytes.decode("utf-8", "replace")
                    record = StoredMessage(
                        topic,
                        queue_id,
                        flag,
                        queue_offset,
                        physical_offset,
                        sys_flag,
                        born_ms,
                        _host(born_host),
                        rest[0],
                        _host(rest[1]),
                        rest[2],
                        rest[3],
                        body,
                        props.decode(raw[topic_end + 2 : after].decode("utf-8", "replace")),
                        size,
                    )
        if record is None:  # another layout, or damaged: the thorough function decides
            record = decode_record(memoryview(raw), verify=verify, offset=at)
        records.append(record)
        at += record.size
    return records


def properties_text(data: memoryview | bytes, offset: int = 0) -> str:
    """Return the encoded properties of the record at ``offset``, without parsing the rest. Raises RecordError."""
    size, _, _, text_start = _bounds(data, offset)
    return str(data[text_start : offset + size], "utf-8", "replace")


def iter_sizes(data: memoryview | bytes) -> Iterator[tuple[int, int]]:
    """Yield ``(offset, size)`` of each record in ``data``, which contains nothing else. Raises RecordError."""
    view = memoryview(data)
    at = 0
    while at < len(view):
        size = _bounds(view, at)[0]
        yield at, size
        at += size


def scan_bodies(data: bytes) -> Iterator[tuple[int, int, QueueOffset, int, int, int, int]]:
    """Find the parts that filters need of each record in ``data``, which contains nothing else.

    Yields ``(offset in data, end, queue offset, system flag, body start, body end, properties start)``.
    Raises RecordError.
    """
    at = 0
    while at < len(data):
        size, body_start, topic_start, text_start = _bounds(data, at)
        _, magic, _, queue_offset, _, sys_flag, _ = _FOR_DISPATCH.unpack_from(data, at)
        body_end = topic_start - (1 if magic == MAGIC_V1 else 2)
        yield at, at + size, queue_offset, sys_flag, body_start, body_end, text_start
        at += size


def latest_store_timestamp(data: memoryview | bytes) -> int:
    """Return the latest store time in ``data``, which has only records, in ms since 1970; 0 without records.

    Raises RecordError.
    """
    latest = at = 0
    unpack = _FOR_STORED.unpack_from
    while at < len(data):
        if len(data) - at < FIXED:
            _bounds(data, at)  # raises
        size, magic, sys_flag, stored_ms, body_length = unpack(data, at)
        body_end, end = at + _HEAD_BYTES + body_length, at + size
        is_usual = magic == MAGIC_V1 and not sys_flag & ANY_HOST_IPV6 and 0 <= body_length <= size - FIXED
        text_start = body_end + data[body_end] + 3 if is_usual and end <= len(data) else end + 1
        if text_start > end or text_start + (data[text_start - 2] << 8 | data[text_start - 1]) != end:
            # Another layout, or invalid: the thorough function decides.
            end = at + _bounds(data, at)[0]
            (stored_ms,) = _I64.unpack_from(data, at + _BORN_HOST_AT + (20 if sys_flag & BORN_HOST_IPV6 else 8))
        latest = max(latest, stored_ms)
        at = end
    return latest


def check_records(data: memoryview | bytes, position: PhysicalOffset, checked: int = 0) -> None:
    """Raises RecordError unless ``data``, which begins at the physical offset ``position``, is records back to back
    with consistent lengths and correct physical offsets.

    The first ``checked`` bytes are such records already. Checksums are not verified. Runs for every message that a
    follower stores, unless `mq.compiled` does the same: about 0.3 us each.
    """
    begin, at, end = checked, checked, len(data)
    unpack = _FOR_CHECK.unpack_from
    while at < end:
        begin = at
        try:
            size, magic, physical_offset, sys_flag, body_length = unpack(data, at)
            if magic == MAGIC_V1 and not sys_flag & ANY_HOST_IPV6 and physical_offset == position + at:
                body_end = at + _HEAD_BYTES + body_length
                text_start = body_end + data[body_end] + 3
                at += size
                if text_start + (data[text_start - 2] << 8 | data[text_start - 1]) == at:
                    continue
        except (struct.error, IndexError):
            pass
        # Another layout, or invalid: the thorough function decides.
        at = begin + _bounds(data, begin)[0]
        check_place(begin, position + begin, _FOR_CHECK.unpack_from(data, begin)[2])
    if at != end:
        raise RecordError(begin, f"it ends {at - end} bytes after the end of the buffer")


def check_place(offset: int, position: PhysicalOffset, stored_position: PhysicalOffset) -> None:
    """Raise RecordError if the record at ``offset`` stores another log position than ``position``, where it is."""
    if stored_position != position:
        raise RecordError(offset, f"it lies at {position} in the log, and names the position {stored_position}")


def scan_fixed(
    data: memoryview | bytes,
) -> Iterator[tuple[int, int, int, QueueOffset, PhysicalOffset, int, bytes, int]]:
    """Read the fields that dispatch needs, of each record in ``data``, which contains nothing else.

    Yields ``(offset in data, size, queue id, queue offset, physical offset, system flag, topic, tag code)``.
    Raises RecordError.
    """
    raw = bytes(data)
    fields, find = _FOR_DISPATCH.unpack_from, raw.find
    at = 0
    while at < len(raw):
        if len(raw) - at < FIXED:
            _bounds(raw, at)  # raises
        size, magic, queue_id, queue_offset, physical_offset, sys_flag, body_length = fields(raw, at)
        topic_start, end = at + _HEAD_BYTES + body_length + 1, at + size
        is_usual = magic == MAGIC_V1 and not sys_flag & ANY_HOST_IPV6 and 0 <= body_length <= size - FIXED
        text_start = topic_start + raw[topic_start - 1] + 2 if is_usual and end <= len(raw) else end + 1
        if text_start > end or text_start + (raw[text_start - 2] << 8 | raw[text_start - 1]) != end:
            # Another layout, or invalid: the thorough function decides.
            size, _, topic_start, text_start = _bounds(raw, at)
            end = at + size
        tag_code = tag_code_of(raw[text_start:end]) if find(_TAGS, text_start, end) >= 0 else 0
        yield at, size, queue_id, queue_offset, physical_offset, sys_flag, raw[topic_start : text_start - 2], tag_code
        at = end


def _bounds(data: memoryview | bytes, at: int) -> tuple[int, int, int, int]:
    """``(size, body start, topic start, properties start)`` of the record at ``at``, all checked against its size."""
    room = len(data) - at
    if room < FIXED:
        raise RecordError(at, f"{room} bytes are left, a record has at least {FIXED}")
    size, magic, _, _, _, sys_flag, body_length = _FOR_DISPATCH.unpack_from(data, at)
    if not FIXED <= size <= room:
        raise RecordError(at, f"its size is {size}, {room} bytes are left and {FIXED} needed")
    body_start = at + HEAD.size
    if sys_flag & ANY_HOST_IPV6:
        body_start = at + head_of(sys_flag).size
        if body_start > at + size:
            raise RecordError(at, f"its size is {size}, its head alone has {body_start - at} bytes")
        (body_length,) = _SIZE.unpack_from(data, body_start - 4)
    body_end = body_start + body_length
    # Between body and end are at least the two length fields, 1 and 2 bytes: checked before either is read.
    if body_length < 0 or body_end + 3 > at + size:
        raise RecordError(at, f"a body of {body_length} bytes does not fit into a record of {size}")
    if magic == MAGIC_V1:
        topic_start = body_end + 1
        text_start = topic_start + data[body_end] + 2
    elif magic == MAGIC_V2:
        topic_start = body_end + 2
        text_start = topic_start + (data[body_end] << 8 | data[body_end + 1]) + 2
    else:
        raise RecordError(at, f"the magic number is {magic & 0xFFFFFFFF:#x}")
    if text_start > at + size:
        raise RecordError(at, f"a topic of {text_start - 2 - topic_start} bytes exceeds the record of {size}")
    if text_start + (data[text_start - 2] << 8 | data[text_start - 1]) != at + size:
        raise RecordError(at, f"its properties do not end where the record of {size} bytes ends")
    return size, body_start, topic_start, text_start


@lru_cache(maxsize=1024)
def _host(data: bytes) -> Host:
    return Host(str(ipaddress.ip_address(data[:-4])), _SIZE.unpack(data[-4:])[0])


def tag_code_of(text: bytes) -> int:
    """Return the tag code of a record from its encoded properties."""
    tags = props.value_of(text, _TAGS)
    return _hash_of(tags) if len(tags) <= 128 else java_string_hash(tags.decode("utf-8", "replace"))


@lru_cache(maxsize=4096)
def _hash_of(tags: bytes) -> int:
    return java_string_hash(tags.decode("utf-8", "replace"))
