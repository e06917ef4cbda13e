"""Requests for messages of task queues: pop, wait, acknowledge, renew."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

import anyio
import anyio.abc
import anyio.lowlevel

from mq.client.admin import Admin
from mq.client.consume.popped_messages import PoppedMessage, batch_ack, read_popped
from mq.client.consume.send_back import give_back
from mq.client.errors import BrokerError, ClientError, NotADeadLetter, TopicNotFound
from mq.client.logs import log
from mq.client.net.connection import Connection, open_connection
from mq.client.net.leader_calls import Repeat, call_leader, leader_address
from mq.client.net.replies import fields_of, read_body
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.names import pop_retry_topic
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.pop import ChangeInvisibleExt, NotificationExt, PopExt, PopTimes
from mq.protocol.requests.receipts import NORMAL, Receipt
from mq.protocol.requests.topics import TopicConfig, TopicConfigTable

POP_MAX = 32
"""Messages of one pop."""
ANY_QUEUE = -1
ANSWER_SECONDS = 3.0
"""Seconds for the answer to a request, beyond the time for which a broker may hold it."""
CALL_SECONDS = 10.0
"""Seconds for one request about a message, also across a change of leader."""

_NOTHING = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND})
_NOT_NOW = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR})
_GONE = frozenset({ResponseCode.NO_MESSAGE, ResponseCode.TOPIC_NOT_EXIST})


class Source(NamedTuple):
    """A task queue in one broker group. Its topic is also the name of its consumer group."""

    topic: str
    broker_name: str

    @classmethod
    def from_message(cls, message: PoppedMessage) -> Self:
        """Return the source from which the message was popped."""
        return cls(message.topic, message.queue.broker_name)


class QueueCalls(Admin):
    """An `Admin` that also pops, acknowledges and renews messages of task queues."""

    async def leader(self, source: Source) -> str:
        """Return the address of a source's leader, if possible from the cached route. Raises ClientError."""
        return await leader_address(self._open_core(), source.topic, source.broker_name)

    async def connect(self, address: str) -> Connection:
        """Open a connection that is not shared. The caller runs its `run`. Raises ConnectFailed."""
        settings = self._open_core().settings
        return await open_connection(
            address,
            connect_seconds=settings.connect_seconds,
            silence_seconds=settings.silence_seconds,
            credentials=settings.credentials,
            tls=settings.tls,
        )

    async def pop(self, source: Source, queue_id: int, count_max: int, invisible: float) -> list[PoppedMessage]:
        """Pop the available messages, hidden from others for `invisible` seconds. Raises ClientError."""
        connection = await self._open_core().connection(await self.leader(source))
        return await self.pop_at(connection, source, queue_id, count_max, invisible)

    async def pop_at(
        self,
        connection: Connection,
        source: Source,
        queue_id: int,
        count_max: int,
        invisible: float,
        *,
        hold_seconds: float = 0.0,
        at_once: Callable[[list[PoppedMessage]], None] | None = None,
    ) -> list[PoppedMessage]:
        """Pop messages over a connection. The broker may wait for messages for `hold_seconds`.

        `at_once` gets them before this task runs again, in the task that reads the connection; it must not raise.
        """
        ext = PopExt(
            consumer_group=source.topic,
            topic=source.topic,
            queue_id=queue_id,
            max_messages=min(count_max, POP_MAX),
            invisible_ms=math.ceil(invisible * 1000),
            poll_ms=int(hold_seconds * 1000),
            born_ms=time.time_ns() // 1_000_000,
            init_mode=0,
        )
        asked_at = anyio.current_time()
        read: list[list[PoppedMessage]] = []

        def messages_of(response: Response, body: memoryview) -> list[PoppedMessage]:
            # One that was held was popped just now, perhaps long after it was asked for.
            popped_at = anyio.current_time() if hold_seconds else asked_at
            return read_popped(source.topic, source.broker_name, response, body, popped_at + invisible)

        def on_response(response: Response, body: memoryview) -> None:
            if at_once is None or response.code != ResponseCode.SUCCESS:
                return
            try:
                read.append(messages_of(response, body))
            except ClientError:
                return  # the task raises it
            at_once(read[0])

        answer, body = await connection.request(
            RequestCode.POP_MESSAGE,
            ext.fields(),
            timeout=hold_seconds + ANSWER_SECONDS,
            may_be_held=hold_seconds > 0,
            on_response=on_response,
        )
        if answer.code in _NOTHING:
            return []
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFound(source.topic)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark or "", connection.address)
        return read[0] if read else messages_of(answer, body)

    async def wait(self, source: Source, seconds: float) -> bool:
        """Wait until a queue has a message to pop, or for `seconds`. Returns whether it has one."""
        core = self._open_core()
        connection = await core.connection(await leader_address(core, source.topic, source.broker_name))
        ext = NotificationExt(
            consumer_group=source.topic,
            topic=source.topic,
            queue_id=ANY_QUEUE,
            poll_ms=int(seconds * 1000),
            born_ms=time.time_ns() // 1_000_000,
        )
        response, _ = await connection.request(
            RequestCode.NOTIFICATION, ext.fields(), timeout=seconds + ANSWER_SECONDS, may_be_held=True
        )
        if response.code in _NOTHING:
            return False
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFound(source.topic)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark or "", connection.address)
        return True

    async def refresh(self, topic: str) -> None:
        """Ask a name server for the current leaders of a topic."""
        await self._open_core().route(topic, refresh=True)

    async def sources(self, topic: str) -> dict[Source, int]:
        """Return the sources of a queue's topic, each with its number of priority levels. Raises TopicNotFound."""
        route = await self._open_core().route(topic)
        levels: dict[Source, int] = {}
        for queue in route.read_queues:
            source = Source(topic, queue.broker_name)
            levels[source] = levels.get(source, 0) + 1
        return levels

    async def acknowledge(self, source: Source, receipts: list[Receipt], *, seconds: float) -> None:
        """Acknowledge messages. Returns when that is stored, or the messages are no longer hidden. Raises ClientError
        if no broker answers for `seconds`.
        """
        rows = [(source.topic, source.topic, receipt) for receipt in receipts]
        body = batch_ack(source.broker_name, rows)
        await self._send_to_leader(source, RequestCode.BATCH_ACK_MESSAGE, None, body, seconds=seconds)

    async def change(self, source: Source, receipt: Receipt, seconds: float) -> Receipt | None:
        """Hide a message for `seconds` from now on. Returns its new receipt; None if it was no longer hidden."""
        ext = ChangeInvisibleExt(
            consumer_group=source.topic,
            topic=source.topic if receipt.mark == NORMAL else pop_retry_topic(source.topic, source.topic),
            queue_id=receipt.queue_id,
            extra_info=receipt.encode(),
            offset=receipt.offset,
            invisible_ms=math.ceil(seconds * 1000),
        )
        times = await self._send_to_leader(source, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext.fields(), b"")
        if times is None:
            return None
        return receipt._replace(
            start=receipt.offset,
            pop_time_ms=times.pop_time_ms,
            invisible_ms=times.invisible_ms,
            revive_queue=times.revive_queue,
        )

    async def extend(self, message: PoppedMessage, seconds: float) -> bool:
        """Hide a message for `seconds` from now on. Returns False if it was no longer hidden. Raises ClientError."""
        asked_at = anyio.current_time()
        receipt = await self.change(Source.from_message(message), message.receipt, seconds)
        if receipt is None:
            return False
        message.receipt, message.hidden_until = receipt, asked_at + seconds
        return True

    async def _send_to_leader(
        self, source: Source, code: int, ext: dict[str, str] | None, body: bytes, *, seconds: float = CALL_SECONDS
    ) -> PopTimes | None:
        try:
            response, _ = await call_leader(
                self._open_core(),
                source.topic,
                source.broker_name,
                code,
                ext,
                body,
                seconds=seconds,
                repeat=Repeat.ALWAYS,
                busy_codes=_NOT_NOW,
            )
        except BrokerError as error:
            if error.code not in _GONE:
                raise
            log.info("popped_message_gone", topic=source.topic, reason=error.remark)
            return None
        return fields_of(PopTimes, response) if code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME else None

    async def bury(self, source: Source, message: PoppedMessage, reason: str) -> None:
        """Store a message in the dead letter topic of its group. Raises NotADeadLetter."""
        is_stored = await give_back(
            self._open_core(),
            source.topic,
            message,
            max_reconsume_times=None,
            failure=props.safe_value(reason),
            is_dead=True,
        )
        if not is_stored:
            raise NotADeadLetter(message)

    async def ready(self, topic: str) -> int:
        """Return the number of undelivered messages of a queue. Raises TopicNotFound, ClientError."""
        return await self._lag(topic, counts_delivered=False)

    async def pending_count(self, topic: str) -> int:
        """Return the number of unacknowledged messages of a queue, except delayed ones. Raises TopicNotFound,
        ClientError.
        """
        return await self._lag(topic, counts_delivered=True)

    async def _lag(self, topic: str, *, counts_delivered: bool) -> int:
        stats = await self.topic_stats(topic)
        progress = await self.group_progress(topic)

        def end_offset(each: GroupProgress) -> int:
            return each.offset if counts_delivered else max(each.offset, each.pulled)

        own = sum(
            ends.max_offset - (end_offset(state) if (state := progress.get(queue)) is not None else ends.min_offset)
            for queue, ends in stats.items()
        )
        again = sum(each.end - end_offset(each) for queue, each in progress.items() if queue.topic != topic)
        return max(own + again, 0)

    async def purge(self, topic: str) -> int:
        """Skip all waiting messages of a queue. Returns their number. Raises TopicNotFound, ClientError."""
        count = await self.ready(topic)
        if count:
            if topic not in await self.consumer_groups():
                # No group has consumed it yet: offsets are of a group.
                await self.put_consumer_group(SubscriptionGroupConfig(group_name=topic))
            await self.reset_group(topic, topic, "last")
            retry = pop_retry_topic(topic, topic)
            try:
                await self.reset_group(topic, retry, "last")
            except TopicNotFound:
                pass  # nothing was ever delivered again
        return count

    async def all_topics(self) -> Mapping[str, TopicConfig]:
        """Return the configuration of all topics. Raises BrokerError without an administrator's permission."""
        configs: dict[str, TopicConfig] = {}
        for address in (await self._leaders(None, None)).values():
            _, body = await self._open_core().call(address, RequestCode.GET_ALL_TOPIC_CONFIG)
            for name, config in read_body(TopicConfigTable.decode, body).topics.items():
                configs.setdefault(name, config)
        return configs


def is_transient(error: ClientError) -> bool:
    """Return whether the same request may succeed if it is repeated soon."""
    return not isinstance(error, BrokerError) or error.code in _NOT_NOW
