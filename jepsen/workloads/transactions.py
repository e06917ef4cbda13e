"""Sends transactions: a half message, then its end. If the end is left out, the broker checks back.

The outcome of a transaction is drawn before it begins, so that every check gets the same answer. Some are left open on
purpose, and some checks are answered "unknown". Pipelines have half messages among plain sends; they are left open, so
the broker asks the SDK's producer.
"""

from __future__ import annotations

import random
from typing import ClassVar

import trio

from checkers.recording import Worker
from jepsen.deployments.cluster import Cluster
from jepsen.derived_messages import body_of, new_value, properties_of, tag_of, value_of
from jepsen.recorder import Recorder
from jepsen.wire import send_fields
from jepsen.workloads.pipelines import Pipeline, own_properties, send_pipelines
from jepsen.workloads.raw_answers import record_refused
from jepsen.workloads.readers import LaterWorkload
from jepsen.workloads.workload import QUEUES, SIZES
from mq.client import ClientError, Message, ReceivedMessage, TransactionProducer
from mq.protocol import properties
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response

WORKERS = 8
GROUP = "jepsen_transactions"
TRANSACTION_PREPARED = 4
"""The system flag of a half message."""
COMMIT, ROLLBACK = "commit", "rollback"
COMMIT_CHANCE = 0.7
OPEN_CHANCE = 0.25
"""Chance that a producer leaves a transaction open."""
NOT_YET_CHANCE = 0.2
"""Chance that a check is answered "unknown"."""
HOLD_SECONDS_MAX = 0.2
REST_SECONDS = 0.03
TIMEOUTS = (1.0, 3.0)


class TransactionsWorkload(LaterWorkload):
    name = "transactions"
    summary = "half messages of the SDK, committed, rolled back, or left to the broker's questions"
    settings: ClassVar[dict[str, str]] = {
        **LaterWorkload.settings,
        "transaction_timeout_seconds": "1",
        "transaction_check_seconds": "1",
        "transaction_checks_max": "100",
    }

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self._outcomes: dict[str, str] = {}
        self._checks = Worker(recorder)
        self._check_rng = random.Random(rng.random())
        self._drained_event = trio.Event()

    async def consume(self) -> None:
        """Run the readers and the producer, which answers check-backs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().consume)
            nursery.start_soon(self._be_producer)

    async def produce(self) -> None:
        """Send transactions. Returns when each one is ended or left open; brokers still check back."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_pipelines, self, self._add_half)
            await self._drained_event.wait()

    def _add_half(self, pipeline: Pipeline, rng: random.Random) -> None:
        """Add a half message, which its producer does not end, to a pipeline."""
        worker, value = pipeline.new_message(rng)
        self._outcomes[value] = COMMIT if rng.random() < COMMIT_CHANCE else ROLLBACK
        worker.invoke("half", v=value)

        def on_response(response: Response, body: bytes) -> None:
            if response.code != ResponseCode.SUCCESS:
                record_refused(worker, "half", response, value)
                return
            worker.ok("half", v=value)
            if self._outcomes[value] == COMMIT:
                self.expected.add(value)

        own = own_properties(value) | {properties.TRANSACTION_PREPARED: "true", properties.PRODUCER_GROUP: GROUP}
        fields = send_fields(self.topic, rng.randrange(QUEUES), properties.encode(own), sys_flag=TRANSACTION_PREPARED)
        pipeline.add(RequestCode.SEND_MESSAGE_V2, fields, on_response, body_of(value))

    async def _be_producer(self) -> None:
        async with TransactionProducer(self.cluster.namesrv, GROUP, check=self._check) as producer:
            async with trio.open_nursery() as nursery:
                for _ in range(WORKERS):
                    nursery.start_soon(self._work, producer, random.Random(self.rng.random()))
            self._drained_event.set()
            await trio.sleep_forever()

    def _check(self, message: ReceivedMessage) -> bool | None:
        """Answer a check of a transaction."""
        value = value_of(message.body, message.properties, message.tags)
        outcome = self._outcomes.get(value)
        state = None if self._check_rng.random() < NOT_YET_CHANCE else outcome
        self._checks.ok("check", v=[value, state or "unknown"])
        return None if state is None else state == COMMIT

    async def _work(self, producer: TransactionProducer, rng: random.Random) -> None:
        worker = Worker(self.recorder)
        while not self.stopping.is_set():
            value = new_value(worker.process, worker.next_number(), rng.choice(SIZES))
            self._outcomes[value] = COMMIT if rng.random() < COMMIT_CHANCE else ROLLBACK
            await self._transact(worker, producer, value, rng)
            await trio.sleep(REST_SECONDS * rng.random())

    async def _transact(self, worker: Worker, producer: TransactionProducer, value: str, rng: random.Random) -> None:
        outcome = self._outcomes[value]
        message = Message(self.topic, body_of(value), tags=tag_of(value), properties=properties_of(value))
        operation = "half"
        worker.invoke("half", v=value)
        try:
            async with producer.transaction(message, timeout=rng.choice(TIMEOUTS)) as transaction:
                worker.ok("half", v=value)
                if outcome == COMMIT:
                    self.expected.add(value)
                if rng.random() < OPEN_CHANCE:
                    transaction.leave_open()
                    return
                if outcome == ROLLBACK:
                    transaction.rollback()
                await trio.sleep(HOLD_SECONDS_MAX * rng.random())
                operation = "end"
                worker.invoke("end-transaction", v=[value, outcome])
            if transaction.confirmed:
                worker.ok("end-transaction", v=[value, outcome])
            else:
                worker.info("end-transaction", "no broker confirmed it", v=[value, outcome])
        except ClientError as error:
            if operation == "half" and error.stored == "no":
                worker.fail("half", str(error), v=value)
            else:
                worker.info("half" if operation == "half" else "end-transaction", str(error), v=value)
