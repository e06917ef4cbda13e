"""Measures the time from a send to a push consumer's callback: one message at a time, three replicas, all synced.

Producer and consumer are our client library, in a separate process: ``python -m benchmarks.latency`` reads one JSON
object from standard input (`LatencyJob`) and writes one to standard output (`LatencyReport`). The next message is sent
when the previous one has been passed to the callback and acknowledged to the producer. Messages take turns in the
queues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from benchmarks.load.do_job import do_job
from benchmarks.load.frames import TOPIC
from benchmarks.load.generators import run_generator
from benchmarks.suites.case_load import Arguments, Note, create_topics
from benchmarks.suites.figures import Figure
from mq.cli.errors import run_trio
from mq.client.consume.push_consumer import PushConsumer
from mq.client.errors import ClientError
from mq.client.message import Message, ReceivedMessage
from mq.client.produce.producer import Producer
from mq.local_cluster import DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK

_WARM_UP_SHARE = 0.1
_SILENCE_SECONDS_MAX = 20.0


@dataclass(frozen=True, slots=True)
class LatencyJob:
    """The messages to send: ``warmup`` unmeasured ones, then ``messages`` measured ones, of ``body_bytes`` each."""

    namesrv: str
    topic: str
    body_bytes: int
    warmup: int
    messages: int


@dataclass(frozen=True, slots=True)
class LatencyReport:
    """The seconds from each send to its callback, and to its acknowledgement, in the order of the messages."""

    delivered: list[float]
    acknowledged: list[float]


class MessageLost(Exception):
    """A message did not reach the callback within `_SILENCE_SECONDS_MAX`."""


async def ping(job: LatencyJob) -> LatencyReport:
    """Send the messages one by one, and wait for each at the consumer. Raises ClientError, MessageLost."""
    report = LatencyReport([], [])
    arrivals: dict[str, float] = {}
    news = trio.Event()
    consumer = PushConsumer(job.namesrv, "bench_consumers", consume_from="first")

    @consumer.on(job.topic)
    async def on_message(message: ReceivedMessage) -> None:
        arrivals[message.keys[0]] = time.monotonic()
        news.set()

    async with consumer, Producer(job.namesrv, group="bench_producers") as producer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        await consumer.wait_assigned()
        for number in range(job.warmup + job.messages):
            news = trio.Event()
            key = f"k{number}"
            begin = time.monotonic()
            await producer.send(Message(job.topic, bytes(job.body_bytes), keys=[key]))
            ack_time = time.monotonic()
            with trio.move_on_after(_SILENCE_SECONDS_MAX):
                while key not in arrivals:
                    await news.wait()
                    news = trio.Event()
            if key not in arrivals:
                raise MessageLost(f"message {number} did not come within {_SILENCE_SECONDS_MAX:g} s")
            if number >= job.warmup:
                report.delivered.append(arrivals[key] - begin)
                report.acknowledged.append(ack_time - begin)
        consumer.stop()
    return report


def share_of(values: Sequence[float], share: float) -> float:
    """Return the value that the fraction ``share`` of the values do not exceed."""
    assert values, "no values"
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


async def measure_latency(args: Arguments, directory: Path, note: Note) -> None:
    """Measure the latency through three replicas, with one message in flight."""
    messages = args.sizes.latency_messages // (20 if args.quick else 1)
    async with DevCluster.open(directory / "latency", nodes=3, ports=Ports.free(3), settings=ANY_DISK) as cluster:
        await create_topics(cluster, 1, await cluster.leader())
        job = LatencyJob(cluster.namesrv, TOPIC, 1024, int(messages * _WARM_UP_SHARE), messages)
        report = await run_generator("benchmarks.latency", job, LatencyReport)
        cluster.check()
    delivery_seconds, ack_seconds = report.delivered, report.acknowledged
    note(Figure("latency", "send to callback, p50", 1e3 * share_of(delivery_seconds, 0.5), "ms", 5))
    note(Figure("latency", "send to callback, p99", 1e3 * share_of(delivery_seconds, 0.99), "ms", 20))
    note(Figure("latency", "send to callback, longest", 1e3 * max(delivery_seconds), "ms"))
    note(Figure("latency", "send to acknowledgement, p50", 1e3 * share_of(ack_seconds, 0.5), "ms"))
    note(Figure("latency", "send to acknowledgement, p99", 1e3 * share_of(ack_seconds, 0.99), "ms"))


if __name__ == "__main__":
    do_job(LatencyJob, lambda job: run_trio(partial(ping, job)), ClientError, MessageLost)
