"""Consumers that pop lite topics at any replica by raw requests, as `mq.client.LiteConsumer` does.

Each sends its subscriptions on each connection and when a leader does not know them. All subscribe to all lite topics,
so each of these is popped by one at a time. A message is sent to any lite topic, and is in a queue of the parent topic
as well.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import ClassVar

import trio

from checkers.recording import Worker
from jepsen.deployments.cluster import GROUP, Cluster
from jepsen.recorder import Recorder
from jepsen.wire import Wire
from jepsen.workloads.pop import ANSWER_SECONDS, BATCHES, CONSUMER_GROUP, HELD_MS, OrderedPopWorkload
from mq.client import Admin, ClientError, SubscriptionGroupConfig
from mq.client.consume.popped_messages import PoppedMessage, read_popped_lite
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE
from mq.protocol.requests.lite import Action, LiteSubscription, LiteSubscriptionSet
from mq.protocol.requests.lite_attributes import BIND_TOPIC, LITE

LITE_TOPICS = tuple(f"session-{number}" for number in range(12))
_WITHOUT_ATTEMPT_CHANCE = 0.5


class LiteWorkload(OrderedPopWorkload):
    name = "lite"
    summary = "lite topics: raw pops at any replica by clients that say what they subscribe to, in order"
    topic_attributes: ClassVar[Mapping[str, str]] = {MESSAGE_TYPE_ATTRIBUTE: LITE}

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self._names: dict[Worker, int] = {}
        self._subscribed_wires: dict[Worker, Wire] = {}
        """The connection on which each client has sent its subscriptions."""

    @property
    def topic(self) -> str:
        """The parent topic of the lite topics."""
        return "Lite"

    def lite_topic(self, rng: random.Random) -> str | None:
        return rng.choice(LITE_TOPICS)

    async def consume(self) -> None:
        """Run the consumers until cancelled."""
        await self._bind()
        await super().consume()

    async def _bind(self) -> None:
        config = SubscriptionGroupConfig(group_name=CONSUMER_GROUP, attributes={f"+{BIND_TOPIC}": self.topic})
        async with Admin(self.cluster.namesrv) as admin:
            while True:
                try:
                    await admin.put_consumer_group(config)
                    return
                except ClientError:
                    await trio.sleep(0.1)  # the leader was killed, or the group of replicas is just being formed

    async def _pop(self, worker: Worker, wire: Wire, node: str, rng: random.Random) -> None:
        if self._subscribed_wires.get(worker) is not wire:
            await self._subscribe(worker, wire)
            self._subscribed_wires[worker] = wire
        await super()._pop(worker, wire, node, rng)

    async def _subscribe(self, worker: Worker, wire: Wire) -> None:
        """Subscribe to all lite topics. Raises trio.TooSlowError, trio.BrokenResourceError."""
        subscription = LiteSubscription(
            action=Action.COMPLETE_ADD,
            client_id=self._client_id(worker),
            group=CONSUMER_GROUP,
            topic=self.topic,
            lite_topics=list(LITE_TOPICS),
        )
        body = LiteSubscriptionSet(subscriptions=[subscription]).encode()
        with trio.fail_after(ANSWER_SECONDS):
            await wire.ask(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body)

    def _client_id(self, worker: Worker) -> str:
        return f"jepsen{self._names.setdefault(worker, len(self._names))}"

    def _request(self, worker: Worker, invisible_ms: int, rng: random.Random) -> tuple[RequestCode, dict[str, object]]:
        fields: dict[str, object] = {
            "clientId": self._client_id(worker),
            "consumerGroup": CONSUMER_GROUP,
            "topic": self.topic,
            "maxMsgNum": rng.choice(BATCHES),
            "invisibleTime": invisible_ms,
            "pollTime": HELD_MS,
            "bornTime": 0,
            "raftmqSaysSubscriptions": "true",
        }
        if rng.random() >= _WITHOUT_ATTEMPT_CHANCE:
            fields["attemptId"] = f"jepsen{self._attempts}"
        return RequestCode.POP_LITE_MESSAGE, fields

    def _is_empty(self, worker: Worker, response: Response) -> bool:
        if response.code == ResponseCode.SUBSCRIPTION_NOT_EXIST:
            self._subscribed_wires.pop(worker, None)  # another replica leads; it says it again before the next pop
            return True
        return super()._is_empty(worker, response)

    def _read(self, response: Response, body: memoryview) -> list[PoppedMessage]:
        return read_popped_lite(self.topic, GROUP, response, body, math.inf, [])

    def _queue(self, message: PoppedMessage) -> str:
        return f"{self.topic}/{message.lite_topic}"

    def _receipt(self, message: PoppedMessage) -> dict[str, object]:
        return super()._receipt(message) | {"topic": self.topic, "liteTopic": message.lite_topic}
