"""Sequence numbers of the rows that a sink writes, by which brokers know a row that comes again.

A *destination* is what a row itself says about where it goes: a topic, and a broker group and a queue if it has columns
for them. The rows of one Spark partition that go to one destination are counted, in their order, and belong to one
producer. So a row's number depends on the rows before it and on nothing else: not on how rows are put into requests,
what the options are, which brokers there are or who leads them. When Spark runs a task again and that task sees the
same rows in the same order, each row has the number that it had.

A number is ``batch << 32 | row``: the micro-batch of a stream (or ``txnVersion``), and the count. Numbers of a producer
only go up, which is what brokers need to remember any number of rows in a few bytes.
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


class Job(NamedTuple):
    """What is written once: the same for each attempt, another one for whatever is new.

    ``name`` is the id of a streaming query, the user's ``txnAppId``, or made for this one write.
    """

    name: str
    batch: int


class Destination(NamedTuple):
    """Where a row goes, as far as it says so itself."""

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


def producer_id(job: Job, partition: int, destination: Destination) -> str:
    """Who sends these rows, in at most 64 characters; only the last ones matter, the others are for people."""
    exact = repr((job.name, partition, *destination)).encode()
    digest = hashlib.sha256(exact).hexdigest()[:32]
    readable = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in job.name)[:16]
    return f"spark:{readable}:{partition % 1_000_000}:{digest}"


def first_number(job: Job, row: int) -> int:
    """The number of a producer's row, counted from 0."""
    assert 0 <= job.batch <= BATCH_MAX, job
    assert 0 <= row < ROWS_MAX, row
    return job.batch << 32 | row


def home(producer: str, groups: Iterable[str]) -> str:
    """The broker group that stores a producer's rows when they name none.

    The highest of the hashes decides: a new group takes over its share of producers and moves no others.
    """
    return max(groups, key=lambda group: hashlib.sha256(f"{producer}/{group}".encode()).digest())
