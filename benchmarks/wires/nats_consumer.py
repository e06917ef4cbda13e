"""Consumes by NATS' text protocol with a durable pull consumer. Each message is acknowledged, or all up to one."""

from __future__ import annotations

import json
import os
import re
import socket

from benchmarks.wires.consumer import Share
from benchmarks.wires.nats_stream import STREAM
from benchmarks.wires.wire import LoadFailed, receive_some, receive_until

ASKED = 512
"""Messages that are asked for and have not come, at most; half of it at least."""
PENDING_MAX = 20_000
"""`max_ack_pending`: its default of 1,000 holds eight consumers up."""
_EXPIRES_NS = 600 * 10**9
_MESSAGE = re.compile(rb"MSG [^ ]+ 1 (\$JS\.ACK[^ ]+) +(\d+)\r\n")
_ANSWER = re.compile(rb"MSG [^\r]+\r\n[^\r]*\r\n")
_STATUS = re.compile(rb"HMSG [^\r]+ (\d+)\r\n")
_PING, _PONG, _END = b"PING\r\n", b"PONG\r\n", b"\r\n"


class NatsConsumer:
    """Pulls messages. It requests more when half of the requested ones have arrived."""

    def __init__(self, share: Share) -> None:
        self._share = share
        # A position is the whole group's: consumers that share it confirm each message.
        self._confirms_each = share.confirms_each or share.consumers > 1
        self._inbox = f"_INBOX.{os.getpid()}.{share.group}.{share.number}".encode()
        self._credit = 0

    def open(self, sock: socket.socket) -> None:
        """Send CONNECT, and create the consumer unless it exists."""
        receive_until(sock, _END)
        about = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "bench"}
        sock.sendall(b"CONNECT %b\r\nSUB %b 1\r\nSUB %b.api 2\r\n" % (json.dumps(about).encode(), *2 * (self._inbox,)))
        config = {
            "durable_name": self._share.group,
            "ack_policy": "explicit" if self._confirms_each else "all",
            "deliver_policy": "new" if self._share.is_late else "all",
            "max_ack_pending": PENDING_MAX,
        }
        body = json.dumps({"stream_name": STREAM, "config": config}).encode()
        name = self._share.group.encode()
        api = b"$JS.API.CONSUMER.DURABLE.CREATE.%b.%b" % (STREAM.encode(), name)
        sock.sendall(b"PUB %b %b.api %d\r\n%b\r\n" % (api, self._inbox, len(body), body))
        output = b""
        while not _ANSWER.search(output) and b"-ERR" not in output:
            output += receive_some(sock)
        if b'"error"' in output or b"-ERR" in output:
            raise LoadFailed(f"nats-server creates no consumer: {output[:300]!r}")

    def initial(self) -> bytes:
        """Encode a request for many messages."""
        return self._ask()

    def _ask(self) -> bytes:
        more = ASKED - self._credit
        self._credit += more
        body = json.dumps({"batch": more, "expires": _EXPIRES_NS}).encode()
        api = b"$JS.API.CONSUMER.MSG.NEXT.%b.%b" % (STREAM.encode(), self._share.group.encode())
        return b"PUB %b %b %d\r\n%b\r\n" % (api, self._inbox, len(body), body)

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Read messages. Returns the number of bytes read, and the acknowledgements and requests to send."""
        replies, at, control = list[bytes](), 0, b""
        match = _MESSAGE.match
        while at < len(data):
            if (message := match(data, at)) is not None:
                end = message.end() + int(message[2]) + len(_END)
                if end > len(data):
                    break
                replies.append(message[1])
                at = end
            elif data.startswith(_PING, at):
                control += _PONG
                at += len(_PING)
            elif _STATUS.match(data, at) or data.startswith(b"-ERR", at):
                raise LoadFailed(f"nats-server says {data[at : at + 200]!r}")
            else:
                break
        self._credit -= len(replies)
        to_ack = replies if self._confirms_each else replies[-1:]
        output = control + b"".join([b"PUB %b 4\r\n+ACK\r\n" % reply for reply in to_ack])
        if replies and self._credit <= ASKED // 2:
            output += self._ask()
        return at, output
