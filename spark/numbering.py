"""Numbers the rows that a sink writes, so that brokers recognize rows that are sent again.

A *destination* is the part of its place that a row itself names: a topic, and a broker group and a queue if it has
columns for them. The rows of one Spark partition with the same destination are numbered in order, as one producer. So a
row's number depends only on the rows before it: not on how rows are grouped into requests, on the options, or on which
brokers exist or lead. When Spark reruns a task and that task sees the same rows in the same order, each row gets the
same number.

A number is ``batch << 32 | row``: the micro-batch of a stream (or ``txnVersion``), and the count. Numbers of a producer
only increase, so brokers can remember any number of rows in a few bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from spark.option_table import TXN_VERSION_MAX

ROWS_MAX: Final = 1 << 32
"""Rows of one task for one destination."""
BATCH_MAX: Final = TXN_VERSION_MAX
"""The highest micro-batch id, and the highest ``txnVersion``."""


class WriteId(NamedTuple):
    """The identity of a write: the same for each attempt, another one for new data.

    ``name`` is the id of a streaming query, the user's ``txnAppId``, or generated for this one write.
    """

    name: str
    batch: int


class Destination(NamedTuple):
    """The destination of a row, as far as its columns name one: topic, broker group and queue."""

    topic: str
    broker_name: str | None = None
    queue_id: int | None = None

    def __str__(self) -> str:
        parts = [f"topic {self.topic!r}"]
        if self.broker_name is not None:
            parts.append(f"broker group {self.broker_name}")
        if self.queue_id is not None:
            parts.append(f"queue {self.queue_id}")
        return ", ".join(parts)


def producer_id(job: WriteId, partition: int, destination: Destination) -> str:
    """Return the producer id for rows of one destination, at most 64 characters; only the last ones matter."""
    exact = repr((job.name, partition, *destination)).encode()
    digest = hashlib.sha256(exact).hexdigest()[:32]
    readable = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in job.name)[:16]
    return f"spark:{readable}:{partition % 1_000_000}:{digest}"


def first_number(job: WriteId, row: int) -> int:
    """Return the sequence number of a producer's row ``row``, which is counted from 0."""
    assert 0 <= job.batch <= BATCH_MAX, job
    assert 0 <= row < ROWS_MAX, row
    return job.batch << 32 | row


def group_of_producer(producer: str, groups: Iterable[str]) -> str:
    """Return the broker group that stores a producer's rows if their destination does not name a group.

    The highest of the hashes decides: a new group takes over its share of producers and moves no others.
    """
    return max(groups, key=lambda group: hashlib.sha256(f"{producer}/{group}".encode()).digest())
