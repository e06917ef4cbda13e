"""Measures how late delayed messages arrive: 1,000 a second with the shortest delay level.

Producer and consumer are our client library, in a separate process: ``python -m benchmarks.lateness`` reads one JSON
object from standard input (`LatenessJob`) and writes one to standard output (`LatenessReport`). Lateness begins with
the call of `send`, so it includes the time until the message is stored; a message is early if it arrives before its
delay has passed since then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from benchmarks.latency import share_of
from benchmarks.load.do_job import do_job
from benchmarks.load.frames import TOPIC
from benchmarks.load.generators import run_generator
from benchmarks.suites.case_load import Arguments, Note, create_topics
from benchmarks.suites.figures import Figure
from mq.cli.errors import run_trio
from mq.client.consume.push_consumer import PushConsumer
from mq.client.errors import ClientError
from mq.client.message import Message, ReceivedMessage, SendResult
from mq.client.produce.producer import Producer
from mq.local_cluster import DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK

RATE = 1000
DELAY_SECONDS = 1.0
_BURST_SECONDS = 0.01
_SILENCE_SECONDS_MAX = 20.0


@dataclass(frozen=True, slots=True)
class LatenessJob:
    """A load of ``rate`` messages a second for ``seconds``."""

    namesrv: str
    topic: str
    rate: int
    seconds: float


@dataclass(slots=True)
class LatenessReport:
    """The seconds from the end of each message's delay to its callback; negative if it came too early."""

    late: list[float] = field(default_factory=list)
    unsent: int = 0
    missing: int = 0
    repeated: int = 0


async def watch(job: LatenessJob) -> LatenessReport:
    """Send delayed messages, and receive them. Raises ClientError."""
    report = LatenessReport()
    sent_at: dict[bytes, float] = {}
    bodies: set[bytes] = set()
    consumer = PushConsumer(job.namesrv, "bench_consumers", consume_from="first", ordered=False)

    @consumer.on(job.topic)
    async def on_message(message: ReceivedMessage) -> None:
        now = time.monotonic()
        if message.body in bodies:
            report.repeated += 1
        else:
            bodies.add(message.body)
            report.late.append(now - sent_at[message.body] - DELAY_SECONDS)

    def on_outcome(outcome: SendResult | ClientError) -> None:
        report.unsent += isinstance(outcome, ClientError)

    async with consumer, Producer(job.namesrv, group="bench_producers") as producer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        await consumer.wait_assigned()
        burst = max(1, round(job.rate * _BURST_SECONDS))
        begin = trio.current_time()
        for number in range(round(job.rate * job.seconds)):
            if number % burst == 0:
                await trio.sleep_until(begin + number / job.rate)
            body = b"%08d" % number
            sent_at[body] = time.monotonic()
            producer.send_nowait(Message(job.topic, body, delay_level=1), on_outcome)
        with trio.move_on_after(_SILENCE_SECONDS_MAX):
            while len(bodies) + report.unsent < len(sent_at):  # noqa: ASYNC110 - the end of all of them
                await trio.sleep(0.05)
        report.missing = len(sent_at) - len(bodies) - report.unsent
        consumer.stop()
    return report


async def measure_lateness(args: Arguments, directory: Path, note: Note) -> None:
    """Measure the shortest delay level with three replicas."""
    async with DevCluster.open(directory / "lateness", nodes=3, ports=Ports.free(3), settings=ANY_DISK) as cluster:
        await create_topics(cluster, 1, await cluster.leader())
        job = LatenessJob(cluster.namesrv, TOPIC, RATE, args.windows * args.seconds)
        report = await run_generator("benchmarks.lateness", job, LatenessReport)
        cluster.check()
    note(Figure("lateness", f"messages of level 1, {RATE:,} a second", len(report.late), ""))
    note(Figure("lateness", "p50", 1e3 * share_of(report.late, 0.5), "ms"))
    note(Figure("lateness", "p99", 1e3 * share_of(report.late, 0.99), "ms", 100))
    note(Figure("lateness", "latest", 1e3 * max(report.late), "ms"))
    note(Figure("lateness", "early", sum(late < 0 for late in report.late), "messages", 0))
    note(
        Figure(
            "lateness", "unsent, missing, or delivered twice", report.unsent + report.missing + report.repeated, "", 0
        )
    )


if __name__ == "__main__":
    do_job(LatenessJob, lambda job: run_trio(partial(watch, job)), ClientError)
