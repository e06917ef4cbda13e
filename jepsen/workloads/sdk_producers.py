"""Sends with the SDK: one producer sends one at a time, one never retries, one has many messages in flight."""

from __future__ import annotations

import random
from collections.abc import Sequence

import trio

from checkers.recording import Worker
from jepsen.derived_messages import body_of, new_value, properties_of, tag_of
from jepsen.workloads.workload import SIZES, Workload
from mq.client import ClientError, Message, Producer
from mq.protocol.message_ids import parse_offset_message_id

REST_SECONDS = 0.02
TIMEOUTS = (1.0, 5.0, 20.0)

Plans = Sequence[tuple[str, int, bool]]
PLANS: Plans = (("one", 1, True), ("once", 2, False), ("many", 8, True))
NEVER_TWICE: Plans = (("once", 4, False),)
"""Name, messages in flight, and whether a message with an unknown outcome is sent again."""


async def produce_with_sdk(workload: Workload, plans: Plans = PLANS) -> None:
    """Send until the workload stops. Returns when every message has an outcome."""
    async with trio.open_nursery() as nursery:
        for name, in_flight, retry_unknown in plans:
            nursery.start_soon(_produce, workload, name, in_flight, retry_unknown)


async def _produce(workload: Workload, name: str, in_flight: int, retry_unknown: bool) -> None:
    writers = f"jepsen_{name}"
    async with (
        Producer(workload.cluster.namesrv, writers, retry_unknown=retry_unknown) as producer,
        trio.open_nursery() as nursery,
    ):
        for _ in range(in_flight):
            rng = random.Random(workload.rng.random())
            nursery.start_soon(_send_one_by_one, workload, producer, rng, retry_unknown)


async def _send_one_by_one(workload: Workload, producer: Producer, rng: random.Random, retry_unknown: bool) -> None:
    worker = Worker(workload.recorder)
    while not workload.stopping.is_set():
        value = new_value(worker.process, worker.next_number(), rng.choice(SIZES))
        message = Message(
            workload.topic,
            body_of(value),
            tags=tag_of(value),
            keys=[value],
            properties=properties_of(value),
            lite_topic=workload.lite_topic(rng),
        )
        worker.invoke("send", v=value)
        try:
            result = await producer.send(message, timeout=rng.choice(TIMEOUTS))
        except ClientError as error:
            if error.stored == "no":
                worker.fail("send", str(error), v=value)
            else:
                worker.info("send", str(error), v=value, again=retry_unknown)
            await trio.sleep(REST_SECONDS)
            continue
        queue = f"{workload.topic}/{result.queue.queue_id}"
        position = parse_offset_message_id(result.offset_message_id).physical_offset
        worker.ok("send", k=queue, v=value, o=result.queue_offset, again=result.maybe_duplicated, pos=position)
        workload.acknowledge(queue, result.queue_offset, value)
        await trio.sleep(REST_SECONDS * rng.random())
