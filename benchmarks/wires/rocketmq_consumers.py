"""Consumes by RocketMQ's remoting protocol: long polls that store positions, or POP with acknowledgements.

A connection has one request in flight for each of its queues, as stock consumers do.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from benchmarks.load.frames import (
    BROKER,
    COMMITS,
    TOPIC,
    WAITS,
    batch_ack,
    pop_ext,
    popped_rows,
    pull_ext,
    request_frame,
    responses,
)
from benchmarks.wires.consumer import Share
from benchmarks.wires.wire import LoadFailed, receive_some
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.offsets import OffsetReply, QueueExt, UpdateConsumerOffsetExt
from mq.protocol.requests.pop import AckExt, PopReply
from mq.protocol.requests.pull import PullReply
from mq.protocol.requests.receipts import Receipt
from mq.protocol.wire.reply import read_reply

_NOTHING_NEW = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.POLLING_FULL,
    ResponseCode.POLLING_TIMEOUT,
)
_ACKS_FROM: Final = 1000
"""The opaque of acknowledgements; the opaques of pulls are the numbers of queues."""
_LENGTHS = struct.Struct(">II")
_ANY_OFFSET: Final = 1_234_567_890_123
"""Stands for the position in a frame that is made once."""


class RocketMQPull:
    """Pulls messages from its queues. Each pull also commits the offset at which it begins."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._pulls = {queue: self._template(queue) for queue in share.queues}
        self._begin = dict.fromkeys(share.queues, 0)

    def _template(self, queue: int) -> bytes:
        at = _ANY_OFFSET
        ext = pull_ext(self._share.group, TOPIC, queue, at, self._share.pulled_max, COMMITS | WAITS, commit_offset=at)
        frame = request_frame(RequestCode.PULL_MESSAGE, queue, ext)[_LENGTHS.size :]
        return frame.replace(b"%", b"%%").replace(b"%d" % at, b"%(at)d")

    def _pull(self, queue: int, at: int) -> bytes:
        header = self._pulls[queue] % {b"at": at}
        return _LENGTHS.pack(4 + len(header), len(header)) + header

    def open(self, sock: socket.socket) -> None:
        """Query the ends of the queues, at which a late consumer begins."""
        if self._share.is_late:
            self._begin = _ends(sock, self._begin)

    def initial(self) -> bytes:
        """Encode a pull from each queue."""
        return b"".join(self._pull(queue, at) for queue, at in self._begin.items())

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Read responses. Returns the number of bytes read, and the next pull of each queue to send."""
        (heads, end), again = responses(data), list[bytes]()
        for head, _ in heads:
            _check(head)
            again.append(self._pull(head.opaque, read_reply(PullReply, head.ext).next_begin_offset))
        return end, b"".join(again)


class RocketMQPop:
    """Pops messages from its queues. It acknowledges each one by a request, or all messages of a pop by one."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._acks = 0

    def open(self, sock: socket.socket) -> None:
        """Commit the ends of the queues for a late group. Other groups begin with their first pop, at the first message
        of a queue that has all of its messages in memory.
        """
        if not self._share.is_late:
            return
        ends = _ends(sock, self._share.queues)
        commits = {
            queue: UpdateConsumerOffsetExt(
                consumer_group=self._share.group, topic=TOPIC, queue_id=queue, commit_offset=QueueOffset(at)
            )
            for queue, at in ends.items()
        }
        update = RequestCode.UPDATE_CONSUMER_OFFSET
        _ask(sock, {queue: request_frame(update, queue, ext) for queue, ext in commits.items()})

    def _pop(self, queue: int) -> bytes:
        ext = pop_ext(self._share.group, queue, self._share.pulled_max, from_last=self._share.is_late)
        return request_frame(RequestCode.POP_MESSAGE, queue, ext)

    def initial(self) -> bytes:
        """Encode a pop from each queue."""
        return b"".join(map(self._pop, self._share.queues))

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Read popped messages. Returns the number of bytes read, and the acknowledgements and next pops to send."""
        (heads, end), again = responses(data), list[bytes]()
        for head, _ in heads:
            _check(head)
            if head.opaque < _ACKS_FROM:
                if head.code == ResponseCode.SUCCESS:
                    reply = read_reply(PopReply, head.ext)
                    again += self._acknowledge_together(reply) if self._share.joins else self._acknowledge(reply)
                again.append(self._pop(head.opaque))
        return end, b"".join(again)

    def _acknowledge(self, reply: PopReply) -> Iterator[bytes]:
        for mark, queue, start, offsets in popped_rows(reply):
            for offset in map(QueueOffset, offsets):
                times = reply.pop_time_ms, reply.invisible_ms, reply.revive_queue
                receipt = Receipt(QueueOffset(start), *times, mark, BROKER, queue, offset).encode()
                ext = AckExt(
                    consumer_group=self._share.group, topic=TOPIC, queue_id=queue, extra_info=receipt, offset=offset
                )
                self._acks = (self._acks + 1) % 2**20
                yield request_frame(RequestCode.ACK_MESSAGE, _ACKS_FROM + self._acks, ext)

    def _acknowledge_together(self, reply: PopReply) -> Iterator[bytes]:
        self._acks = (self._acks + 1) % 2**20
        body = batch_ack(self._share.group, reply).encode()
        yield request_frame(RequestCode.BATCH_ACK_MESSAGE, _ACKS_FROM + self._acks, body=body)


def _ends(sock: socket.socket, queues: Iterable[int]) -> dict[int, int]:
    """The end of each queue. Raises LoadFailed."""
    requests = {
        queue: request_frame(RequestCode.GET_MAX_OFFSET, queue, QueueExt(topic=TOPIC, queue_id=queue))
        for queue in queues
    }
    return {queue: read_reply(OffsetReply, head.ext).offset for queue, head in _ask(sock, requests).items()}


def _ask(sock: socket.socket, requests: Mapping[int, bytes]) -> dict[int, Response]:
    """Send requests, by opaque, and wait for the answers to all of them. Raises LoadFailed."""
    sock.sendall(b"".join(requests.values()))
    data, responses_by_queue = b"", dict[int, Response]()
    while len(responses_by_queue) < len(requests):
        data += receive_some(sock)
        heads, end = responses(data)
        for head, _ in heads:
            _check(head)
            responses_by_queue[head.opaque] = head
        data = data[end:]
    return responses_by_queue


def _check(head: Response) -> None:
    if head.code != ResponseCode.SUCCESS and head.code not in _NOTHING_NEW:
        raise LoadFailed(f"a consumer's request was answered with code {head.code}: {head.remark}")
