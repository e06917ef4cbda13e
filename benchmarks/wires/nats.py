"""Speaks NATS' text protocol: publishes messages to a JetStream, each with a subject for its acknowledgement."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Sequence

from benchmarks.wires.nats_stream import SUBJECT
from benchmarks.wires.wire import LoadFailed, Slots, receive_until

_ACK = re.compile(rb'MSG [^ ]+\.(\d+) 1 +\d+\r\n\{"stream":"[^"]+", ?"seq":\d+\}\r\n')
_PING, _PONG, _END = b"PING\r\n", b"PONG\r\n", b"\r\n"


class NatsWire:
    """Speaks NATS. The last part of the reply subject identifies a request."""

    def __init__(self, slots: Slots) -> None:
        # Unique per process: acknowledgements for a generator that has ended may still be in flight.
        self._inbox = b"_INBOX.bench-%d-%d" % (os.getpid(), slots.first)
        self._frames = {
            b"%d" % slot: b"PUB %b %b.%d %d\r\n%b\r\n"
            % (SUBJECT.encode(), self._inbox, slot, slots.body_bytes, slots.body(slot))
            for slot in slots.numbers
        }
        self._pongs = b""

    def open(self, sock: socket.socket) -> None:
        """Send CONNECT, and subscribe to acknowledgements."""
        receive_until(sock, _END)
        about = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "bench"}
        sock.sendall(b"CONNECT %b\r\nSUB %b.* 1\r\n%b" % (json.dumps(about).encode(), self._inbox, _PING))
        if not (output := receive_until(sock, _PONG)).endswith(_PONG):
            raise LoadFailed(f"nats-server says {output!r}")

    def initial(self) -> tuple[Iterable[bytes], bytes]:
        """Encode the message of each slot. Returns the keys, and the bytes to send."""
        return self._frames, b"".join(self._frames.values())

    def idle(self) -> Sequence[bytes]:
        """Return the last parts of all reply subjects."""
        return list(self._frames)

    def read_responses(self, data: bytes) -> tuple[Sequence[bytes], int]:
        """Read acknowledgements. Each of them must have a sequence number of the stream."""
        keys, position, match = list[bytes](), 0, _ACK.match
        while position < len(data):
            response = match(data, position)
            if response is not None:
                keys.append(response[1])
                position = response.end()
            elif data.startswith(_PING, position):
                self._pongs += _PONG
                position += len(_PING)
            elif data.count(_END, position) >= 2 or data.startswith(b"-ERR", position):
                raise LoadFailed(f"nats-server says {data[position : position + 200]!r}")
            else:
                break
        return keys, position

    def repeat(self, keys: Sequence[bytes]) -> tuple[Iterable[bytes], bytes]:
        """Encode the messages of ``keys`` again."""
        pongs, self._pongs = self._pongs, b""
        frame_of = self._frames
        return keys, pongs + b"".join([frame_of[key] for key in keys])
