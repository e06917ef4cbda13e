"""Consumes in order: the members of a group lock their queues."""

from __future__ import annotations

import random

import trio

from checkers.recording import Worker
from jepsen.derived_messages import value_of
from jepsen.workloads.queue import QueueWorkload
from mq.client import PushConsumer

HANDLE_SECONDS_MAX = 0.003


class OrderWorkload(QueueWorkload):
    """Consumes in order. Each time a member joins, it records its messages under a new process id."""

    name = "order"
    summary = "as queue, and members lock their queues: one after the other, in order, by one member at a time"
    exclusive = True
    # A member that could not unregister keeps its queues for a minute, and for another if the leader dies.
    drain_seconds_max = 140.0

    async def _receive(self, worker: Worker, consumer: PushConsumer) -> None:
        handler = Worker(self.recorder)
        rng = random.Random(self.rng.random())
        async for message in consumer:
            queue, offset = f"{self.topic}/{message.queue.queue_id}", message.queue_offset
            value = value_of(message.body, message.properties, message.tags)
            worker.ok("receive", k=queue, o=offset, v=value)
            handler.invoke("handle", k=queue, o=offset)
            await trio.sleep(rng.uniform(0, HANDLE_SECONDS_MAX))
            handler.ok("handle", k=queue, o=offset)
            self.consumed.add((queue, offset))
