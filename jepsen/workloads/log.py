"""Uses a queue as a log: raw requests to any replica append to it, read it, and query its end.

No retries and no hidden client state: responses of brokers are recorded as they are. Followers forward appends to the
leader, and answer reads and queries themselves. Most messages have unique keys, as clients' do: a leader
receives them with the compiled send path. Some clients write pipelines of mixed requests, see
`jepsen.workloads.pipelines`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import trio

from checkers.recording import Worker
from jepsen.derived_messages import body_of, new_value
from jepsen.wire import Wire, open_wire, pull_fields, send_fields
from jepsen.workloads.pipelines import own_properties, send_pipelines
from jepsen.workloads.raw_answers import record_end, record_pulled, record_sent
from jepsen.workloads.watching import CONNECT_SECONDS, watch
from jepsen.workloads.workload import QUEUES, SIZES, Workload
from mq.protocol import properties
from mq.protocol.codes import RequestCode

ANSWER_SECONDS = (5.0, 5.0, 5.0, 20.0)
"""Seconds to wait for a response, by worker. The last one outlasts a cut-off leader, whose answer it still gets."""
REST_SECONDS = 0.005
READ_BACK_MAX = 100
"""The number of messages behind the newest acknowledged one at which a read may begin."""
KEYED_CHANCE = 0.9
"""Chance that a message has a unique key; brokers make one for the others."""


class LogWorkload(Workload):
    workers: ClassVar[int] = 8
    has_pipelines: ClassVar[bool] = True
    name = "log"
    summary = "raw appends, reads and questions for the end of queues, at any replica"

    async def produce(self) -> None:
        """Run the workers, which do one operation at a time; clients that write pipelines; and for each replica one
        client that queries ends and one that reads.

        The last two never wait for an append, so they see the messages that a replica serves while appends are slow.
        """
        async with trio.open_nursery() as nursery:
            for node in self.cluster.nodes:
                nursery.start_soon(watch, self.cluster, node, self._ask_end_apart, self.stopping)
                nursery.start_soon(watch, self.cluster, node, self._read_newest_apart, self.stopping)
            if self.has_pipelines:
                nursery.start_soon(send_pipelines, self)
            for number in range(self.workers):
                nursery.start_soon(self._work, number, random.Random(self.rng.random()))

    async def _work(self, number: int, rng: random.Random) -> None:
        worker = Worker(self.recorder)
        while not self.stopping.is_set():
            node = rng.choice(self.cluster.nodes)
            try:
                with trio.move_on_after(CONNECT_SECONDS) as timeout:
                    async with open_wire(*self.cluster.network.clients_reach(node)) as wire:
                        timeout.deadline = math.inf
                        await self._session(worker, wire, node, number, rng)
            except* (OSError, trio.BrokenResourceError, trio.TooSlowError):
                pass  # operations in flight are recorded as unknown
            await trio.sleep(0.05)

    async def _ask_end_apart(self, wire: Wire, node: str, queue_id: int) -> None:
        await self._ask_end(Worker(self.recorder), wire, node, queue_id)

    async def _read_newest_apart(self, wire: Wire, node: str, queue_id: int) -> None:
        """Read the newest acknowledged message and everything that the replica serves behind it."""
        await self._read(Worker(self.recorder), wire, node, queue_id, 0)

    async def _session(self, worker: Worker, wire: Wire, node: str, number: int, rng: random.Random) -> None:
        """Run some operations over one connection. Raises the error that ends it."""
        for _ in range(rng.randrange(10, 200)):
            if self.stopping.is_set():
                return
            with trio.fail_after(ANSWER_SECONDS[number % len(ANSWER_SECONDS)]):
                await self.operate(worker, wire, node, number, rng)
            await trio.sleep(REST_SECONDS * rng.random())

    async def operate(self, worker: Worker, wire: Wire, node: str, number: int, rng: random.Random) -> None:
        """Do one operation of worker ``number``. Raises trio.BrokenResourceError; then its outcome is unknown."""
        queue_id = rng.randrange(QUEUES)
        chance = rng.random()
        if chance < 0.7:
            await self._send(worker, wire, node, queue_id, rng)
        elif chance < 0.85:
            await self._read(worker, wire, node, queue_id, rng.randrange(READ_BACK_MAX))
        else:
            await self._ask_end(worker, wire, node, queue_id)

    async def _send(self, worker: Worker, wire: Wire, node: str, queue_id: int, rng: random.Random) -> None:
        value = new_value(worker.process, worker.next_number(), rng.choice(SIZES))
        own = own_properties(value, keyed=rng.random() < KEYED_CHANCE)
        fields = send_fields(self.topic, queue_id, properties.encode(own))
        queue = f"{self.topic}/{queue_id}"
        with unknown_unless_answered(worker, "send", k=queue, v=value, n=node):
            response, _ = await wire.ask(RequestCode.SEND_MESSAGE_V2, fields, body_of(value))
        record_sent(self, worker, response, value, queue, node)

    async def _read(self, worker: Worker, wire: Wire, node: str, queue_id: int, back: int) -> None:
        queue = f"{self.topic}/{queue_id}"
        offset = max(0, self.newest[queue] - back)
        with unknown_unless_answered(worker, "read", k=queue, n=node, o=offset):
            response, body = await wire.ask(RequestCode.PULL_MESSAGE, pull_fields(self.topic, queue_id, offset))
        record_pulled(worker, response, body, queue, node, offset)

    async def _ask_end(self, worker: Worker, wire: Wire, node: str, queue_id: int) -> None:
        queue = f"{self.topic}/{queue_id}"
        with unknown_unless_answered(worker, "end", k=queue, n=node):
            response, _ = await wire.ask(RequestCode.GET_MAX_OFFSET, {"topic": self.topic, "queueId": queue_id})
        record_end(worker, response, queue, node)


@contextmanager
def unknown_unless_answered(worker: Worker, name: str, **fields: object) -> Iterator[None]:
    """Record an operation. If an exception ends the block, its outcome is unknown."""
    worker.invoke(name, **fields)
    try:
        yield
    except BaseException as error:
        worker.info(name, type(error).__name__, k=fields["k"])
        raise
