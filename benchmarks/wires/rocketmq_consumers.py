"""RocketMQ's remoting protocol: long polls of queues with positions, or POP with acknowledgements of each message.

A connection has one request in flight for each of its queues, as stock consumers do.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from benchmarks.frames import TOPIC
from benchmarks.wires.consumer import Share
from benchmarks.wires.wire import LoadFailed, receive_some

PULLED_MAX = 32
"""As stock consumers ask for."""
BROKER = "broker-a"
INVISIBLE_MS = 60_000
WAIT_MS = 15_000
_PULL, _COMMIT, _GET_MAX_OFFSET, _POP, _ACK, _BATCH_ACK = 11, 15, 30, 200050, 200051, 200151
_FOUND, _NOTHING_NEW = 0, (19, 20, 209, 210)
_COMMITS, _WAITS, _HAS_SUBSCRIPTION = 1, 2, 4
_RESPONSE = 1
_ACKS_FROM: Final = 1000
"""The opaque of acknowledgements; those of pulls are the numbers of queues."""
_LENGTHS = struct.Struct(">II")


class _Header(msgspec.Struct):
    code: int
    opaque: int
    flag: int
    remark: str | None = None
    ext: dict[str, str] | None = msgspec.field(default=None, name="extFields")


_decode = msgspec.json.Decoder(_Header).decode


def request(code: int, opaque: int, ext: Mapping[str, Any], body: bytes = b"") -> bytes:
    """A whole frame."""
    fields = {key: str(value) for key, value in ext.items()}
    header = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 409}
    encoded = json.dumps(header | {"serializeTypeCurrentRPC": "JSON"}, separators=(",", ":")).encode()
    return _LENGTHS.pack(4 + len(encoded) + len(body), len(encoded)) + encoded + body


def responses(data: bytes) -> tuple[list[_Header], int]:
    """The headers of all whole responses, and where they end. What a broker asks its clients is skipped."""
    at, unpack, found = 0, _LENGTHS.unpack_from, list[_Header]()
    while at + 8 <= len(data):
        total, header_bytes = unpack(data, at)
        if at + 4 + total > len(data):
            break
        head = _decode(memoryview(data)[at + 8 : at + 8 + (header_bytes & 0xFFFFFF)])
        at += 4 + total
        if head.flag & _RESPONSE:
            found.append(head)
    return found, at


class RocketMQPull:
    """Each pull also stores the position it begins at, as the group's."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._pulls = {queue: self._template(queue) for queue in share.queues}
        self._begin = dict.fromkeys(share.queues, 0)

    def _template(self, queue: int) -> bytes:
        ext = {
            "consumerGroup": self._share.group,
            "topic": TOPIC,
            "queueId": queue,
            "queueOffset": "%(at)d",
            "maxMsgNums": PULLED_MAX,
            "sysFlag": _COMMITS | _WAITS | _HAS_SUBSCRIPTION,
            "commitOffset": "%(at)d",
            "suspendTimeoutMillis": WAIT_MS,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        return request(_PULL, queue, ext)[_LENGTHS.size :]

    def _pull(self, queue: int, at: int) -> bytes:
        header = self._pulls[queue] % {b"at": at}
        return _LENGTHS.pack(4 + len(header), len(header)) + header

    def open(self, sock: socket.socket) -> None:
        """Ask for the ends of the queues, to begin there if it is late."""
        if self._share.is_late:
            self._begin = _ends(sock, self._begin)

    def first(self) -> bytes:
        """A pull of each queue."""
        return b"".join(self._pull(queue, at) for queue, at in self._begin.items())

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Each response is followed by the next pull of its queue."""
        (heads, end), again = responses(data), list[bytes]()
        for head in heads:
            _check(head)
            again.append(self._pull(head.opaque, int((head.ext or {})["nextBeginOffset"])))
        return end, b"".join(again)


class RocketMQPop:
    """A pop of each queue; each message is acknowledged by a request of its own, or all of a pop by one."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._acks = 0

    def open(self, sock: socket.socket) -> None:
        """A group begins with its first pop, at the first message of a queue that has all of its messages in memory.
        One that is late commits the ends of the queues before.
        """
        if not self._share.is_late:
            return
        ends = _ends(sock, self._share.queues)
        of_group = {"consumerGroup": self._share.group, "topic": TOPIC}
        commits = {queue: of_group | {"queueId": queue, "commitOffset": at} for queue, at in ends.items()}
        _ask(sock, {queue: request(_COMMIT, queue, ext) for queue, ext in commits.items()})

    def _pop(self, queue: int) -> bytes:
        ext = {
            "consumerGroup": self._share.group,
            "topic": TOPIC,
            "queueId": queue,
            "maxMsgNums": PULLED_MAX,
            "invisibleTime": INVISIBLE_MS,
            "pollTime": WAIT_MS,
            "bornTime": time.time_ns() // 10**6,
            "initMode": int(self._share.is_late),
            "expType": "TAG",
            "exp": "*",
            "order": "false",
        }
        return request(_POP, queue, ext)

    def first(self) -> bytes:
        """A pop of each queue."""
        return b"".join(map(self._pop, self._share.queues))

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Acknowledgements of all messages that were popped, and the next pops."""
        (heads, end), again = responses(data), list[bytes]()
        for head in heads:
            _check(head)
            if head.opaque < _ACKS_FROM:
                if head.code == _FOUND:
                    again += (self._acknowledge_together if self._share.joins else self._acknowledge)(head.ext or {})
                again.append(self._pop(head.opaque))
        return end, b"".join(again)

    def _acknowledge(self, ext: Mapping[str, str]) -> Iterator[bytes]:
        starts = {tuple(each.split(" ")[:2]): each.split(" ")[2] for each in _listed(ext, "startOffsetInfo")}
        for each in _listed(ext, "msgOffsetInfo"):
            mark, queue, offsets = each.split(" ")
            taken = f"{starts[mark, queue]} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} {mark} {BROKER}"
            for offset in offsets.split(","):
                self._acks = (self._acks + 1) % 2**20
                fields = {"consumerGroup": self._share.group, "topic": TOPIC, "queueId": queue, "offset": offset}
                fields["extraInfo"] = f"{taken} {queue} {offset}"
                yield request(_ACK, _ACKS_FROM + self._acks, fields)

    def _acknowledge_together(self, ext: Mapping[str, str]) -> Iterator[bytes]:
        """A request with a bit for each message, counted from the first one of its queue."""
        starts = {tuple(each.split(" ")[:2]): int(each.split(" ")[2]) for each in _listed(ext, "startOffsetInfo")}
        rows = list[dict[str, Any]]()
        for each in _listed(ext, "msgOffsetInfo"):
            mark, queue, offsets = each.split(" ")
            start = starts[mark, queue]
            bits = sum(1 << (int(offset) - start) for offset in offsets.split(","))
            encoded = base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()
            row: dict[str, Any] = {"c": self._share.group, "t": TOPIC, "r": mark, "q": int(queue), "so": start}
            times = {"rq": int(ext["reviveQid"]), "pt": int(ext["popTime"]), "it": int(ext["invisibleTime"])}
            rows.append(row | times | {"b": encoded})
        self._acks = (self._acks + 1) % 2**20
        yield request(
            _BATCH_ACK, _ACKS_FROM + self._acks, {}, json.dumps({"brokerName": BROKER, "acks": rows}).encode()
        )


def _ends(sock: socket.socket, queues: Iterable[int]) -> dict[int, int]:
    """Where each queue ends. Raises LoadFailed."""
    asked = {queue: request(_GET_MAX_OFFSET, queue, {"topic": TOPIC, "queueId": queue}) for queue in queues}
    return {queue: int((head.ext or {})["offset"]) for queue, head in _ask(sock, asked).items()}


def _ask(sock: socket.socket, requests: Mapping[int, bytes]) -> dict[int, _Header]:
    """Send requests, by opaque, and wait for the answers to all of them. Raises LoadFailed."""
    sock.sendall(b"".join(requests.values()))
    received, answers = b"", dict[int, _Header]()
    while len(answers) < len(requests):
        received += receive_some(sock)
        heads, end = responses(received)
        for head in heads:
            _check(head)
            answers[head.opaque] = head
        received = received[end:]
    return answers


def _listed(ext: Mapping[str, str], name: str) -> list[str]:
    return [each for each in ext[name].split(";") if each]


def _check(head: _Header) -> None:
    if head.code != _FOUND and head.code not in _NOTHING_NEW:
        raise LoadFailed(f"a consumer's request was answered with code {head.code}: {head.remark}")
