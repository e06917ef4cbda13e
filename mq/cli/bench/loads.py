"""Puts load on a cluster: produces, consumes, or both, through the SDK as applications do."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import trio

from mq.cli.bench.plan import BenchPlan, Schedule
from mq.cli.bench.results import DirectionCounts, Latencies, Result
from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.client.admin import Admin
from mq.client.consume.pull_consumer import PullConsumer
from mq.client.errors import ClientError
from mq.client.message import Message, MessageQueue, SendResult
from mq.client.produce.producer import Producer
from mq.inspection.cluster import ask_cluster
from mq.monitoring.cpu_time import cpu_seconds
from mq.monitoring.resident_memory import resident_bytes

GROUP = "raftmq_bench"
EXAMPLES_MAX = 3
SEND_SECONDS_MAX = 15.0
LATE_SECONDS_MAX = 1.0
"""Grace time after the end for messages that were due before it."""
SILENCE_SECONDS_MAX = 10.0
"""Messages are missing if none arrives for this long."""
_POLL_MAX = 1024
_CLIENT = "client"
_UNSENT = "not sent"


class Arrivals:
    """Knows the sent messages that were not delivered yet, and measures the latencies of the others. Pure."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget everything that was sent so far."""
        self.latencies = Latencies()
        self._due: dict[int, float] = {}
        self._acknowledged_numbers: set[int] = set()

    def on_send(self, numbers: range, due_at: float) -> None:
        """Record that these messages were sent, and when they were due (``due_at``, in seconds)."""
        self._due.update(dict.fromkeys(numbers, due_at))

    def on_acknowledge(self, numbers: range) -> None:
        """Record that these messages are stored: they must be delivered."""
        self._acknowledged_numbers.update(number for number in numbers if number in self._due)

    def count_delivery(self, number: int, now: float) -> bool:
        """Record the delivery of a message. Returns whether it was the first; repeated deliveries are not measured."""
        due_at = self._due.pop(number, None)
        if due_at is None:
            return False
        self._acknowledged_numbers.discard(number)
        self.latencies.add(now - due_at)
        return True

    @property
    def missing_count(self) -> int:
        """The number of acknowledged messages that were not delivered yet."""
        return len(self._acknowledged_numbers)


class _LoadSender:
    """Sends messages by a plan, and counts outcomes."""

    def __init__(self, plan: BenchPlan, producer: Producer, arrivals: Arrivals | None = None) -> None:
        self._plan = plan
        self._producer = producer
        self._arrivals = arrivals
        self._room = trio.Semaphore(plan.in_flight)
        self._number = 0
        self.forget()

    def forget(self) -> None:
        """Reset the counts."""
        self.counts, self.latencies = DirectionCounts(), Latencies()
        self.failed = {"not stored": 0, "outcome unknown": 0, _UNSENT: 0}
        self.examples: list[str] = []

    async def run(self, seconds: float) -> None:
        """Send for this long, and wait for the last acknowledgements. Due messages without room count as failed."""
        plan = self._plan
        start = trio.current_time()
        end = start + seconds
        schedule = None if plan.rate is None else Schedule(plan.rate, plan.batch)
        async with trio.open_nursery() as batches:
            while schedule is None and trio.current_time() < end:
                await self._send(batches, None)
            while schedule is not None and schedule.next_at < seconds and trio.current_time() < end + LATE_SECONDS_MAX:
                await trio.sleep_until(start + schedule.next_at)
                await self._send(batches, start + schedule.next_due())
        if schedule is not None and (unsent := schedule.due_before(seconds)):
            self.failed[_UNSENT] += unsent * plan.batch
            self.examples.append(f"{unsent * plan.batch} messages were not sent in time: the rate is too high")
        await self._producer.flush()

    async def _send(self, batches: trio.Nursery, due_at: float | None) -> None:
        """Send the next message or batch when there is room. Without ``due_at`` it is due at that moment."""
        try:
            self._room.acquire_nowait()  # as `acquire` it would give up the turn, and each message be written alone
        except trio.WouldBlock:
            await self._room.acquire()
        numbers = range(self._number, self._number + self._plan.batch)
        self._number = numbers.stop
        due_at = trio.current_time() if due_at is None else due_at
        if self._arrivals is not None:
            self._arrivals.on_send(numbers, due_at)
        messages = [Message(self._plan.topic, self._plan.body(number)) for number in numbers]
        on_outcome = partial(self._on_outcome, numbers, due_at)
        if len(messages) > 1:
            batches.start_soon(self._send_batch, messages, on_outcome)
            return
        try:
            self._producer.send_nowait(messages[0], on_outcome)
        except ClientError as refused:
            on_outcome(refused)

    async def _send_batch(
        self, messages: list[Message], on_outcome: Callable[[SendResult | ClientError], None]
    ) -> None:
        try:
            results = await self._producer.send_batch(messages)
        except ClientError as error:
            on_outcome(error)
        else:
            on_outcome(results[0])

    def _on_outcome(self, numbers: range, due_at: float, outcome: SendResult | ClientError) -> None:
        self._room.release()
        if isinstance(outcome, SendResult):
            now = trio.current_time()
            self.counts.add(len(numbers), len(numbers) * self._plan.body_bytes, now)
            self.latencies.add(now - due_at, len(numbers))
            if self._arrivals is not None:
                self._arrivals.on_acknowledge(numbers)
            return
        self.failed["outcome unknown" if outcome.stored == "unknown" else "not stored"] += len(numbers)
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(str(outcome))

    def report(self, result: Result) -> None:
        """Store the counts in a result."""
        result.produced, result.acknowledged = self.counts, self.latencies
        result.failed = {what: count for what, count in self.failed.items() if count}
        result.examples = self.examples


def _open_producer(plan: BenchPlan, namesrv: str) -> Producer:
    return Producer(
        namesrv,
        GROUP,
        timeout=SEND_SECONDS_MAX,
        in_flight_max=2 * plan.in_flight,
        linger=plan.linger,
        compress=None,
    )


async def produce(plan: BenchPlan, namesrv: str) -> Result:
    """Send messages. Raises ClientError if the cluster is unreachable; failed sends are in the result."""
    result = Result()
    async with _open_producer(plan, namesrv) as producer:
        sender = _LoadSender(plan, producer)
        await sender.run(plan.warm_up_seconds)
        sender.forget()
        async with _measure(result, namesrv):
            await sender.run(plan.seconds)
            sender.report(result)
    return result


async def consume(plan: BenchPlan, namesrv: str) -> Result:
    """Read the topic from its first message on, for the seconds of the plan at most. Commits no offset.

    Raises ClientError, CommandFailed if the topic is empty.
    """
    async with Admin(namesrv) as admin:
        ends = await admin.topic_stats(plan.topic)
    result = Result()
    spans = {queue: (each.min_offset, each.max_offset) for queue, each in ends.items()}
    await _read(plan.topic, namesrv, spans, result, plan.seconds)
    return result


async def backlog(plan: BenchPlan, namesrv: str) -> Result:
    """Send messages for the seconds of the plan, then read them all back. Commits no offset.

    CPU time is that of reading. Raises ClientError; failed sends are in the result.
    """
    result = Result()
    async with Admin(namesrv) as admin:
        before = await admin.topic_stats(plan.topic)
        async with _open_producer(plan, namesrv) as producer:
            sender = _LoadSender(plan, producer)
            await sender.run(plan.seconds)
        after = await admin.topic_stats(plan.topic)
    spans = {
        queue: (before[queue].max_offset if queue in before else 0, each.max_offset) for queue, each in after.items()
    }
    await _read(plan.topic, namesrv, spans, result, math.inf)
    result.failed = {what: count for what, count in sender.failed.items() if count}
    result.examples = sender.examples
    return result


async def _read(
    topic: str, namesrv: str, spans: Mapping[MessageQueue, tuple[int, int]], result: Result, seconds: float
) -> None:
    """Read these offsets of each queue, for at most ``seconds``. Raises ClientError, CommandFailed."""
    count = sum(end - begin for begin, end in spans.values())
    if not count:
        raise CommandFailed(f"topic {topic} is empty; fill it with raftmq bench produce", EXIT_FAILED)
    counts = result.consumed = DirectionCounts()
    async with PullConsumer(namesrv, GROUP, consume_from="first") as consumer, _measure(result, namesrv):
        await consumer.assign(spans)
        for queue, (begin, _) in spans.items():
            await consumer.seek(queue, begin)
        with trio.move_on_after(seconds):
            while count > 0 and (messages := await consumer.poll(_POLL_MAX, timeout=SILENCE_SECONDS_MAX)):
                counts.add(len(messages), sum(len(message.body) for message in messages), trio.current_time())
                count -= len(messages)


async def both(plan: BenchPlan, namesrv: str) -> Result:
    """Send and consume messages at the same time, from the ends of the queues on. Commits no offset.

    Raises ClientError if the cluster is unreachable; failed sends are in the result.
    """
    result, arrivals, counts = Result(), Arrivals(), DirectionCounts()
    news = trio.Event()

    async def receive() -> None:
        nonlocal news
        while True:
            messages = await consumer.poll(_POLL_MAX)
            now = trio.current_time()
            for message in messages:
                number = plan.number_of(message.body)
                if number is not None and arrivals.count_delivery(number, now):
                    counts.add(1, len(message.body), now)
            news.set()
            news = trio.Event()

    async with (
        PullConsumer(namesrv, GROUP, consume_from="last") as consumer,
        _open_producer(plan, namesrv) as producer,
        trio.open_nursery() as nursery,
    ):
        queues = await consumer.queues(plan.topic)
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, "last")
        nursery.start_soon(receive)
        sender = _LoadSender(plan, producer, arrivals)
        await sender.run(plan.warm_up_seconds)
        sender.forget()
        arrivals.forget()
        counts = DirectionCounts()
        async with _measure(result, namesrv):
            await sender.run(plan.seconds)
            while arrivals.missing_count:
                with trio.move_on_after(SILENCE_SECONDS_MAX) as silence:
                    await news.wait()
                if silence.cancelled_caught:
                    break
            sender.report(result)
            result.consumed, result.delivered, result.missing = counts, arrivals.latencies, arrivals.missing_count
        nursery.cancel_scope.cancel()
    return result


@asynccontextmanager
async def _measure(result: Result, namesrv: str) -> AsyncIterator[None]:
    """Note how long the block takes, and what every process uses in it. Raises ClientError."""
    before = await _usage(namesrv)
    began = trio.current_time()
    yield
    result.seconds = trio.current_time() - began
    after = await _usage(namesrv)
    result.resident_mib = {name: usage.resident_bytes / 2**20 for name, usage in after.items()}
    if count := result.messages:
        result.cpu_us = {
            name: 1000 * (after[name].cpu_ms - usage.cpu_ms) / count for name, usage in before.items() if name in after
        }


class _Usage(NamedTuple):
    """The CPU seconds of a process since its start, and its memory."""

    cpu_ms: float
    resident_bytes: float


async def _usage(namesrv: str) -> dict[str, _Usage]:
    """The processor time of this process, and of each replica that reports its own. Raises ClientError."""
    usages = {_CLIENT: _Usage(1000 * cpu_seconds(os.getpid()), resident_bytes())}
    for group in await ask_cluster(namesrv):
        for replica in group.replicas:
            figures = replica.figures
            if "raftmq.cpuMs" in figures:
                usage = _Usage(float(figures["raftmq.cpuMs"]), float(figures.get("raftmq.residentBytes", 0)))
                usages[f"{group.group}/{replica.node_id}"] = usage
    return usages
