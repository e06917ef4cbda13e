"""Consumes quorum queues by AMQP 0.9.1. Each message is acknowledged, or all up to one."""

from __future__ import annotations

import socket
import struct

from benchmarks.wires.amqp import DELIVER, AmqpConnection, acknowledgement, consume, queue_name
from benchmarks.wires.consumer import Share
from benchmarks.wires.wire import LoadFailed

PREFETCH = 512
MEMBERS = 3
FAN_OUT = "bench.fan-out"
"""The exchange that copies messages to the queue of each group."""
_FRAME = struct.Struct(">BHI")
_METHOD, _BODY = 1, 3
_DELIVERED = struct.Struct(">HH")


class AmqpConsumer:
    """Consumes some queues, or the queue of a group, on one channel."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._queues = [share.group] if share.fan_out else [queue_name(number) for number in share.queues]
        self._last = 0
        self._acknowledged = 0

    def open(self, sock: socket.socket) -> None:
        """Log in and open a channel. If messages are copied, declare the group's queue and bind it."""
        connection = AmqpConnection(sock)
        connection.open()
        connection.limit(PREFETCH)
        if self._share.fan_out:
            connection.declare_fan_out(FAN_OUT)
            connection.declare_quorum_queue(self._share.group, MEMBERS, passive=False)
            connection.bind(self._share.group, FAN_OUT)

    def initial(self) -> bytes:
        """Encode requests for the deliveries of each queue. Deliveries may arrive before the responses."""
        return b"".join(map(consume, self._queues))

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Read whole messages. Returns the number of bytes read, and the acknowledgements to send."""
        at, end, unpack = 0, len(data), _FRAME.unpack_from
        tags, whole = list[int](), 0
        while at + 7 <= end:
            kind, channel, size = unpack(data, at)
            next_frame = at + 8 + size
            if next_frame > end:
                break
            if kind == _METHOD and channel:
                if _DELIVERED.unpack_from(data, at + 7) != DELIVER:
                    raise LoadFailed(f"rabbitmq-server says {data[at : at + 200]!r}")
                tag_at = at + 12 + data[at + 11]
                self._last = int.from_bytes(data[tag_at : tag_at + 8], "big")
            elif kind == _BODY:
                tags.append(self._last)
                whole = next_frame
            elif not channel and kind == _METHOD:
                raise LoadFailed(f"rabbitmq-server ends the connection: {data[at : at + 200]!r}")
            at = next_frame
        # Without a body, the beginning of the next message is read again.
        if not self._share.confirms_each:
            tags = tags[-1:]
        output = b"".join([acknowledgement(tag, with_earlier=not self._share.confirms_each) for tag in tags])
        return whole, output
