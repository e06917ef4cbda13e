"""The clients of the memory benchmark, in a separate process: a producer with a fixed rate, and consumer groups.

``python -m benchmarks.memory.clients`` reads one JSON object from standard input (`MemoryJob`) and writes one to
standard output (`MemoryReport`).

Messages are sent to the topics in turn, in bursts of `TICK_SECONDS`, but to the last topic only one in twenty; each has
a key and a tag, and one in a hundred a delay. Two groups of push consumers read: one all topics, one the first topic
with a filter. A group of pop consumers reads the last topic. A handler fails one message in a thousand, so that
messages are redelivered too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import trio

from benchmarks.load.do_job import do_job
from mq.cli.errors import run_trio
from mq.client.consume.pop_consumer import PopConsumer
from mq.client.consume.popped_messages import PoppedMessage
from mq.client.consume.push_consumer import PushConsumer
from mq.client.errors import ClientError
from mq.client.message import Message, ReceivedMessage, SendResult
from mq.client.produce.producer import Producer

TICK_SECONDS = 0.05
"""Bursts cost the brokers much less CPU time than single messages, and memory does not depend on that."""
POPPED_EVERY = 20
POPPED_AHEAD = 256
DELAYED_EVERY = 100
FAILED_EVERY = 1000
IN_FLIGHT_MAX = 20_000
"""The most requests in flight: enough to send due messages in time while a broker stands still."""
_LEAVE_SECONDS_MAX = 20.0
_ERRORS_MAX = 5


@dataclass(frozen=True, slots=True)
class MemoryJob:
    """A load of ``rate`` messages a second of ``body_bytes`` each, to two or more ``topics``, for ``seconds``."""

    namesrv: str
    topics: list[str]
    rate: int
    seconds: float
    body_bytes: int


@dataclass(slots=True)
class MemoryReport:
    """The numbers of messages that were acknowledged, handled or popped (with redeliveries), or sent without an
    acknowledgement.
    """

    acknowledged: int = 0
    handled: int = 0
    popped: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list)
    """Errors of sends and of acknowledgements of popped messages, which are redelivered then; each once."""


class _HandlerFailed(Exception):
    """The error that the handler raises for some messages."""


class _IdleClients:
    def __init__(self, job: MemoryJob) -> None:
        self._job = job
        self.report = MemoryReport()

    async def run(self) -> MemoryReport:
        """Send and consume. Raises ClientError."""
        job = self._job
        full_consumer = PushConsumer(job.namesrv, "memory_all", consume_from="first", ordered=False)
        for topic in job.topics:
            full_consumer.on(topic)(self._handle)
        consumer = PushConsumer(job.namesrv, "memory_filtered", consume_from="first")
        consumer.on(job.topics[0], tags="new")(self._count)
        popper = PopConsumer(job.namesrv, "memory_popping", job.topics[-1], consume_from="first", ahead=POPPED_AHEAD)
        async with (
            full_consumer,
            consumer,
            popper,
            Producer(job.namesrv, group="memory_producers", in_flight_max=IN_FLIGHT_MAX) as producer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(full_consumer.run)
            nursery.start_soon(consumer.run)
            nursery.start_soon(self._pop, popper)
            await full_consumer.wait_assigned()
            await self._produce(producer)
            with trio.move_on_after(_LEAVE_SECONDS_MAX):
                await producer.flush()
            full_consumer.stop()
            consumer.stop()
            nursery.cancel_scope.deadline = trio.current_time() + 1.0
        return self.report

    async def _produce(self, producer: Producer) -> None:
        job, body, count = self._job, bytes(self._job.body_bytes), 0
        begin = trio.current_time()
        while (seconds := trio.current_time() - begin) < job.seconds:
            due = int(seconds * job.rate)
            for number in range(count, due):
                message = Message(
                    job.topics[number % len(job.topics[:-1]) if number % POPPED_EVERY else -1],
                    body,
                    tags="new" if number % 2 else "changed",
                    keys=[f"order-{number}"],
                    delay_level=1 if number % DELAYED_EVERY == 0 else None,
                )
                try:
                    producer.send_nowait(message, self._on_outcome)
                except ClientError as error:
                    self._on_outcome(error)
            count = due
            await trio.sleep(TICK_SECONDS)

    def _on_outcome(self, outcome: SendResult | ClientError) -> None:
        if isinstance(outcome, SendResult):
            self.report.acknowledged += 1
            return
        self.report.failed += 1
        self._count_error(outcome)

    def _count_error(self, error: ClientError) -> None:
        if len(self.report.errors) < _ERRORS_MAX and str(error) not in self.report.errors:
            self.report.errors.append(str(error))

    async def _count(self, message: ReceivedMessage) -> None:
        self.report.handled += 1

    async def _handle(self, message: ReceivedMessage) -> None:
        await self._count(message)
        if not message.reconsume_times and int(message.keys[0].removeprefix("order-")) % FAILED_EVERY == 1:
            raise _HandlerFailed

    async def _pop(self, consumer: PopConsumer) -> None:
        """Acknowledge messages as they come, all at once."""
        async with trio.open_nursery() as nursery:
            async for message in consumer:
                self.report.popped += 1
                nursery.start_soon(self._acknowledge, consumer, message)

    async def _acknowledge(self, consumer: PopConsumer, message: PoppedMessage) -> None:
        try:
            await consumer.ack(message)
        except ClientError as error:
            self._count_error(error)


if __name__ == "__main__":
    logging.getLogger("mq.client").setLevel(logging.CRITICAL)  # the failures of the handler are on purpose
    do_job(MemoryJob, lambda job: run_trio(_IdleClients(job).run), ClientError)
