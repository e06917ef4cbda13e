"""Sends messages with sequence numbers, and retries a send until its outcome is known.

Each attempt is sent to any replica over its own connection, some to two at once, and some messages are resent although
they are known to be stored. All responses must report the same place. Pipelines have numbered messages among plain
sends, which the broker receives in another way.
"""

from __future__ import annotations

import itertools
import random
from typing import Any, ClassVar

import trio

from checkers.recording import Worker
from jepsen.derived_messages import body_of, new_value
from jepsen.wire import ask_once, send_fields
from jepsen.workloads.pipelines import Pipeline, own_properties, send_pipelines
from jepsen.workloads.raw_answers import record_refused
from jepsen.workloads.workload import QUEUES, SIZES, Workload
from mq.protocol import properties
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response

PRODUCERS = 6
PATIENCES = (0.05, 0.5, 3.0)
"""Seconds that an attempt waits for its response; one is drawn. The shortest abandons requests in flight."""
AT_ONCE_CHANCE = 0.2
"""Chance of making an attempt twice at the same time."""
AGAIN_CHANCE = 0.2
"""The chance of resending a message that is known to be stored."""
REMEMBERED = 200
"""The number of its latest messages of which a producer resends one; brokers remember the last 1,024."""
REST_SECONDS = 0.02


class NumberedWorkload(Workload):
    name = "numbered"
    summary = "sends with sequence numbers at any replica, each repeated until its outcome is known"
    patiences: ClassVar[tuple[float, ...]] = PATIENCES

    async def produce(self) -> None:
        """Run all producers, each with its own id and sequence, and clients that write pipelines."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_in_pipelines)
            for number in range(PRODUCERS):
                nursery.start_soon(self._send_all, f"jepsen-{number}", random.Random(self.rng.random()))

    async def _send_all(self, producer: str, rng: random.Random) -> None:
        worker = Worker(self.recorder)
        latest: list[tuple[int, str, int]] = []
        for number in itertools.count():
            if self.stopping.is_set():
                return
            value = new_value(worker.process, number, rng.choice(SIZES))
            queue_id = rng.randrange(QUEUES)
            await self._send_until_known(worker, producer, number, value, queue_id, rng)
            latest = [*latest[-REMEMBERED:], (number, value, queue_id)]
            if rng.random() < AGAIN_CHANCE:
                await self._attempt(producer, *rng.choice(latest), rng)
            await trio.sleep(REST_SECONDS * rng.random())

    async def _send_in_pipelines(self) -> None:
        """Run one producer whose numbers are in pipelines; the last one is sent alone until its outcome is known."""
        producer = _PipelinedProducer(self, "jepsen-pipelines")
        await send_pipelines(self, producer.add)
        if (attempt := producer.under_way) is not None:
            await self._attempt_until_known(producer.worker, producer.name, *attempt, random.Random(self.rng.random()))

    async def _send_until_known(
        self, worker: Worker, producer: str, number: int, value: str, queue_id: int, rng: random.Random
    ) -> None:
        worker.invoke("send", k=f"{self.topic}/{queue_id}", v=value)
        await self._attempt_until_known(worker, producer, number, value, queue_id, rng)

    async def _attempt_until_known(
        self, worker: Worker, producer: str, number: int, value: str, queue_id: int, rng: random.Random
    ) -> None:
        """Attempt to send until one attempt is answered. A numbering producer must not skip a number."""
        while True:
            outcomes: list[tuple[str, int] | None] = []

            async def attempt(outcomes: list[tuple[str, int] | None]) -> None:
                outcomes.append(await self._attempt(producer, number, value, queue_id, rng))

            async with trio.open_nursery() as nursery:
                for _ in range(2 if rng.random() < AT_ONCE_CHANCE else 1):
                    nursery.start_soon(attempt, outcomes)
            if places := [place for place in outcomes if place is not None]:
                queue, offset = places[0]
                worker.ok("send", k=queue, v=value, o=offset)
                self.acknowledge(queue, offset, value)
                return
            await trio.sleep(REST_SECONDS)

    async def _attempt(
        self, producer: str, number: int, value: str, queue_id: int, rng: random.Random
    ) -> tuple[str, int] | None:
        """Send once; returns queue and offset, or None."""
        node = rng.choice(self.cluster.nodes)
        attempt = Worker(self.recorder)
        attempt.invoke("attempt", k=f"{self.topic}/{queue_id}", v=value, n=node)
        header_and_body = await ask_once(
            self.cluster.network.clients_reach(node),
            RequestCode.SEND_MESSAGE_V2,
            numbered_fields(self.topic, queue_id, producer, number, value),
            body_of(value),
            rng.choice(self.patiences),
        )
        if header_and_body is None:
            attempt.info("attempt", "no answer", v=value, n=node)
            return None
        return record_attempt(self, attempt, header_and_body[0], value, node)


class _PipelinedProducer:
    """A producer that sends a number in each pipeline, and repeats it in the next one if no response came.

    Attributes:
        name: its producer id.
        worker: of the sends.
        under_way: number, value and queue id of the message whose outcome is not known.
    """

    def __init__(self, workload: NumberedWorkload, name: str) -> None:
        self.name = name
        self.worker = Worker(workload.recorder)
        self.under_way: tuple[int, str, int] | None = None
        self._workload = workload
        self._numbers = itertools.count()

    def add(self, pipeline: Pipeline, rng: random.Random) -> None:
        """Add an attempt to a pipeline, sometimes a second one."""
        workload = self._workload
        if self.under_way is None:
            value = new_value(self.worker.process, number := next(self._numbers), rng.choice(SIZES))
            self.under_way = number, value, rng.randrange(QUEUES)
            self.worker.invoke("send", k=f"{workload.topic}/{self.under_way[2]}", v=value)
        for _ in range(2 if rng.random() < AT_ONCE_CHANCE else 1):
            self._add_attempt(pipeline, *self.under_way)

    def _add_attempt(self, pipeline: Pipeline, number: int, value: str, queue_id: int) -> None:
        workload, attempt = self._workload, Worker(self._workload.recorder)
        attempt.invoke("attempt", k=f"{workload.topic}/{queue_id}", v=value, n=pipeline.node)

        def on_response(response: Response, body: bytes) -> None:
            place = record_attempt(workload, attempt, response, value, pipeline.node)
            if place is not None and self.under_way is not None and self.under_way[0] == number:
                self.worker.ok("send", k=place[0], v=value, o=place[1])
                workload.acknowledge(*place, value)
                self.under_way = None

        fields = numbered_fields(workload.topic, queue_id, self.name, number, value)
        pipeline.add(RequestCode.SEND_MESSAGE_V2, fields, on_response, body_of(value))


def numbered_fields(topic: str, queue_id: int, producer: str, number: int, value: str) -> dict[str, Any]:
    """Return the fields of a send with a sequence number."""
    own = own_properties(value) | {properties.PRODUCER_ID: producer, properties.SEQUENCE: str(number)}
    return send_fields(topic, queue_id, properties.encode(own))


def record_attempt(
    workload: NumberedWorkload, attempt: Worker, response: Response, value: str, node: str
) -> tuple[str, int] | None:
    """Record the end of an `attempt`. Returns the queue and the offset; None if the broker refused the send."""
    if response.code == ResponseCode.SUCCESS:
        queue, offset = f"{workload.topic}/{response.ext['queueId']}", int(response.ext["queueOffset"])
        attempt.ok("attempt", k=queue, v=value, o=offset, n=node)
        return queue, offset
    record_refused(attempt, "attempt", response, value, n=node)
    return None
