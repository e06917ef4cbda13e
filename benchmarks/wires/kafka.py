"""Speaks Kafka's protocol: produce requests with `acks=all`, as Kafka's producer sends them.

A broker handles the requests of a connection one after the other, and answers each when all replicas in sync have it.
Kafka's producer therefore sends the messages gathered meanwhile in one request, with a batch for each partition, and so
does this one. The versions of the requests are the last ones without tagged fields.
"""

from __future__ import annotations

import importlib
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from benchmarks.load.frames import TOPIC
from benchmarks.wires.wire import LoadFailed, Slots, receive_some
from tests.interop.clients import CACHE

CRC_PACKAGE: Final = "google-crc32c==1.9.0"
"""The package of PyPI, installed into `CACHE`, for CRC-32C, which the standard library does not have."""

REQUESTS_MAX: Final = 2
"""Requests of a connection in flight: one that the broker handles, and one that waits in the socket."""

_PRODUCE, _LIST_OFFSETS, _OFFSET_COMMIT, _CREATE_TOPICS = 0, 2, 8, 19
_LATEST: Final = -1
_EXISTS: Final = 36
_TIMEOUT_MS: Final = 30_000
_LENGTH: Final = struct.Struct(">i")
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length of the rest, leader epoch, magic, CRC, attributes, last offset delta, first and last time,
producer, epoch, sequence, records.
"""
_BEFORE_CRC_END: Final = 21
"""The position of the first byte that the CRC covers."""


class Fields:
    """Reads the fields of a response one after the other."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at

    def read(self, form: str) -> int:
        """Read a number in the format ``form`` of `struct`."""
        (number,) = struct.unpack_from(">" + form, self._data, self.at)
        self.at += struct.calcsize(">" + form)
        return int(number)

    def text(self) -> str:
        """Read a text that follows its length; "" for none."""
        size = self.read("h")
        self.at += max(size, 0)
        return "" if size < 0 else self._data[self.at - size : self.at].decode()

    def skip(self, count: int) -> None:
        """Skip ``count`` bytes."""
        self.at += count


def request(kind: int, version: int, number: int, body: bytes) -> bytes:
    """Encode a request as a frame. The response to it has the same ``number``."""
    head = struct.pack(">hhi", kind, version, number) + encoded_text("bench")
    return _LENGTH.pack(len(head) + len(body)) + head + body


def encoded_text(text: str) -> bytes:
    """Encode a text after its length."""
    return struct.pack(">h", len(text)) + text.encode()


def responses(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the number, the begin and the end of each complete response."""
    at = 0
    while at + _LENGTH.size <= len(data):
        end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
        if end > len(data):
            return
        yield _LENGTH.unpack_from(data, at + 4)[0], at + 8, end
        at = end


def ask(sock: socket.socket, kind: int, version: int, body: bytes) -> Fields:
    """Send a request on a blocking socket, and return the response. Raises LoadFailed, OSError."""
    sock.sendall(request(kind, version, 0, body))
    data = b""
    while True:
        data += receive_some(sock)
        for _, begin, _ in responses(data):
            return Fields(data, begin)


def ends_of(sock: socket.socket, partitions: Sequence[int]) -> dict[int, int]:
    """Query the offset of the next message of each partition. Raises LoadFailed, OSError."""
    rows = b"".join(struct.pack(">iq", partition, _LATEST) for partition in partitions)
    body = struct.pack(">ii", -1, 1) + encoded_text(TOPIC) + _LENGTH.pack(len(partitions)) + rows
    fields = ask(sock, _LIST_OFFSETS, 1, body)
    assert fields.read("i") == 1, "one topic was asked for"
    fields.text()
    ends = {}
    for _ in range(fields.read("i")):
        partition, error, _time, offset = (fields.read(form) for form in "ihqq")
        if error:
            raise LoadFailed(f"Kafka does not say where partition {partition} ends: error {error}")
        ends[partition] = offset
    return ends


def create_topic(
    sock: socket.socket, topic: str, partitions: int, nodes: Sequence[int], settings: dict[str, str]
) -> None:
    """Create a topic, unless it exists. The first node leads every partition.

    Raises LoadFailed, OSError.
    """
    where = struct.pack(f">i{len(nodes)}i", len(nodes), *nodes)
    rows = b"".join(_LENGTH.pack(partition) + where for partition in range(partitions))
    pairs = b"".join(encoded_text(name) + encoded_text(value) for name, value in settings.items())
    body = _LENGTH.pack(1) + encoded_text(topic) + struct.pack(">ih", -1, -1) + _LENGTH.pack(partitions) + rows
    body += _LENGTH.pack(len(settings)) + pairs + struct.pack(">ib", _TIMEOUT_MS, 0)
    fields = ask(sock, _CREATE_TOPICS, 2, body)
    fields.read("i")
    assert fields.read("i") == 1, "one topic was created"
    fields.text()
    error, why = fields.read("h"), fields.text()
    if error not in (0, _EXISTS):
        raise LoadFailed(f"Kafka does not create {topic}: error {error}, {why}")


def commit_offsets(number: int, group: str, offsets: dict[int, int]) -> bytes:
    """Encode the request that stores the positions of a group without members."""
    rows = b"".join(struct.pack(">iqh", partition, offset, -1) for partition, offset in offsets.items())
    body = encoded_text(group) + struct.pack(">i", -1) + encoded_text("") + struct.pack(">q", -1)
    return request(
        _OFFSET_COMMIT, 2, number, body + _LENGTH.pack(1) + encoded_text(TOPIC) + _LENGTH.pack(len(offsets)) + rows
    )


def castagnoli() -> Callable[[bytes], int]:
    """Import CRC-32C from the package that is installed for it."""
    sys.path.append(str(CACHE / CRC_PACKAGE))
    value: Callable[[bytes], int] = importlib.import_module("google_crc32c").value
    return value


class KafkaWire:
    """Speaks Kafka's protocol. A slot identifies a message; all slots of a produce request are answered together."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._crc = castagnoli()
        self._bodies = {slot: slots.body(slot) for slot in slots.numbers}
        self._queue: list[tuple[int, bytes]] = []
        self._keys_in_flight: dict[int, list[int]] = {}
        """The slots of each request in flight."""
        self._share = -(-slots.count // REQUESTS_MAX)
        self._number = 0

    def open(self, sock: socket.socket) -> None:
        """Do nothing: there is no handshake before the first request."""

    def initial(self) -> tuple[Iterable[int], bytes]:
        """Encode at most `REQUESTS_MAX` requests with the messages of all slots."""
        return self.repeat(list(self._bodies))

    def idle(self) -> Sequence[int]:
        """Return all slots."""
        return list(self._bodies)

    def read_responses(self, data: bytes) -> tuple[Sequence[int], int]:
        """Read responses. Every partition in them must have error 0."""
        keys, at = list[int](), 0
        for number, begin, end in responses(data):
            fields = Fields(data, begin)
            for _ in range(fields.read("i")):
                fields.text()
                for _ in range(fields.read("i")):
                    partition, error = fields.read("i"), fields.read("h")
                    if error:
                        raise LoadFailed(f"Kafka refused messages of partition {partition}: error {error}")
                    fields.skip(24)  # base offset, time, first offset of the log
            keys += self._keys_in_flight.pop(number)
            at = end
        return keys, at

    def repeat(self, keys: Sequence[int]) -> tuple[Iterable[int], bytes]:
        """Encode requests with the messages again. Messages beyond the request limit wait for the next call."""
        self._queue += [(slot, self._bodies[slot]) for slot in keys]
        return keys, self._requests()

    def repeat_due(self, slot: int, stamp: Callable[[bytes], bytes]) -> bytes:
        """Encode the request with one message, after ``stamp`` has written into its body when it was due."""
        self._queue.append((slot, stamp(self._bodies[slot])))
        return self._requests()

    def _requests(self) -> bytes:
        requests = b""
        while self._queue and len(self._keys_in_flight) < REQUESTS_MAX:
            now, self._queue = self._queue[: self._share], self._queue[self._share :]
            by_partition: dict[int, list[bytes]] = {}
            for slot, body in now:
                by_partition.setdefault(slot % self._slots.queues, []).extend([body] * self._slots.batch)
            rows = []
            for partition, bodies in by_partition.items():
                records = record_batch(bodies, self._crc)
                rows.append(struct.pack(">ii", partition, len(records)) + records)
            body = struct.pack(">hhii", -1, -1, _TIMEOUT_MS, 1) + encoded_text(TOPIC)
            requests += request(_PRODUCE, 7, self._number, body + _LENGTH.pack(len(rows)) + b"".join(rows))
            self._keys_in_flight[self._number] = [slot for slot, _ in now]
            self._number += 1
        return requests


def record_batch(bodies: Sequence[bytes], crc_of: Callable[[bytes], int]) -> bytes:
    """Encode messages without keys as an uncompressed batch of format 2 with the time now: Kafka deletes old ones."""
    records = []
    for delta, body in enumerate(bodies):
        content = b"\0\0" + _varint(delta) + b"\1" + _varint(len(body)) + body + b"\0"
        records.append(_varint(len(content)) + content)
    joined, count = b"".join(records), len(bodies)
    size = _BATCH.size - 12 + len(joined)
    now = time.time_ns() // 1_000_000
    head = _BATCH.pack(0, size, -1, 2, 0, 0, count - 1, now, now, -1, -1, -1, count)
    crc = crc_of(head[_BEFORE_CRC_END:] + joined)
    return head[: _BEFORE_CRC_END - 4] + struct.pack(">I", crc) + head[_BEFORE_CRC_END:] + joined


def _varint(number: int) -> bytes:
    """Encode a number that is not negative, in zigzag code."""
    number <<= 1
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)
