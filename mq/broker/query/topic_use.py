"""Request code 9032: returns the bytes of a topic's queues, and the senders of its newest messages.

Nothing is noted when a message is sent: sizes are in the entries of the queues, and senders in the records.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Final

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.consumer_group import Member
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.net.slow_responses import ResponseSteps
from mq.protocol.codes import ResponseCode
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.topic_use import AskTopicUse, QueueSize, Sender, TopicUse
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import QueueFileDamaged
from mq.store.log_records import LogRecords
from raftlog import SegmentError

PARTS: Final = 16
NEWEST_MAX: Final = 1024
"""Records that are looked at for one topic, at most `NEWEST_OF_QUEUE` of each queue."""
NEWEST_OF_QUEUE: Final = 32


class TopicUseQueries(Service):
    """Answers request 9032 with the bytes of a topic's queues, and the senders of its newest messages."""

    def __init__(self, context: BrokerContext, *, records: LogRecords) -> None:
        self._metadata = context.metadata
        self._store = context.store
        self._records = records
        self._clients = context.clients
        self._gradually = context.slow_responses
        self._read = context.reads.read
        self._entries_max = context.limits.upkeep.summed_entries_max

    def routes(self) -> Iterator[Route]:
        yield Route(AskTopicUse, self.handle)

    def handle(self, call: Call[AskTopicUse]) -> None:
        """Request code 9032: return a topic's bytes by queue, and its latest senders. Raises RequestRefused."""
        topic = call.request.ext.topic
        self._gradually.when_current(self._read, call, lambda: self._answer(call, topic))

    def _answer(self, call: Call[AskTopicUse], topic: str) -> ResponseSteps:
        config = self._metadata.topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {topic[:127]} does not exist")
        count = max(1, config.write_queues)
        sizes: list[QueueSize] = []
        senders: dict[bytes, list[int]] = {}
        for queue_id in range(config.write_queues):
            queue = self._store.get(topic, queue_id)
            if queue is None:
                sizes.append(QueueSize(queue_id, 0, True))
                continue
            try:
                sizes.append(_size(queue, max(PARTS, self._entries_max // count)))
                yield
                self._add_senders(queue, max(1, min(NEWEST_OF_QUEUE, NEWEST_MAX // count)), senders)
            except (SegmentError, QueueFileDamaged, OSError):
                pass  # other requests say what is wrong with this queue, and repair it
            yield
        looked_at = sum(len(times) for times in senders.values())
        use = TopicUse(queues=sizes, senders=self._senders(senders), looked_at=looked_at)
        return call.response(body=use.encode())

    def _add_senders(self, queue: ConsumeQueue, count: int, times_by_host: dict[bytes, list[int]]) -> None:
        begin = max(queue.min_offset, queue.max_offset - count)
        entries = queue.read(QueueOffset(begin), count)
        assert len(entries) <= count * QUEUE_ENTRY.size, f"{len(entries)} bytes are more than {count} entries"
        for place, _, _ in QUEUE_ENTRY.iter_unpack(entries):
            host, stored_ms = self._records.sender(PhysicalOffset(place))
            times_by_host.setdefault(host, []).append(stored_ms)

    def _senders(self, times_by_host: Mapping[bytes, list[int]]) -> list[Sender]:
        """Return a sender for each connected client, and one for each address of other clients."""
        by_host: dict[bytes, tuple[str, str, Member]] = {
            at.host: (at.peer, group, member)
            for group, members in self._clients.producer_groups()
            for at, member in members.items()
            if at.host in times_by_host
        }
        senders: dict[tuple[str, str], Sender] = {}
        for host, times in times_by_host.items():
            peer, group, member = by_host.get(host, ("", "", None))
            address = peer.rpartition(":")[0] or _address(host)
            client_id = "" if member is None else member.client_id
            before = senders.get((address, client_id))
            senders[address, client_id] = Sender(
                address=address,
                messages=len(times) + (0 if before is None else before.messages),
                last_ms=max(times) if before is None else max(before.last_ms, *times),
                client_id=client_id,
                language="" if member is None else member.language or "OTHER",
                version=0 if member is None else member.version,
                group=group,
            )
        return sorted(senders.values(), key=lambda each: (-each.last_ms, each.address, each.client_id))


def _size(queue: ConsumeQueue, entries_max: int) -> QueueSize:
    """Return the bytes of the messages of a queue. Raises QueueFileDamaged, OSError."""
    begin, count = queue.min_offset, queue.max_offset - queue.min_offset
    assert count >= 0, f"{queue.key} has offsets from {begin} to {queue.max_offset}"
    if count <= entries_max:
        return QueueSize(queue.queue_id, _sum(queue, begin, count)[0], True)
    part = entries_max // PARTS
    nbytes = entries = 0
    for number in range(PARTS):
        part_sum = _sum(queue, QueueOffset(begin + (count - part) * number // (PARTS - 1)), part)
        nbytes += part_sum[0]
        entries += part_sum[1]
    return QueueSize(queue.queue_id, round(nbytes * count / max(1, entries)), False)


def _sum(queue: ConsumeQueue, offset: QueueOffset, count: int) -> tuple[int, int]:
    sizes = [size for _, size, _ in QUEUE_ENTRY.iter_unpack(queue.read(offset, count))]
    return sum(sizes), len(sizes)


def _address(host: bytes) -> str:
    return str(ipaddress.ip_address(host[:-4])) if any(host[:-4]) else ""
