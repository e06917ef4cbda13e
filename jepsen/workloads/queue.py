"""Many producers send to a queue, and members join and leave its consumer group, all with the SDK."""

from __future__ import annotations

import math
import random
from typing import ClassVar

import trio

from checkers.recording import Worker
from jepsen.derived_messages import value_of
from jepsen.wire import Wire
from jepsen.workloads.client_process import serve_client_process
from jepsen.workloads.offsets import ask_stored_offset
from jepsen.workloads.sdk_producers import produce_with_sdk
from jepsen.workloads.watching import watch
from jepsen.workloads.workload import Workload
from mq.client import ClientError, PushConsumer

GROUP = "jepsen_members"
STAY_SECONDS = (5.0, 15.0)
MEMBERS_THAT_LEAVE = 2
JAVA_SECONDS_MAX = 75.0
"""RocketMQ's client refreshes its routes every 30 s; until then it may pull from a dead broker or a former leader."""


class QueueWorkload(Workload):
    name = "queue"
    summary = "SDK producers, and a consumer group whose members come and go"
    exclusive: ClassVar[bool] = False
    """Whether members lock their queues."""

    async def produce(self) -> None:
        """Send with the SDK until stopped."""
        await produce_with_sdk(self)

    async def consume(self) -> None:
        """Run members that stay, that rejoin, or that are separate processes; query offsets at all replicas."""
        never = trio.Event()
        async with trio.open_nursery() as nursery:
            for node in (*self.cluster.nodes, *self.cluster.spares):
                nursery.start_soon(watch, self.cluster, node, self._ask_offset, never)
            for name, command in self.programs.items():
                nursery.start_soon(serve_client_process, self, name, command)
            nursery.start_soon(self._be_member, None)
            for _ in range(MEMBERS_THAT_LEAVE):
                nursery.start_soon(self._be_member, STAY_SECONDS)

    async def wait_drained(self) -> None:
        """Wait until the group has all messages. If necessary, this includes a route refresh of the Java client."""
        await self._wait_consumed(max(self.drain_seconds_max, JAVA_SECONDS_MAX if self.programs else 0.0))

    async def _be_member(self, stay_seconds: tuple[float, float] | None) -> None:
        """Join, receive, leave after a while, and rejoin; with ``stay_seconds`` None, never leave."""
        rng = random.Random(self.rng.random())
        worker = Worker(self.recorder)
        while True:
            operation = "join"
            worker.invoke("join")
            try:
                async with PushConsumer(
                    self.cluster.namesrv,
                    GROUP,
                    consume_from="first",
                    exclusive=self.exclusive,
                    commit_seconds=0.2,
                    rebalance_seconds=2.0,
                ) as consumer:
                    self._subscribe(consumer)
                    worker.ok("join")
                    with trio.move_on_after(math.inf if stay_seconds is None else rng.uniform(*stay_seconds)):
                        await self._receive(worker, consumer)
                    operation = "leave"
                    worker.invoke("leave")
                worker.ok("leave")
            except ClientError as error:
                worker.info(operation, str(error))
            await trio.sleep(rng.uniform(0.1, 2.0))

    def _subscribe(self, consumer: PushConsumer) -> None:
        consumer.subscribe(self.topic)

    async def _ask_offset(self, wire: Wire, node: str, queue_id: int) -> None:
        await ask_stored_offset(Worker(self.recorder), wire, node, self.topic, GROUP, queue_id)

    async def _receive(self, worker: Worker, consumer: PushConsumer) -> None:
        """Record delivered messages until cancelled. The stream ends with the consumer, and raises nothing."""
        async for message in consumer:
            queue = f"{self.topic}/{message.queue.queue_id}"
            value = value_of(message.body, message.properties, message.tags)
            worker.ok("receive", k=queue, o=message.queue_offset, v=value)
            self.consumed.add((queue, message.queue_offset))
