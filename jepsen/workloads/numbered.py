"""Sends with sequence numbers: a send with an unknown outcome is retried until its outcome is known.

Each attempt goes to any replica over its own connection, some to two at once, and some messages are resent although
they are known to be stored. All responses must report the same place.
"""

from __future__ import annotations

import itertools
import random
from typing import ClassVar

import trio

from jepsen.recorder import Worker
from jepsen.values import body_of, new_value, properties_of, tag_of
from jepsen.wire import ask_once, send_fields
from jepsen.workloads.workload import QUEUES, SIZES, Workload
from mq.client.send_outcome import judge_answer
from mq.protocol import properties
from mq.protocol.codes import RequestCode, ResponseCode

PRODUCERS = 6
PATIENCES = (0.05, 0.5, 3.0)
"""Seconds that an attempt waits for its response; one is drawn. The shortest abandons requests in flight."""
AT_ONCE_CHANCE = 0.2
"""Chance of making an attempt twice at the same time."""
AGAIN_CHANCE = 0.2
"""Chance of resending what is known to be stored."""
REMEMBERED = 200
"""A producer resends one of its latest so many messages; brokers remember the last 1,024."""
REST_SECONDS = 0.02


class NumberedWorkload(Workload):
    """See the module."""

    name = "numbered"
    summary = "sends with sequence numbers at any replica, each repeated until its outcome is known"
    patiences: ClassVar[tuple[float, ...]] = PATIENCES

    async def produce(self) -> None:
        """Run all producers, each with its own id and numbers."""
        async with trio.open_nursery() as nursery:
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

    async def _send_until_known(
        self, worker: Worker, producer: str, number: int, value: str, queue_id: int, rng: random.Random
    ) -> None:
        """Attempts until one is answered. A numbering producer must not skip a number."""
        worker.invoke("send", k=f"{self.topic}/{queue_id}", v=value)
        while True:
            answers: list[tuple[str, int] | None] = []

            async def attempt(answers: list[tuple[str, int] | None]) -> None:
                answers.append(await self._attempt(producer, number, value, queue_id, rng))

            async with trio.open_nursery() as nursery:
                for _ in range(2 if rng.random() < AT_ONCE_CHANCE else 1):
                    nursery.start_soon(attempt, answers)
            if places := [place for place in answers if place is not None]:
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
        own = {
            properties.TAGS: tag_of(value),
            properties.KEYS: value,
            properties.PRODUCER_ID: producer,
            properties.SEQUENCE: str(number),
            **properties_of(value),
        }
        attempt = Worker(self.recorder)
        attempt.invoke("attempt", k=f"{self.topic}/{queue_id}", v=value, n=node)
        told = await ask_once(
            self.cluster.network.clients_reach(node),
            RequestCode.SEND_MESSAGE_V2,
            send_fields(self.topic, queue_id, properties.encode(own)),
            body_of(value),
            rng.choice(self.patiences),
        )
        if told is None:
            attempt.info("attempt", "no answer", v=value, n=node)
            return None
        answer, _ = told
        if answer.code == ResponseCode.SUCCESS:
            queue, offset = f"{self.topic}/{answer.ext['queueId']}", int(answer.ext["queueOffset"])
            attempt.ok("attempt", k=queue, v=value, o=offset, n=node)
            return queue, offset
        error = f"code {answer.code}: {answer.remark}"
        if judge_answer(answer.code, answer.remark).stored == "no":
            attempt.fail("attempt", error, v=value, n=node)
        else:
            attempt.info("attempt", error, v=value, n=node)
        return None
