"""Consumes by Kafka's protocol: fetches all partitions of a connection, and stores positions every few seconds."""

from __future__ import annotations

import socket
import struct

from benchmarks.load.frames import TOPIC
from benchmarks.load.report import monotonic_seconds
from benchmarks.wires.consumer import DUE, Share
from benchmarks.wires.kafka import Fields, commit_offsets, encoded_text, ends_of, request, responses
from benchmarks.wires.wire import LoadFailed

_FETCH = 1
_WAIT_MS, _BYTES_MIN, _BYTES_MAX, _PARTITION_BYTES_MAX = 500, 1, 50 * 2**20, 2**20
"""The defaults of Kafka's consumer."""
COMMIT_SECONDS = 5.0
"""Seconds between commits, as Kafka's `auto.commit.interval.ms`."""
_FETCHED, _COMMITTED = 1, 2
"""Numbers of requests."""
_BATCH_HEAD = struct.Struct(">qi")
"""Base offset, length of the rest."""
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23


class KafkaConsumer:
    """Fetches messages. It sends the next fetch when the response to the one before is complete."""

    def __init__(self, share: Share) -> None:
        assert not share.confirms_each, "a position is all that this one confirms"
        self._share = share
        self._next = dict.fromkeys(share.queues, 0)
        self._commit_at = monotonic_seconds() + COMMIT_SECONDS
        self._cut: list[tuple[int, int]] = []

    def open(self, sock: socket.socket) -> None:
        """Query the ends of the partitions, at which a late consumer begins."""
        if self._share.is_late:
            self._next = ends_of(sock, self._share.queues)

    def initial(self) -> bytes:
        """Encode a fetch from all partitions."""
        rows = b"".join(
            struct.pack(">iiqqi", partition, -1, offset, -1, _PARTITION_BYTES_MAX)
            for partition, offset in self._next.items()
        )
        body = struct.pack(">iiiibiii", -1, _WAIT_MS, _BYTES_MIN, _BYTES_MAX, 0, 0, -1, 1)
        body += encoded_text(TOPIC) + struct.pack(">i", len(self._next)) + rows
        return request(_FETCH, 11, _FETCHED, body + struct.pack(">i", 0) + encoded_text(""))

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Read responses. Returns the number of bytes read, and the next fetch after each response."""
        at, reply, self._cut = 0, b"", []
        for number, begin, end in responses(data):
            at = end
            if number == _FETCHED:
                self._read(data, begin)
                reply += self.initial()
        if reply and monotonic_seconds() >= self._commit_at:
            self._commit_at = monotonic_seconds() + COMMIT_SECONDS
            reply += commit_offsets(_COMMITTED, self._share.group, self._next)
        return at, reply

    def due(self, data: bytes, end: int) -> list[bytes]:
        """Return the due times in the messages of the last `take`. A message cut off at its end is fetched again."""
        times, begin = list[bytes](), 0
        for cut_from, cut_to in self._cut:
            times += DUE.findall(data, begin, cut_from)
            begin = cut_to
        return times + DUE.findall(data, begin, end)

    def _read(self, data: bytes, begin: int) -> None:
        fields = Fields(data, begin)
        fields.read("i")
        if error := fields.read("h"):
            raise LoadFailed(f"Kafka refused a fetch: error {error}")
        fields.read("i")
        for _ in range(fields.read("i")):
            fields.text()
            for _ in range(fields.read("i")):
                partition, error = fields.read("i"), fields.read("h")
                if error:
                    raise LoadFailed(f"Kafka refused a fetch of partition {partition}: error {error}")
                fields.skip(24)  # the end, the end of stable messages, the begin
                fields.skip(16 * max(fields.read("i"), 0))  # aborted transactions
                fields.read("i")
                size = max(fields.read("i"), 0)
                self._read_batches(data, partition, fields.at, fields.at + size)
                fields.skip(size)

    def _read_batches(self, data: bytes, partition: int, at: int, end: int) -> None:
        while at + _BATCH_HEAD.size <= end:
            base, size = _BATCH_HEAD.unpack_from(data, at)
            next_batch = at + _BATCH_HEAD.size + size
            if next_batch > end:
                break
            self._next[partition] = base + _LAST_DELTA.unpack_from(data, at + _LAST_DELTA_AT)[0] + 1
            at = next_batch
        if at < end:
            self._cut.append((at, end))
