"""Consumes from RabbitMQ with aio-pika: callbacks acknowledge each message; see `client_pace`."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from benchmarks.load.report import monotonic_seconds
from benchmarks.peers.consuming.client_pace import Tally, run
from benchmarks.peers.consuming.job import DRAIN, ConsumerJob, ConsumerResult
from benchmarks.wires.amqp import QUEUES, queue_name
from benchmarks.wires.amqp_consumer import PREFETCH


async def _work(job: ConsumerJob) -> ConsumerResult:
    pika: Any = importlib.import_module("aio_pika")
    connection = await pika.connect(host=job.address[0], port=job.address[1], login="guest", password="guest")  # noqa: S106 - the default of a new server
    channel = await connection.channel(publisher_confirms=True)
    await channel.set_qos(prefetch_count=PREFETCH)
    tally, stop = Tally(job), asyncio.Event()

    async def receive(message: Any) -> None:
        tally.take(message.body)
        await message.ack()
        if job.kind == DRAIN and tally.count >= job.messages:
            stop.set()

    for number in range(QUEUES):
        queue = await channel.get_queue(queue_name(number))
        await queue.consume(receive)
    if job.kind == DRAIN:
        await stop.wait()
        result = tally.result()
        await connection.close()
        return result
    tasks = set[asyncio.Task[Any]]()
    for number, due in enumerate(tally.due_times()):
        await asyncio.sleep(due - monotonic_seconds())
        message = pika.Message(tally.body(due), delivery_mode=pika.DeliveryMode.PERSISTENT)
        publication = channel.default_exchange.publish(message, routing_key=queue_name(number))
        task = asyncio.create_task(publication)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.sleep(0.2)
    result = tally.result()
    await connection.close()
    return result


if __name__ == "__main__":
    run(lambda job: asyncio.run(_work(job)))
