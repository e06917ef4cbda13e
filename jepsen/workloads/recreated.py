"""Deletes a topic and creates it again under the same name, while groups consume it.

Each time, the sends of the old topic have their outcomes, and the groups get time to receive everything. So no message
that was acknowledged may be missing afterwards, neither of the old topics nor of the new one.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from checkers.recording import Worker
from jepsen.deployments.cluster import Cluster
from jepsen.derived_messages import body_of, new_value, properties_of, tag_of, value_of
from jepsen.recorder import Recorder
from jepsen.workloads.workload import QUEUES, SIZES, Workload
from mq.client import Admin, ClientError, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage

PUSH_GROUP, PULL_GROUP = "jepsen_push_members", "jepsen_pull_reader"
GROUPS = (PUSH_GROUP, PULL_GROUP)
MEMBERS = 2
SENDERS = 4
LIFE_SECONDS = (1.0, 3.0)
"""Seconds for which messages are sent to each topic."""
RECEIVE_SECONDS_MAX = 30.0
"""Seconds for which a topic is not deleted while a group lacks messages; a failover is shorter."""
REST_SECONDS = 0.02
RETRY_SECONDS = 0.2


class RecreatedWorkload(Workload):
    name = "recreated"
    summary = "a topic that is deleted and made again under its name, with groups that stay"

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self._received: dict[str, set[str]] = {group: set() for group in GROUPS}

    async def produce(self) -> None:
        """Send to one topic after the other. Returns when all sends to the last one have outcomes."""
        maker = Worker(self.recorder)
        async with Producer(self.cluster.namesrv, "jepsen_recreated", retry_unknown=False) as producer:
            generation = 0
            while True:
                async with trio.open_nursery() as nursery:
                    ends = trio.current_time() + self.rng.uniform(*LIFE_SECONDS)
                    for _ in range(SENDERS):
                        nursery.start_soon(self._send, producer, random.Random(self.rng.random()), ends)
                if self.stopping.is_set():
                    return
                with trio.move_on_after(RECEIVE_SECONDS_MAX):
                    await self._all_received()
                generation += 1
                await self._make_again(maker, str(generation))

    async def consume(self) -> None:
        """Run the members of a consumer group, and a reader with assigned queues. None of them leaves."""
        async with trio.open_nursery() as nursery:
            for _ in range(MEMBERS):
                nursery.start_soon(self._be_member)
            nursery.start_soon(self._be_reader)

    async def wait_drained(self) -> None:
        """Wait until both groups have all messages, or get nothing new."""
        await self._wait_none_left(self._missing_count)

    def _missing_count(self) -> int:
        return sum(len(self.acknowledged_values - values) for values in self._received.values())

    async def _all_received(self) -> None:
        while self._missing_count():  # noqa: ASYNC110 (consumers are many)
            await trio.sleep(RETRY_SECONDS)

    async def _send(self, producer: Producer, rng: random.Random, ends: float) -> None:
        worker = Worker(self.recorder)
        while trio.current_time() < ends and not self.stopping.is_set():
            value = new_value(worker.process, worker.next_number(), rng.choice(SIZES))
            message = Message(self.topic, body_of(value), tags=tag_of(value), properties=properties_of(value))
            worker.invoke("send", v=value)
            try:
                result = await producer.send(message, timeout=5.0)
            except ClientError as error:
                (worker.fail if error.stored == "no" else worker.info)("send", str(error), v=value)
            else:
                queue = f"{self.topic}/{result.queue.queue_id}"
                worker.ok("send", k=queue, v=value, o=result.queue_offset)
                self.acknowledge(queue, result.queue_offset, value)
            await trio.sleep(REST_SECONDS * rng.random())

    async def _make_again(self, worker: Worker, generation: str) -> None:
        """Delete the topic and create it, repeating each request until it is done."""
        worker.invoke("recreate", v=generation)
        await self._until_done(lambda admin: admin.delete_topic(self.topic))
        await self._until_done(lambda admin: admin.create_topic(self.topic, read_queues=QUEUES, write_queues=QUEUES))
        worker.ok("recreate", v=generation)

    async def _until_done(self, operation: Callable[[Admin], Awaitable[object]]) -> None:
        while True:
            try:
                async with Admin(self.cluster.namesrv) as admin:
                    await operation(admin)
                return
            except ClientError:
                await trio.sleep(RETRY_SECONDS)

    async def _be_member(self) -> None:
        worker = Worker(self.recorder)
        while True:
            worker.invoke("join")
            try:
                async with PushConsumer(
                    self.cluster.namesrv, PUSH_GROUP, consume_from="first", ordered=False, rebalance_seconds=2.0
                ) as consumer:
                    worker.ok("join", v=PUSH_GROUP)

                    @consumer.on(self.topic)
                    async def handle(message: ReceivedMessage) -> None:
                        self._record_received(worker, PUSH_GROUP, message)

                    await consumer.run()
            except ClientError:
                await trio.sleep(RETRY_SECONDS)

    async def _be_reader(self) -> None:
        worker = Worker(self.recorder)
        while True:
            worker.invoke("join")
            worker.ok("join", v=PULL_GROUP)
            try:
                async with PullConsumer(self.cluster.namesrv, PULL_GROUP, consume_from="first") as consumer:
                    await consumer.assign(await consumer.queues(self.topic))
                    while True:
                        for message in await consumer.poll(timeout=0.5):
                            self._record_received(worker, PULL_GROUP, message)
            except ClientError:
                await trio.sleep(RETRY_SECONDS)

    def _record_received(self, worker: Worker, group: str, message: ReceivedMessage) -> None:
        value = value_of(message.body, message.properties, message.tags)
        queue = f"{self.topic}/{message.queue.queue_id}"
        worker.ok("receive", k=queue, o=message.queue_offset, v=value)
        self._received[group].add(value)
        self.consumed.add((queue, message.queue_offset))
