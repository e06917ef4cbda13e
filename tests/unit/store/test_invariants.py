"""`check_invariants` of the consume queues names whatever is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mq.protocol.numbers import FIRST_OFFSET, LOG_BEGIN, QueueOffset
from mq.store.dispatch import QUEUE_ENTRY, QueueRun
from mq.store.queue_store import QueueStore, QueueStoreSettings

SETTINGS = QueueStoreSettings(entries_per_file=8, entries_per_block=2, flush_bytes=60)


def filled(root: Path) -> QueueStore:
    """Two queues: one with four entries in files and one in memory, one with two in memory."""
    store = QueueStore.open(str(root), SETTINGS, queues={}, dropped_count=0, log_end=LOG_BEGIN)

    def add(queue_id: int, first: int, count: int) -> None:
        places = range(100 * (first + queue_id), 100 * (first + queue_id + count), 100)
        entries = b"".join(QUEUE_ENTRY.pack(place, 50, 0) for place in places)
        store.append_run(QueueRun("T", queue_id, QueueOffset(first), entries))

    add(0, 0, 4)
    store.flush_all()
    add(0, 4, 1)
    add(1, 0, 2)
    store.check_invariants()
    return store


def mix_names(store: QueueStore) -> None:
    store._by_name[b"T", 0] = store._queues["T", 1]


def rename_queue(store: QueueStore) -> None:
    store._queues["T", 0].key = ("T", 1)


def change_order(store: QueueStore) -> None:
    tail = store._queues["T", 1]._tail
    tail[:20], tail[20:] = tail[20:], tail[:20]


BROKEN: dict[str, Callable[[QueueStore], object]] = {
    "2 queues by encoded name, 2 by name": mix_names,
    "is listed as": rename_queue,
    "files end at 9": lambda store: setattr(store._queues["T", 0], "_flushed_offset", 9),
    "files end at 4, and 1 bytes are in memory": lambda store: setattr(store._queues["T", 0], "_tail", bytearray(1)),
    "0 is at 200 in the log, the next one at 100": change_order,
    "has 20 bytes in memory, and is not due to be written": lambda store: store._dirty.pop(("T", 0)),
    "is in capture 3 of 0": lambda store: setattr(store._queues["T", 0], "captured", 3),
    "to be written, and not there": lambda store: store._dirty.update({("X", 0): 0}),
    "grown, and not there": lambda store: store.grown.update({("X", 0): bytearray(20)}),
    "a page in memory, and not to be written": lambda store: store._full.update({("X", 0): None}),
    "not written in the order of their first entries": lambda store: store._dirty.update({("T", 0): 7}),
}


@pytest.mark.parametrize("named", BROKEN)
def test_broken_queues_are_named(tmp_path: Path, named: str) -> None:
    store = filled(tmp_path)
    BROKEN[named](store)
    with pytest.raises(AssertionError, match=named):
        store.check_invariants()
    store.close()


def test_store_is_whole_without_a_dropped_topic(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.drop_topic("T")
    store.check_invariants()
    store.add_empty("T", 0, FIRST_OFFSET)
    store.check_invariants()
    store.close()
