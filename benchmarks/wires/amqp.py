"""Speaks AMQP 0.9.1: publishes persistent messages to queues, with publisher confirms on one channel."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence

from benchmarks.wires.wire import LoadFailed, Slots, receive_some

QUEUES = 8
_METHOD, _HEADER, _BODY, _FRAME_END = 1, 2, 3, 0xCE
_START, _START_OK, _TUNE, _TUNE_OK = (10, 10), (10, 11), (10, 30), (10, 31)
_OPEN, _OPEN_OK = (10, 40), (10, 41)
_CHANNEL_OPEN, _CHANNEL_OPEN_OK = (20, 10), (20, 11)
_QUEUE_DECLARE, _QUEUE_DECLARE_OK = (50, 10), (50, 11)
_EXCHANGE_DECLARE, _EXCHANGE_DECLARE_OK = (40, 10), (40, 11)
_QUEUE_BIND, _QUEUE_BIND_OK = (50, 20), (50, 21)
_QOS, _QOS_OK, _CONSUME = (60, 10), (60, 11), (60, 20)
_PUBLISH, DELIVER, _ACK = (60, 40), (60, 60), (60, 80)
_CONFIRM, _CONFIRM_OK = (85, 10), (85, 11)
_DURABLE = 2
_NO_WAIT = 8
_NO_TABLE = b"\x00\x00\x00\x00"
_PERSISTENT = struct.pack(">HB", 0x1000, 2)
_CONFIRMED = struct.Struct(">BHIHHQBB")
"""A whole frame: method, channel, size, basic.ack or basic.nack, delivery tag, whether it covers earlier ones, end."""

Method = tuple[int, int]


def queue_name(number: int) -> str:
    """Return the name of queue ``number``. Requests go to the queues in turn."""
    return f"bench{number % QUEUES}"


class AmqpConnection:
    """Sets up a connection on the blocking socket ``sock``, before messages are published."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""

    def open(self) -> None:
        """Log in as guest, and open channel 1. Raises LoadFailed, OSError."""
        self._sock.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(_START)
        arguments = struct.pack(">I", 0) + _short(b"PLAIN") + _long(b"\x00guest\x00guest") + _short(b"en_US")
        self._sock.sendall(_method(0, _START_OK, arguments))
        tune = self._expect(_TUNE)
        channels, frame_bytes, _ = struct.unpack_from(">HIH", tune)
        self._sock.sendall(_method(0, _TUNE_OK, struct.pack(">HIH", channels, frame_bytes, 0)))
        self._ask(0, _OPEN, _short(b"/") + b"\x00\x00", _OPEN_OK)
        self._ask(1, _CHANNEL_OPEN, b"\x00", _CHANNEL_OPEN_OK)

    def declare_quorum_queue(self, name: str, members: int, *, passive: bool) -> None:
        """Declare a quorum queue, or only check that it exists. Raises LoadFailed, OSError."""
        kind = _short(b"x-queue-type") + b"S" + _long(b"quorum")
        size = _short(b"x-quorum-initial-group-size") + b"l" + struct.pack(">q", members)
        flags = bytes((_DURABLE | passive,))
        self._ask(
            1, _QUEUE_DECLARE, b"\x00\x00" + _short(name.encode()) + flags + _long(kind + size), _QUEUE_DECLARE_OK
        )

    def confirm(self) -> None:
        """Enable publisher confirms. Raises LoadFailed, OSError."""
        self._ask(1, _CONFIRM, b"\x00", _CONFIRM_OK)

    def limit(self, prefetch: int) -> None:
        """Let each consumer have at most ``prefetch`` unacknowledged messages. Raises LoadFailed, OSError."""
        self._ask(1, _QOS, struct.pack(">IHB", 0, prefetch, 0), _QOS_OK)

    def declare_fan_out(self, name: str) -> None:
        """Declare an exchange that copies each message to all queues bound to it. Raises LoadFailed, OSError."""
        arguments = b"\x00\x00" + _short(name.encode()) + _short(b"fanout") + bytes((_DURABLE,)) + _NO_TABLE
        self._ask(1, _EXCHANGE_DECLARE, arguments, _EXCHANGE_DECLARE_OK)

    def bind(self, queue: str, exchange: str) -> None:
        """Bind the queue to the exchange, which then copies its messages there. Raises LoadFailed, OSError."""
        names = _short(queue.encode()) + _short(exchange.encode()) + _short(b"")
        self._ask(1, _QUEUE_BIND, b"\x00\x00" + names + b"\x00" + _NO_TABLE, _QUEUE_BIND_OK)

    def _ask(self, channel: int, method: Method, arguments: bytes, response: Method) -> None:
        self._sock.sendall(_method(channel, method, arguments))
        self._expect(response)

    def _expect(self, method: Method) -> bytes:
        """Receive the next frame, which must be ``method``; returns its arguments."""
        while len(self._buffer) < 7 or len(self._buffer) < 8 + int.from_bytes(self._buffer[3:7], "big"):
            self._buffer += receive_some(self._sock)
        end = 8 + int.from_bytes(self._buffer[3:7], "big")
        frame, self._buffer = self._buffer[:end], self._buffer[end:]
        if frame[0] != _METHOD or struct.unpack_from(">HH", frame, 7) != method:
            raise LoadFailed(f"rabbitmq-server answers {frame[:200]!r}, not method {method}")
        return frame[11:-1]


class AmqpWire:
    """Speaks AMQP. The delivery tag, which increases on the channel, identifies a request."""

    def __init__(self, slots: Slots) -> None:
        self._count = slots.count
        self._first = slots.first
        self._frames = [_publish(queue_name(number), slots.body(number), slots.exchange) for number in range(QUEUES)]
        self._next = 1
        self._unconfirmed: dict[int, None] = {}

    def open(self, sock: socket.socket) -> None:
        """Log in, open a channel, and enable publisher confirms."""
        connection = AmqpConnection(sock)
        connection.open()
        connection.confirm()

    def initial(self) -> tuple[Iterable[int], bytes]:
        """Encode the first message of each slot. Returns the delivery tags, and the bytes to send."""
        return self._publish(self._count)

    def idle(self) -> Sequence[int]:
        """Return a key for each slot. Only their number matters, because the tags increase."""
        return range(self._count)

    def read_responses(self, data: bytes) -> tuple[Sequence[int], int]:
        """Read publisher confirms. Raises LoadFailed for any other method."""
        keys, open_tags = list[int](), self._unconfirmed
        end = len(data) - len(data) % _CONFIRMED.size
        for kind, _, _, group, method, tag, with_earlier, _ in _CONFIRMED.iter_unpack(data[:end]):
            if kind != _METHOD or (group, method) != _ACK:
                raise LoadFailed(f"rabbitmq-server says {data[:200]!r}")
            tags = [each for each in open_tags if each <= tag] if with_earlier else [tag]
            for each in tags:
                del open_tags[each]
            keys += tags
        return keys, end

    def repeat(self, keys: Sequence[int]) -> tuple[Iterable[int], bytes]:
        """Encode ``len(keys)`` messages with the next delivery tags."""
        return self._publish(len(keys))

    def _publish(self, count: int) -> tuple[Iterable[int], bytes]:
        tags = range(self._next, self._next + count)
        self._next += count
        self._unconfirmed.update(dict.fromkeys(tags))
        return tags, b"".join([self._frames[(self._first + tag) % QUEUES] for tag in tags])


def _publish(queue: str, body: bytes, exchange: str) -> bytes:
    properties = struct.pack(">HHQ", _PUBLISH[0], 0, len(body)) + _PERSISTENT
    mandatory = b"\x01"  # so that a message without a queue is returned, and not just confirmed
    return (
        _method(1, _PUBLISH, b"\x00\x00" + _short(exchange.encode()) + _short(queue.encode()) + mandatory)
        + _frame(_HEADER, 1, properties)
        + _frame(_BODY, 1, body)
    )


def consume(queue: str) -> bytes:
    """Encode a request for the deliveries of a queue. The server does not respond to it."""
    return _method(1, _CONSUME, b"\x00\x00" + _short(queue.encode()) + _short(b"") + bytes((_NO_WAIT,)) + _NO_TABLE)


def acknowledgement(tag: int, *, with_earlier: bool) -> bytes:
    """Encode the acknowledgement of a delivery, and with ``with_earlier`` of all earlier ones of the channel."""
    return _method(1, _ACK, struct.pack(">QB", tag, with_earlier))


def _method(channel: int, method: Method, arguments: bytes) -> bytes:
    return _frame(_METHOD, channel, struct.pack(">HH", *method) + arguments)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes((_FRAME_END,))


def _short(text: bytes) -> bytes:
    return struct.pack(">B", len(text)) + text


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text
