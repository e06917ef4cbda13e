"""Sends messages with a delay level, a delay or a delivery time, and recalls some of them.

Pipelines have some of them among plain sends, which the broker receives in another way.
"""

from __future__ import annotations

import random
import time

import trio

from checkers.recording import Worker
from jepsen.derived_messages import body_of, new_value, properties_of, tag_of
from jepsen.wire import send_fields
from jepsen.workloads.pipelines import Pipeline, own_properties, send_pipelines
from jepsen.workloads.raw_answers import record_refused
from jepsen.workloads.readers import LaterWorkload
from jepsen.workloads.workload import QUEUES, SIZES
from mq.client import ClientError, Message, NotRecalled, Producer
from mq.protocol import properties
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response

WORKERS = 8
LEVELS_MS = {1: 1000, 2: 5000}
"""Delay levels in use, from the usual table."""
DELAYS_MS = (1, 90, 700, 1500, 4000)
RECALL_CHANCE = 0.4
RECALL_SECONDS_MAX = 2.0
"""The most seconds between a send and its recall; some recalls come too late."""
RACE_SECONDS = 0.05
"""Some recalls race with the delivery: they are sent at most this long before it."""
REST_SECONDS = 0.05
TIMEOUTS = (1.0, 3.0)


class DelaysWorkload(LaterWorkload):
    """Sends messages with delays. No fault sets the clock of the machine, which clients and brokers share."""

    name = "delays"
    summary = "messages with delay levels and exact times, some recalled, and readers that note when they come"

    async def produce(self) -> None:
        """Run all workers, and clients that write pipelines."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._produce_delayed)
            nursery.start_soon(send_pipelines, self, self._add_delayed)

    def _add_delayed(self, pipeline: Pipeline, rng: random.Random) -> None:
        """Add a message with a delay level to a pipeline."""
        worker, value = pipeline.new_message(rng)
        level = rng.choice(tuple(LEVELS_MS))
        worker.invoke("schedule", v=value, o=LEVELS_MS[level])

        def on_response(response: Response, body: bytes) -> None:
            if response.code == ResponseCode.SUCCESS:
                worker.ok("schedule", v=value)
                self.expected.add(value)
            else:
                record_refused(worker, "schedule", response, value)

        own = own_properties(value) | {properties.DELAY: str(level)}
        fields = send_fields(self.topic, rng.randrange(QUEUES), properties.encode(own))
        pipeline.add(RequestCode.SEND_MESSAGE_V2, fields, on_response, body_of(value))

    async def _produce_delayed(self) -> None:
        """Run all workers; a message with an unknown outcome is not sent again, so that each is stored once."""
        async with (
            Producer(self.cluster.namesrv, "jepsen_delays", retry_unknown=False) as producer,
            trio.open_nursery() as nursery,
        ):
            for _ in range(WORKERS):
                nursery.start_soon(self._work, producer, nursery, random.Random(self.rng.random()))

    async def _work(self, producer: Producer, nursery: trio.Nursery, rng: random.Random) -> None:
        worker = Worker(self.recorder)
        while not self.stopping.is_set():
            value = new_value(worker.process, worker.next_number(), rng.choice(SIZES))
            delay_ms = rng.choice(DELAYS_MS)
            handle = await self._send(worker, producer, value, delay_ms, rng)
            if handle is not None and rng.random() < RECALL_CHANCE:
                at_the_last_moment = max(0.0, delay_ms / 1000 - RACE_SECONDS * rng.random())
                seconds = rng.choice((RECALL_SECONDS_MAX * rng.random(), at_the_last_moment))
                nursery.start_soon(self._recall, producer, value, handle, seconds)
            await trio.sleep(REST_SECONDS * rng.random())

    async def _send(
        self, worker: Worker, producer: Producer, value: str, delay_ms: int, rng: random.Random
    ) -> str | None:
        """Send a delayed message; returns the recall handle, None if it cannot be recalled."""
        level = None
        if rng.random() < 0.3:
            level = rng.choice(tuple(LEVELS_MS))
            delay_ms = LEVELS_MS[level]
        at = None if level is not None or rng.random() < 0.5 else time.time_ns() // 1_000_000 + delay_ms
        message = Message(
            self.topic,
            body_of(value),
            tags=tag_of(value),
            properties=properties_of(value),
            delay_level=level,
            delay=delay_ms / 1000 if level is None and at is None else None,
            deliver_at=at,
        )
        worker.invoke("schedule", v=value, o=delay_ms)
        try:
            result = await producer.send(message, timeout=rng.choice(TIMEOUTS))
        except ClientError as error:
            if error.stored == "no":
                worker.fail("schedule", str(error), v=value)
            else:
                worker.info("schedule", str(error), v=value)
            return None
        worker.ok("schedule", v=value)
        self.expected.add(value)
        return result.recall_handle

    async def _recall(self, producer: Producer, value: str, handle: str, seconds: float) -> None:
        await trio.sleep(seconds)
        worker = Worker(self.recorder)
        worker.invoke("recall", v=value)
        try:
            await producer.recall(handle)
        except NotRecalled as error:
            worker.fail("recall", str(error), v=value)
        except ClientError as error:
            if error.stored == "no":
                worker.fail("recall", str(error), v=value)
            else:
                self.expected.discard(value)
                worker.info("recall", str(error), v=value)
        else:
            self.expected.discard(value)
            worker.ok("recall", v=value)
