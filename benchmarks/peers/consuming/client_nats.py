"""Consumes from NATS with nats-py: the callback of a push consumer acknowledges each message; see `client_pace`."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from benchmarks.load.report import monotonic_seconds
from benchmarks.peers.consuming.client_pace import Tally, run
from benchmarks.peers.consuming.job import DRAIN, ConsumerJob, ConsumerResult
from benchmarks.wires.nats_stream import STREAM, SUBJECT


async def _work(job: ConsumerJob) -> ConsumerResult:
    nats: Any = importlib.import_module("nats")
    api: Any = importlib.import_module("nats.js.api")
    connection = await nats.connect(f"nats://{job.address[0]}:{job.address[1]}")
    stream = connection.jetstream()
    policy = api.DeliverPolicy.ALL if job.kind == DRAIN else api.DeliverPolicy.NEW
    config = api.ConsumerConfig(deliver_policy=policy, ack_policy=api.AckPolicy.EXPLICIT)
    tally, stop = Tally(job), asyncio.Event()

    async def receive(message: Any) -> None:
        tally.take(message.data)
        await message.ack()
        if job.kind == DRAIN and tally.count >= job.messages:
            stop.set()

    await stream.subscribe(SUBJECT, durable=job.group, stream=STREAM, cb=receive, manual_ack=True, config=config)
    if job.kind == DRAIN:
        await stop.wait()
        result = tally.result()
        await connection.close()
        return result
    for due in tally.due_times():
        await asyncio.sleep(due - monotonic_seconds())
        await stream.publish_async(SUBJECT, tally.body(due))
    await asyncio.sleep(0.2)
    result = tally.result()
    await connection.close()
    return result


if __name__ == "__main__":
    run(lambda job: asyncio.run(_work(job)))
