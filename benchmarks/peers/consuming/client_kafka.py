"""Consumes from Kafka with confluent-kafka: a group's consumer commits its position by itself; see `client_pace`."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.load.frames import QUEUES, TOPIC
from benchmarks.load.report import monotonic_seconds
from benchmarks.peers.consuming.client_pace import Tally, run
from benchmarks.peers.consuming.job import DRAIN, ConsumerJob, ConsumerResult

TAKEN_MAX = 500
"""Messages of one call, as `max.poll.records` of Java's client."""
LAST_SECONDS = 0.5


def _work(job: ConsumerJob) -> ConsumerResult:
    kafka: Any = importlib.import_module("confluent_kafka")
    servers = {"bootstrap.servers": f"{job.address[0]}:{job.address[1]}"}
    begin_at = "earliest" if job.kind == DRAIN else "latest"
    consumer = kafka.Consumer({**servers, "group.id": job.group, "auto.offset.reset": begin_at})
    queues = list[int]()
    consumer.subscribe([TOPIC], on_assign=lambda _, partitions: queues.extend(each.partition for each in partitions))
    tally = Tally(job)

    def take(seconds: float) -> None:
        for message in consumer.consume(TAKEN_MAX, seconds):
            if message.error() is not None:
                raise kafka.KafkaException(message.error())
            tally.take(message.value())

    if job.kind == DRAIN:
        while tally.count < job.messages:
            take(1.0)
        result = tally.result()
        consumer.close()
        return result
    producer = kafka.Producer({**servers, "acks": "all"})
    while len(queues) < QUEUES or not tally.count:  # the consumer reads nothing for seconds after it got its queues
        for partition in queues:
            producer.produce(TOPIC, tally.body(monotonic_seconds()), partition=partition)
        take(0.5)
    for due in tally.due_times():
        while (wait_seconds := due - monotonic_seconds()) > 0:
            for message in consumer.consume(1, wait_seconds):
                tally.take(message.value())
        producer.produce(TOPIC, tally.body(due))
        producer.poll(0)
    end = monotonic_seconds() + LAST_SECONDS
    while monotonic_seconds() < end:
        take(0.05)
    result = tally.result()
    producer.flush()
    consumer.close()
    return result


if __name__ == "__main__":
    run(_work)
