"""Queue offsets and physical offsets are different types for mypy, and plain integers at run time.

mypy reads this file as well: it reports each ``type: ignore`` that hides no error.
"""

from __future__ import annotations

from typing import assert_type

from mq.broker.write_path.outcome import Stored
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset, QueueOffset, offset_range
from mq.protocol.requests.receipts import Receipt
from mq.store.consume_queue import ConsumeQueue
from mq.store.log_records import LogRecords
from mq.store.queue_store import QueueStore


def sums(queue_offset: QueueOffset, position: PhysicalOffset) -> None:
    """Never called: what mypy knows of sums, differences and comparisons."""
    assert_type(queue_offset + 1, QueueOffset)
    assert_type(position - 20, PhysicalOffset)
    assert_type(queue_offset - FIRST_OFFSET, int)
    assert_type(max(queue_offset, queue_offset + 1), QueueOffset)
    assert_type(queue_offset % 204, int)
    for each in offset_range(FIRST_OFFSET, queue_offset):
        assert_type(each, QueueOffset)
    queue_offset += 1
    assert_type(queue_offset, QueueOffset)
    assert queue_offset == position  # type: ignore[comparison-overlap]


def mistakes(store: QueueStore, queue: ConsumeQueue, records: LogRecords, stored: Stored) -> None:
    """Never called: what mypy refuses."""
    queue.read(stored.physical_offset, 1)  # type: ignore[arg-type]
    queue.expire(stored.queue_offset)  # type: ignore[arg-type]
    queue.read(17, 1)  # type: ignore[arg-type]
    records.at(queue.max_offset)  # type: ignore[arg-type]
    records.at(queue.max_offset - queue.min_offset)  # type: ignore[arg-type]
    store.expire_some(queue.min_offset)  # type: ignore[arg-type]
    Stored(stored.physical_offset, stored.queue_offset)  # type: ignore[arg-type]
    Receipt(stored.physical_offset, 1, 1, 0, "0", "b", 0, stored.queue_offset)  # type: ignore[arg-type]


def test_offsets_are_of_type_int_at_run_time() -> None:
    assert (type(QueueOffset(7) + 1), type(PhysicalOffset(7) - 1)) == (int, int)
    assert {QueueOffset, PhysicalOffset} == {int}
    assert offset_range is range
