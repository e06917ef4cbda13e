"""The two clusters of a mirror, and the requests to their name servers and brokers."""

from __future__ import annotations

import time
from collections import deque
from typing import Final, NamedTuple, Self

from mq.cli.errors import CommandFailed
from mq.client.errors import BrokerError, UnreadableAnswer
from mq.client.message import MessageQueue
from mq.client.net.client_core import ClientCore
from mq.client.net.leader_calls import Repeat, call_leader, leader_address
from mq.client.net.replies import fields_of, read_body
from mq.inspection.catalogue import CatalogueAdmin
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import StoredMessage, decode_records
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.namesrv import ClusterInfo
from mq.protocol.requests.pull import PULL_ANSWERS, PullExt, PullReply
from mq.protocol.requests.send import SENT_QUEUE_OFFSET
from mq.protocol.send_fields import SEND_FIELDS
from mq.protocol.wire.queue_tables import read_offset_rows

READER_GROUP: Final = "TOOLS_CONSUMER"
"""The group in whose name is read; brokers of RocketMQ and of raftmq have it from the start. It stores no offsets."""
PULL_MESSAGES_MAX: Final = 256
HOLD_SECONDS: Final = 5.0
CALL_SECONDS: Final = 10.0
STORE_SECONDS: Final = 30.0
"""Seconds for a batch, across a change of leader."""
_SUSPEND, _SUBSCRIPTION = 2, 4


class PullResult(NamedTuple):
    """The response to a pull: messages, and the offsets of the queue.

    ``next_offset`` is where to continue; ``begin`` and ``end`` are the queue's. ``moved`` says that the offset
    asked for is not between them.
    """

    messages: list[StoredMessage]
    next_offset: int
    begin: int
    end: int
    moved: bool


class ClusterAdmin(CatalogueAdmin):
    """One of the two clusters. All methods raise ClientError."""

    @property
    def core(self) -> ClientCore:
        """The connections to the cluster."""
        return self._open_core()

    async def leaders(self) -> dict[str, str]:
        """The address of the leader of each broker group. Raises NoRoute."""
        return await self._leaders(None, None)

    async def delay_offsets(self, address: str) -> dict[int, int]:
        """Map each delay level of one broker to the offset of the next message to deliver."""
        _, body = await self._open_core().call(address, RequestCode.GET_ALL_DELAY_OFFSET)
        return {int(level): int(offset) for level, offset in read_body(read_offset_rows, body).items()}

    async def pull(
        self, queue: MessageQueue, offset: int, *, hold: bool = False, count_max: int = PULL_MESSAGES_MAX
    ) -> PullResult:
        """Pull messages from an offset on; none at the end. With ``hold`` the broker waits up to 5 s for a message."""
        ext = PullExt(
            consumer_group=READER_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=QueueOffset(offset),
            max_messages=count_max,
            sys_flag=_SUBSCRIPTION | (_SUSPEND if hold else 0),
            commit_offset=QueueOffset(0),
            suspend_timeout_ms=int(HOLD_SECONDS * 1000),
            subscription="*",
            sub_version=int(time.time() * 1000),
            expression_type="TAG",
        )
        core = self._open_core()
        connection = await core.connection(await leader_address(core, queue.topic, queue.broker_name))
        response, body = await connection.request(
            RequestCode.PULL_MESSAGE,
            ext.fields(),
            timeout=CALL_SECONDS + (HOLD_SECONDS if hold else 0),
            may_be_held=hold,
        )
        if response.code not in PULL_ANSWERS:
            raise BrokerError(response.code, response.remark, connection.address)
        reply = fields_of(PullReply, response)
        begin, end = max(reply.min_offset, 0), max(reply.max_offset, 0)
        messages = read_body(decode_records, body) if response.code == ResponseCode.SUCCESS else []
        for message in messages:
            if (message.topic, message.queue_id) != (queue.topic, queue.queue_id):
                raise UnreadableAnswer(f"{queue}: a message of queue {message.queue_id} of {message.topic}")
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            return PullResult([], reply.next_begin_offset, begin, end, moved=True)
        return PullResult(messages, max(reply.next_begin_offset, offset), begin, end, moved=False)

    async def message_at(self, queue: MessageQueue, offset: int) -> StoredMessage | None:
        """Return the message at an offset; None if the queue has none there, or deleted it."""
        messages = (await self.pull(queue, offset, count_max=1)).messages
        return next((message for message in messages if message.queue_offset == offset), None)

    def read(self, queue: MessageQueue, begin: int, end: int) -> QueueReading:
        """Read the messages that the queue has between two offsets."""
        return QueueReading(self, queue, begin, end)

    async def store(self, fields: dict[str, str], body: bytes) -> int | None:
        """Store a batch with sequence numbers, exactly once. Returns the queue offset of its first message.

        None if it was stored before, and the broker no longer knows where.
        """
        response, _ = await call_leader(
            self._open_core(),
            fields[SEND_FIELDS["topic"]],
            fields[SEND_FIELDS["broker_name"]],
            RequestCode.SEND_BATCH_MESSAGE,
            fields,
            body,
            seconds=STORE_SECONDS,
            repeat=Repeat.ALWAYS,
        )
        offset = int(response.ext.get(SENT_QUEUE_OFFSET, "-1"))
        return offset if offset >= 0 else None

    async def refresh_route(self, topic: str) -> None:
        """Ask the name servers for the leaders of a topic."""
        await self._open_core().route(topic, refresh=True)


class QueueReading:
    """Reads the messages of a queue between two offsets, in the portions that the broker returns.

    ``async for`` gives lists; `next` gives one after the other. Both raise ClientError.
    """

    def __init__(self, admin: ClusterAdmin, queue: MessageQueue, begin: int, end: int) -> None:
        self._admin, self._queue = admin, queue
        self._next, self._end = begin, end
        self._messages: deque[StoredMessage] = deque()

    @property
    def next_offset(self) -> int:
        """The offset after the messages read so far; less than the end if the broker returned no further message."""
        return self._next

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[StoredMessage]:
        while self._next < self._end:
            begin = self._next
            pull = await self._admin.pull(self._queue, begin)
            self._next = max(pull.begin if pull.moved else pull.next_offset, begin)
            if inside := [message for message in pull.messages if message.queue_offset < self._end]:
                return inside
            if self._next == begin:
                break
        raise StopAsyncIteration

    async def next(self) -> StoredMessage | None:
        """Return the next message; None at the end."""
        if not self._messages:
            try:
                self._messages.extend(await anext(self))
            except StopAsyncIteration:
                return None
        return self._messages.popleft()


async def check_different(source: ClusterAdmin, target: ClusterAdmin) -> tuple[ClusterInfo, ClusterInfo]:
    """Return both clusters, as their name servers know them. Raises CommandFailed if they are one, or the target is not
    raftmq's; ClientError if one does not answer.
    """
    ours, theirs = await source.cluster_info(), await target.cluster_info()

    def addresses(info: ClusterInfo) -> set[str]:
        return {address for broker in info.brokers.values() for address in broker.broker_addrs.values()}

    if common := addresses(ours) & addresses(theirs):
        raise CommandFailed(f"source and target are one cluster: both have the broker {min(common)}")
    for name, address in (await target.leaders()).items():
        if "raftmq.role" not in await target.broker_runtime(address):
            raise CommandFailed(
                f"broker group {name} at the target is not raftmq's: only raftmq stores each copy exactly once"
            )
    return ours, theirs
