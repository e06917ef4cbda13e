"""Sends messages to task queues. A topic has one queue for each priority level in a broker group.

Each message has a number, by which brokers recognize what they have stored already: so it is sent again until a broker
answers, and stored once.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from typing import Final

import anyio

from mq.client.errors import ClientError, SendOutcomeUnknown, TopicNotFound
from mq.client.logs import log
from mq.client.message import Message, MessageQueue, SendResult
from mq.client.net.client_core import RemotingSettings
from mq.client.produce.producer import Producer

_PRODUCER: Final = "RAFTMQ_PRODUCER"
_SEQUENCE: Final = "RAFTMQ_SEQUENCE"


class Sending:
    """A producer for task queues, which numbers its messages. Belongs to one event loop. `open` and `aclose` it.

    `timeout` is for one message, in seconds, over all its attempts.
    """

    def __init__(self, namesrv: str | Sequence[str], *, timeout: float, remoting: RemotingSettings | None) -> None:
        self._timeout = timeout
        self._numbers = itertools.count()
        self._turns = itertools.count()
        self._name = uuid.uuid4().hex
        self._producer = Producer(
            namesrv,
            timeout=timeout,
            retries=1000,  # a message that is stored twice is recognized by its number
            auto_create_topics=False,
            remoting=remoting,
        )

    async def open(self) -> None:
        """Open the producer, as any client."""
        await self._producer.open()

    async def aclose(self) -> None:
        """Close the producer, as any client."""
        await self._producer.aclose()

    async def recall(self, handle: str) -> None:
        """Recall a delayed message. Raises NotRecalled, ClientError."""
        await self._producer.recall(handle)

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        priority: int = 0,
        keys: Sequence[str] = (),
        delay: float | None = None,
    ) -> SendResult:
        """Send a message, and return when a majority has stored it, once. A too high priority means the highest level.

        Raises TopicNotFound, ClientError; its `stored` says whether the message may be stored all the same.
        """
        message = Message(
            topic,
            body,
            keys=keys,
            properties={_PRODUCER: self._name, _SEQUENCE: str(next(self._numbers))},
            delay=delay,
        )
        turn = next(self._turns)
        return await send_by_level(self._producer, message, turn=turn, priority=priority, seconds=self._timeout)


async def send_by_level(
    producer: Producer[bytes],
    message: Message[bytes],
    *,
    turn: int,
    priority: int,
    seconds: float,
    may_be_in: MessageQueue | None = None,
) -> SendResult:
    """Send a message to the queue of its priority level, in a broker group that `turn` chooses.

    Another group is tried if one has certainly not stored it. If one may have, only that one can recognize the message:
    it is sent to the same queue until the time is up. `may_be_in` is the queue that may have it from an earlier
    attempt. Raises TopicNotFound, ClientError.
    """
    if may_be_in is not None:
        # The route is not asked again: it may have lost or got groups since, and the turn would mean another one.
        return await _send_again(producer, message, may_be_in, seconds)
    topic = message.topic
    queues = await producer.queues(topic)
    levels: dict[str, int] = {}
    for each in queues:
        levels[each.broker_name] = max(levels.get(each.broker_name, 0), each.queue_id)
    names = sorted(levels)
    if not names:
        raise TopicNotFound(topic)
    deadline = anyio.current_time() + seconds
    for at in range(len(names)):
        name = names[(turn + at) % len(names)]
        level = min(priority, levels[name])
        [queue] = [each for each in queues if each.broker_name == name and each.queue_id == level]
        seconds_each = max(deadline - anyio.current_time(), 0.1) / (len(names) - at)
        may_be_stored = False
        try:
            return await producer.send(message, queue=queue, timeout=seconds_each)
        except TopicNotFound:
            raise
        except ClientError as error:
            may_be_stored = error.stored != "no"
            if anyio.current_time() >= deadline if may_be_stored else at == len(names) - 1:
                raise
            log.info("sent_again", topic=topic, broker_name=name, reason=str(error))
        if may_be_stored:
            return await _send_again(producer, message, queue, max(deadline - anyio.current_time(), 0.1))
    raise AssertionError("the last attempt returns or raises")


async def _send_again(
    producer: Producer[bytes], message: Message[bytes], queue: MessageQueue, seconds: float
) -> SendResult:
    """Send to a queue that may have the message. Raises TopicNotFound; SendOutcomeUnknown if it is still unknown."""
    try:
        return await producer.send(message, queue=queue, timeout=seconds)
    except TopicNotFound:
        raise
    except ClientError as error:
        if error.stored != "no":
            raise
        raise SendOutcomeUnknown(f"an earlier attempt may have stored it; the last one: {error}", queue) from error
