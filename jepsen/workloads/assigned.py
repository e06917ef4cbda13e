"""Consumers with assigned queues, which seek back at times, and which brokers redirect to followers and back."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import ClassVar

import trio

from checkers.recording import Worker
from jepsen.deployments.cluster import Cluster
from jepsen.derived_messages import value_of
from jepsen.recorder import Recorder
from jepsen.workloads.sdk_producers import produce_with_sdk
from jepsen.workloads.workload import QUEUES, SETTINGS, Workload
from mq.client import ClientError, MessageQueue, PullConsumer

READERS = 2
POLL_SECONDS = 0.5
BACK_MAX = 300
"""The number of messages that a reader seeks back at most."""


class AssignedWorkload(Workload):
    name = "assigned"
    summary = "pull consumers of the SDK with seeks, served by the leader and by followers"
    # A reader that seeks back is redirected to a follower, and returns to the leader near the end.
    settings: ClassVar[dict[str, str]] = {**SETTINGS, "slow_consumer_bytes": "65536"}
    seek_chance: ClassVar[float] = 0.02
    """After each poll."""

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self.read_values: set[str] = set()

    async def produce(self) -> None:
        """Send with the SDK until stopped."""
        await produce_with_sdk(self)

    async def consume(self) -> None:
        """Run the readers until cancelled."""
        async with trio.open_nursery() as nursery:
            for number in range(READERS):
                nursery.start_soon(self._read, f"jepsen_reader_{number}")

    async def wait_drained(self) -> None:
        """Wait until one reader has received all acknowledged messages."""
        await self._wait_consumed()

    async def _read(self, group: str) -> None:
        rng = random.Random(self.rng.random())
        worker = Worker(self.recorder)
        while True:
            try:
                async with PullConsumer(self.cluster.namesrv, group, consume_from="first") as consumer:
                    queues = await consumer.queues(self.topic)
                    assert len(queues) == QUEUES, f"{self.topic} has queues {queues}"
                    await consumer.assign(queues)
                    for queue in queues:
                        await self._seek(worker, consumer, queue, 0)
                    await self._poll(worker, consumer, queues, rng)
            except ClientError:
                await trio.sleep(0.5)  # then it starts again, with seeks

    async def _seek(self, worker: Worker, consumer: PullConsumer, queue: MessageQueue, offset: int) -> None:
        name = f"{self.topic}/{queue.queue_id}"
        worker.invoke("seek", k=name, o=offset)
        try:
            await consumer.seek(queue, offset)
        except ClientError as error:
            worker.info("seek", str(error), k=name)
            raise
        worker.ok("seek", k=name, o=offset)

    async def _poll(
        self, worker: Worker, consumer: PullConsumer, queues: list[MessageQueue], rng: random.Random
    ) -> None:
        while True:
            messages = await consumer.poll(timeout=POLL_SECONDS)
            by_queue: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
            for message in messages:
                value = value_of(message.body, message.properties, message.tags)
                by_queue[f"{self.topic}/{message.queue.queue_id}"].append((message.queue_offset, value))
                self.read_values.add(value)
            for name, values in by_queue.items():
                worker.ok("poll", k=name, v=values)
                self.consumed.update((name, offset) for offset, _ in values)
            if not self.stopping.is_set() and rng.random() < self.seek_chance:
                queue = rng.choice(queues)
                back = rng.randrange(BACK_MAX)
                await self._seek(worker, consumer, queue, max(0, consumer.position(queue) - back))
