"""Clients of consumer groups that record what the broker has promised them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mq.protocol.codes import RequestCode
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.protocol.numbers import QueueOffset
from mq.store.checkpoint import load_checkpoint
from mq.store.opening import LogBounds, open_store
from raftlog.log_numbers import LogIndex
from tests.support.queue_locks import lock_body
from tests.support.running_broker import Client, properties, send_ext

TOPICS = ("T", "U", "V" * 127)
GROUPS = ("G", "H" * 120)
Held = tuple[bytes, dict[tuple[str, int], tuple[QueueOffset, QueueOffset, bytes]]]
"""Metadata; and by topic and queue id the first offset, the end, and the entries in between."""


def held(directory: Path) -> Held:
    """The stored state of a stopped broker."""
    checkpoint = load_checkpoint(str(directory))
    assert checkpoint is not None
    opened = open_store(str(directory), log=LogBounds(base_index=LogIndex(min(1, checkpoint.applied_index))))
    assert opened.rebuild_reason is None
    queues = {
        (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset, queue.read(queue.min_offset, 2**40))
        for queue in opened.queues.queues()
    }
    opened.queues.close()
    return checkpoint.state, queues


class Clients:
    """Random actions of clients and operators."""

    def __init__(self, client: Client, rng: random.Random) -> None:
        self._client = client
        self._rng = rng
        self._places: list[int] = []
        self.deeds: list[Callable[[], Awaitable[Any]]] = [
            self.send, self.send, self.send_batch, self.send_batch, self.delay, self.delay_to_a_time, self.give_back,
            self.commit, self.commit, self.lock, self.unlock, self.change_topic, self.delete_topic, self.change_group,
            self.delete_group, self.reset, self.clone, self.forbid,
        ]  # fmt: skip

    @property
    def topic(self) -> str:
        return self._rng.choice(TOPICS)

    @property
    def group(self) -> str:
        return self._rng.choice(GROUPS)

    async def send(self) -> None:
        for _ in range(self._rng.randrange(1, 5)):
            text = self._rng.choice(["", "TAGS\x01a\x02", "KEYS\x01k\x02TAGS\x01ü", "XTAGS\x01b\x02"])
            answer = await self._client.send(self.topic, self._rng.randbytes(self._rng.choice([1, 3000])), i=text)
            if answer.code == 0:
                self._places.append(int(answer.ext["msgId"][16:], 16))

    async def send_batch(self) -> None:
        each = [BatchedMessage(b"x", self._rng.choice(["", "TAGS\x01b\x02", "TAGS\x01b"])) for _ in range(9)]
        ext = send_ext(self.topic, m=True, i=self._rng.choice(["", "TAGS\x01all\x02", "WAIT\x01true\x02"]))
        await self._client.request(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(each))

    async def delay(self) -> None:
        for _ in range(3):
            level = self._rng.choice("119")
            await self._client.send(self.topic, b"later", i=properties(DELAY=level, TAGS="later"))

    async def delay_to_a_time(self) -> None:
        for span in ("5", "50", "90000000"):
            answer = await self._client.send(self.topic, b"at", i=properties(TIMER_DELAY_MS=span, TAGS="later"))
        if "recallHandle" in answer.ext and self._rng.randrange(2):
            ext = {"topic": self.topic, "recallHandle": answer.ext["recallHandle"], "producerGroup": "P"}
            await self._client.request(RequestCode.RECALL_MESSAGE, ext)

    async def give_back(self) -> None:
        if self._places:
            ext = {"offset": self._rng.choice(self._places), "group": self.group, "delayLevel": -1}
            await self._client.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
            await self._client.request(
                RequestCode.CONSUMER_SEND_MSG_BACK, ext | {"delayLevel": self._rng.choice([1, 9])}
            )

    async def commit(self) -> None:
        offset = self._rng.randrange(50)
        ext = {"consumerGroup": self.group, "topic": self.topic, "queueId": self._rng.randrange(3)}
        await self._client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext | {"commitOffset": offset})

    async def lock(self) -> None:
        body = lock_body(self._rng.choice("ab"), 0, 1, 2, group=self.group, topic=self.topic)
        await self._client.request(RequestCode.LOCK_BATCH_MQ, body=body)

    async def unlock(self) -> None:
        body = lock_body(self._rng.choice("ab"), 1, 2, group=self.group, topic=self.topic)
        await self._client.request(RequestCode.UNLOCK_BATCH_MQ, body=body)

    async def change_topic(self) -> None:
        await self._client.create_topic(self.topic, self._rng.randrange(1, 5), perm=self._rng.choice([6, 7]))

    async def delete_topic(self) -> None:
        if not self._rng.randrange(3):
            await self._client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": self.topic})

    async def change_group(self) -> None:
        body = b'{"groupName":"%s","retryQueueNums":%d}' % (self.group.encode(), self._rng.randrange(1, 4))
        await self._client.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def delete_group(self) -> None:
        if not self._rng.randrange(3):
            ext = {"groupName": self.group, "removeOffset": self._rng.random() < 0.5}
            await self._client.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)

    async def reset(self) -> None:
        ext = {"topic": self.topic, "group": self.group, "timestamp": self._rng.choice([0, -1]), "isForce": True}
        await self._client.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)

    async def clone(self) -> None:
        ext = {"srcGroup": GROUPS[0], "destGroup": GROUPS[1], "offline": True}
        await self._client.request(RequestCode.CLONE_GROUP_OFFSET, ext)

    async def forbid(self) -> None:
        ext = {"topic": self.topic, "group": self.group, "readable": self._rng.random() < 0.5}
        await self._client.request(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ext)
