"""Consumes from raftmq with its client library: a push consumer handles each message; see `client_pace`."""

from __future__ import annotations

from functools import partial

import trio

from benchmarks.load.frames import TOPIC
from benchmarks.load.report import monotonic_seconds
from benchmarks.peers.consuming.client_pace import Tally, run
from benchmarks.peers.consuming.job import DRAIN, ConsumerJob, ConsumerResult
from mq.cli.errors import run_trio
from mq.client.consume.push_consumer import PushConsumer
from mq.client.errors import ClientError
from mq.client.message import Message, ReceivedMessage, SendResult
from mq.client.produce.producer import Producer


async def _work(job: ConsumerJob) -> ConsumerResult:
    tally, stop = Tally(job), trio.Event()
    drains = job.kind == DRAIN
    consumer = PushConsumer(job.namesrv, job.group, consume_from="first" if drains else "last")

    @consumer.on(TOPIC)
    async def receive(message: ReceivedMessage) -> None:
        tally.take(message.body)
        if drains and tally.count >= job.messages:
            stop.set()

    failures = list[ClientError]()

    def on_outcome(outcome: SendResult | ClientError) -> None:
        if isinstance(outcome, ClientError):
            failures.append(outcome)

    async with Producer(job.namesrv, group="bench_producers") as producer, consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        if drains:
            await stop.wait()
        else:
            await consumer.wait_assigned()
            # A new group begins with the first message while the topic still has it, also with "last".
            before = -1
            while tally.count != before:
                before = tally.count
                await trio.sleep(1.0)
            for due in tally.due_times():
                await trio.sleep(max(0.0, due - monotonic_seconds()))
                producer.send_nowait(Message(TOPIC, tally.body(due)), on_outcome)
                if failures:
                    raise failures[0]
            await trio.sleep(0.2)
        result = tally.result()
        consumer.stop()
    return result


if __name__ == "__main__":
    run(lambda job: run_trio(partial(_work, job)))
